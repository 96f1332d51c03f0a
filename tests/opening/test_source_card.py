"""License and language of a source stand on the card of what is made of it."""

import pytest
from huggingface_hub import ModelCard

from torch_linformer.opening.hub import card_of_source

OTHER = {"license": "other", "license_name": "mud"}


@pytest.mark.parametrize(
    ("card", "fields"),
    [
        (
            "---\nlicense: apache-2.0\nlanguage: [en, de]\ntags: [a]\n---\n",
            {"license": "apache-2.0", "language": ["en", "de"]},
        ),
        ("---\nlicense: other\nlicense_name: mud\n---\n", OTHER),
        ("no head", {}),
        ("---\n: [\n---\n", {}),
        (None, {}),
    ],
    ids=["both", "other", "no-head", "damaged", "no-card"],
)
def test_fields_of_a_card(tmp_path, card, fields):
    if card is not None:
        (tmp_path / "README.md").write_text(card, encoding="utf-8")
    told = card_of_source(str(tmp_path))
    assert (told["license"], told["language"]) == (fields.get("license"), fields.get("language"))
    assert ModelCard(f"---\n{told['source_head']}tags: [b]\n---\n").data.to_dict() == {**fields, "tags": ["b"]}


def test_a_model_without_a_source():
    assert card_of_source(None) == {"source": None, "source_head": "", "license": None, "language": None}
