"""Rows as a run of a suite would leave them, a console that keeps what it is shown, and labelled reviews."""

import io
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from rich.console import Console

from runner.benchmark import BenchmarkScreen
from runner.suite import Grid, Measurement

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # fresh processes take over the path, and import `small_suites` as the tests do


@pytest.fixture
def screen():
    return BenchmarkScreen(Console(file=io.StringIO(), width=200))


@pytest.fixture(scope="session")
def rows_of():
    """Function: the rows of a suite over a grid; ``seconds(contender, case)`` is the time, 1000 times it the memory."""

    def make(suite, seconds, grid=Grid()):  # noqa: B008
        rows = []
        for case in suite.cases(grid):
            for contender in suite.contenders():
                if suite.takes_part(contender, case):
                    facts = {"contender": contender.name, "case": case, "error": suite.reason_to_skip(contender, case)}
                    if facts["error"] is None:
                        facts["seconds"] = seconds(contender.name, case)
                        facts["memory"] = int(1000 * facts["seconds"])
                    rows.append(Measurement(**facts))
        return rows

    return make


@pytest.fixture(autouse=True)
def surroundings():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """Files of the names and columns of the real ones: the label stands at the end of each text."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, number in (("imdb_train", 400), ("imdb_test", 100), ("sst2_train", 9), ("sst2_dev", 5)):
        labels = draw.choice(["neg", "pos"], number)
        words = {"neg": ["wet", "grey"], "pos": ["warm", "sand"]}
        texts = [
            " ".join([*["the"] * draw.integers(12, 16), *draw.choice(words[label], 9)]) + " " * 40 * (n % 4 == 0)
            for n, label in enumerate(labels)
        ]
        pd.DataFrame({"text": texts, "label": labels}).to_parquet(folder / f"{name}.parquet")
    return folder
