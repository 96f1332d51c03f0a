"""The small suites, one thread, and a console that keeps what it is shown."""

import io
import sys
from pathlib import Path

import pytest
from rich.console import Console

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # fresh processes take over the path, and import `small_suites` as the tests do


@pytest.fixture
def screen():
    from runner.benchmark import BenchmarkScreen

    return BenchmarkScreen(Console(file=io.StringIO(), width=200))
