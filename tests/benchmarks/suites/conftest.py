"""Rows as a run of a suite would leave them, their costs given by a formula; contenders begin with the same weights."""

import pytest
import torch

from runner.suite import Grid, Measurement

WHOLE = Grid()


@pytest.fixture(scope="session")
def rows_of():
    """Function: the rows of a suite over a grid; ``seconds(contender, case)`` is the time, 1000 times it the memory."""

    def make(suite, seconds, grid=WHOLE):
        rows = []
        for case in suite.cases(grid):
            for contender in suite.contenders():
                if suite.takes_part(contender, case):
                    error = suite.reason_to_skip(contender, case)
                    time = None if error else seconds(contender.name, case)
                    memory = None if error else int(1000 * time)
                    rows.append(
                        Measurement(contender=contender.name, case=case, seconds=time, memory=memory, error=error)
                    )
        return rows

    return make


@pytest.fixture(autouse=True)
def surroundings():
    torch.manual_seed(0)
