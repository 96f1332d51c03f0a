"""Rows in pieces, in several processes (gloo), beside whole rows in one: outputs and all gradients, in float64."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PIECES_OF = Path(__file__).with_name("pieces_of.py")
EXACT = 1e-9  # of the largest number
LOSS = 1e-5  # of tokens, which is computed in float32 whatever the model


@pytest.fixture(scope="module", params=[1, 2, 3, 4], ids=lambda count: f"{count} processes")
def answers(request, tmp_path_factory):
    """The error of each case, by its name."""
    file = tmp_path_factory.mktemp("pieces") / "answers.json"
    done = subprocess.run([sys.executable, PIECES_OF, str(request.param), file], capture_output=True, text=True)
    assert not done.stderr.strip() and done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


def test_what_pieces_compute_is_what_whole_rows_do(answers):
    bound = {name: LOSS if name.startswith(("masked words", "tags")) else EXACT for name in answers}
    assert {name: error for name, error in answers.items() if not error <= bound[name]} == {}
    assert len(answers) >= 30 and answers["bytes"] == 0
