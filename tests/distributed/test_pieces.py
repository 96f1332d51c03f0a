"""Rows in pieces, in several processes (gloo), beside whole rows in one: outputs and all gradients, in float64."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

PIECES_OF = Path(__file__).with_name("pieces_of.py")
EXACT = 1e-9  # of the largest number
LOSS = 1e-5  # of tokens, which is computed in float32 whatever the model


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """The error of each case, by the number of processes and its name."""
    file = tmp_path_factory.mktemp("pieces") / "answers.json"
    done = subprocess.run([sys.executable, PIECES_OF, file], capture_output=True, text=True)
    assert not done.stderr.strip() and done.returncode == 0, done.stderr
    return json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.parametrize(("processes", "cases"), [(1, 13), (2, 18), (3, 35), (4, 7)])
def test_what_pieces_compute_is_what_whole_rows_do(answers, processes, cases):
    errors = answers[str(processes)]
    bound = {name: LOSS if name.startswith(("masked words", "tags")) else EXACT for name in errors}
    assert {name: error for name, error in errors.items() if not error <= bound[name]} == {}
    assert len(errors) == cases and errors["bytes"] == 0
