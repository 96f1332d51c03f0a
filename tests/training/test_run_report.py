import html
import json

import pytest

from torch_linformer.adaptation.adaptation_report import cost_section
from torch_linformer.training.step_costs import StepCost, compare_costs


@pytest.mark.parametrize(
    ("ours", "full", "expected"),
    [
        (StepCost(3_000, 4_527), StepCost(1_000, 2_895), ("3.0× faster", "1.6× more memory")),
        (StepCost(1_000, 2_895), StepCost(3_000, 4_527), ("3.0× slower", "1.6× less memory")),
        (StepCost(1_000, 500), StepCost(1_010, 500), ("1.0×", "1.0×")),
        (StepCost(1_000, 0), StepCost(1_000, 3), ("1.0×", "–")),
        ("out of memory", StepCost(1, 1), ("–", "–")),
        (StepCost(1, 1), "out of memory", ("–", "–")),
    ],
)
def test_what_is_better_is_said_in_words(ours, full, expected):
    assert compare_costs(ours, full) == expected


@pytest.fixture(scope="module")
def measured(finish_run, quick):
    """A run whose speed is measured, and whose test documents are those that it is trained on."""
    return finish_run(max_steps=1, probe=True, test=quick["data"])


def test_the_table_of_a_run_says_it_on_the_screen_and_on_the_page(measured):
    metrics = json.loads((measured.folder / "metrics.json").read_text())
    ours, full = (
        StepCost(metrics[f"{name}tokens_per_second"], metrics[f"{name}peak_memory_mb"])
        for name in ("", "full_attention_")
    )
    assert min(ours.tokens_per_second, ours.peak_memory_mb, full.tokens_per_second, full.peak_memory_mb) > 1
    assert full.peak_memory_mb < 50  # of the step alone: a process with torch in it takes hundreds
    row = ["the same with full attention", "this model is", *compare_costs(ours, full)]
    page = html.unescape((measured.folder / "report.html").read_text(encoding="utf-8"))
    for text in (measured.shown, page[page.index("A training step, compared with full attention") :]):
        places = [text.index(cell) for cell in row]
        assert places == sorted(places)


def test_what_makes_the_scores_doubtful_is_shown_with_them(measured):
    warnings = [
        line for line in measured.shown.splitlines() if line.startswith("warning: ") and " in training: " in line
    ]
    assert len(warnings) == 2 and len({*warnings}) == 1  # before the training, and at its end
    warning = warnings[0]
    assert " test documents have a text that is also in training: " in warning
    for name in ("report.html", "README.md"):
        assert warning in (measured.folder / name).read_text(encoding="utf-8")


def test_the_table_of_an_adaptation_says_it_too():
    costs = {4096: (StepCost(9_000, 693), StepCost(6_000, 587)), 8192: ("out of memory", StepCost(1, 0))}
    table = cost_section(costs)
    assert table.rows[0] == ("4,096", "9,000", "6,000", "1.5× faster", "693", "587", "1.2× more memory")
    assert table.rows[1][1:] == ("failed: out of memory", "1", "–", "–", "0", "–") and len(table.columns) == 7


def test_the_page_concludes_first_and_counts_what_is_repeated(classifier_run, read_page):
    text = [part.strip() for part in read_page((classifier_run.folder / "report.html").read_text("utf-8")).text]
    verdict = json.loads((classifier_run.folder / "metrics.json").read_text())["verdict"]
    assert text.count(verdict) == 1 and text.index(verdict) < text.index("accuracy")
    title = next(part for part in text if part.startswith("Linformer on "))
    assert "/" not in title and "." not in title
    data = text[text.index("Data") : text.index("Length of the training documents")]
    assert {"repeated in training", "test texts that are also in training"} <= set(data)
