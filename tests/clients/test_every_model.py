"""Every type of model that transformers has a configuration of becomes linear and keeps all promises, or is refused."""

import re
from pathlib import Path

import pytest
from encoders.every_model import MODEL_TYPES, NoModel, kind_of
from encoders.promises import outcomes

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "model_types.md"
BEGIN, END = "<!-- begin: tests/clients/test_every_model.py -->", "<!-- end -->"


@pytest.mark.parametrize("model_type", MODEL_TYPES)
def test_works_or_is_refused_in_one_line(model_type):
    try:
        outcomes(model_type)
    except NoModel as reason:
        pytest.skip(str(reason))


def table():
    """The lines of docs/reference/model_types.md that say which types work."""
    works, refused = {}, 0
    for model_type in MODEL_TYPES:
        try:
            results = outcomes(model_type)
        except NoModel:
            continue
        except Exception:  # its own test says so
            results = {}
        part = next((part for part, said in results.items() if said == "works"), None)
        if part is None:
            refused += 1
        else:
            works.setdefault(kind_of(model_type, part), []).append(model_type)
    rows = [
        f"| {kind} | {len(names)} | {', '.join(f'`{name}`' for name in names)} |"
        for kind, names in sorted(works.items())
    ]
    return "\n".join(
        ["| reads | types | `model_type` |", "|---|---|---|", *rows, "", f"{refused} others are refused in one line."]
    )


def test_the_page_says_what_works():
    written = re.search(f"{BEGIN}\n(.*?)\n{END}", PAGE.read_text(), re.DOTALL)
    assert written is not None and written[1] == table(), f"docs/reference/model_types.md between the marks:\n{table()}"
