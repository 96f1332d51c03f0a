import io

import pytest
from rich.console import Console
from small_suites import case

from runner.benchmark import BenchmarkScreen, describe_case, describe_result
from runner.suite import Measurement

MEASURED = {"seconds": 0.0123, "spread": (0.0121, 0.0126), "memory": 43_100_000}


def test_a_case_in_a_few_words():
    assert describe_case(case(length=4096, k=256)) == "forward, N 4,096, K 256, B 2"
    assert describe_case(case(step="training", k=0)) == "training, N 7, B 2"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({**MEASURED, "repeats": 7}, "12.3 ms (12.1 ms to 12.6 ms, 7 rounds), 43.1 MB"),
        ({**MEASURED, "repeats": 1, "memory": None}, "12.3 ms (12.1 ms to 12.6 ms, 1 round)"),
        ({"error": "out of memory"}, "out of memory"),
    ],
)
def test_a_row_in_a_few_words(facts, expected):
    assert describe_result(Measurement(contender="a", case=case(), **facts)) == expected


@pytest.mark.parametrize("terminal", [False, True])
def test_every_row_is_shown_as_it_is(terminal):
    console = Console(file=io.StringIO(), width=150, force_terminal=terminal, color_system=None)
    screen = BenchmarkScreen(console)
    screen.begin("Small [b]things[/b]", rows=1200, done=1199)
    screen.row(Measurement(contender="[red]a", case=case(), error="[/b] no"))
    screen.stop()
    shown = console.file.getvalue()
    assert "Small [b]things[/b]: 1,200 rows, 1,199 of them are there\n" in shown
    assert "forward, N 7, K 3, B 2: [red]a [/b] no" in shown
    assert ("1200/1200" in shown) == terminal
