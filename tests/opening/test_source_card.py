"""License and language of a source stand on the card of what is made of it."""

import pytest
from huggingface_hub import ModelCard

from torch_linformer.opening.source_card import as_head, source_fields


@pytest.mark.parametrize(
    ("card", "fields"),
    [
        (
            "---\nlicense: apache-2.0\nlanguage: [en, de]\ntags: [a]\n---\n",
            {"license": "apache-2.0", "language": ["en", "de"]},
        ),
        ("---\nlicense: other\nlicense_name: mud\n---\n", {"license": "other", "license_name": "mud"}),
        ("no head", {}),
        ("---\n: [\n---\n", {}),
        (None, {}),
    ],
    ids=["both", "other", "no-head", "damaged", "no-card"],
)
def test_fields_of_a_card(tmp_path, card, fields):
    if card is not None:
        (tmp_path / "README.md").write_text(card, encoding="utf-8")
    assert source_fields(str(tmp_path)) == fields
    assert ModelCard(f"---\n{as_head(fields)}tags: [b]\n---\n").data.to_dict() == {**fields, "tags": ["b"]}


def test_a_model_without_a_source():
    assert source_fields(None) == {}
