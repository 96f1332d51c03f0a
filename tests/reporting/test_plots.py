"""Figures are well-formed, bounded, say the right numbers and leave nothing behind."""

import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import matplotlib
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_linformer.reporting import plots
from torch_linformer.reporting.plots import confusion_matrix, learning_curve, length_histogram, reliability_diagram

SVG = "{http://www.w3.org/2000/svg}"
HISTORY = [
    {"step": 10, "loss": 2.5, "epoch": 0.1},
    {"step": 20, "loss": 1.5, "epoch": 0.2},
    {"step": 20, "eval_loss": 1.75, "eval_accuracy": 0.5, "epoch": 0.2},
    {"step": 30, "loss": float("nan")},
    {"step": 40, "eval_loss": 1.25, "eval_accuracy": 0.8125, "epoch": 0.4},
    {"step": 60, "eval_loss": 1.5, "eval_accuracy": 0.75, "epoch": 0.6},
    {"step": 60, "train_runtime": 12.5, "train_loss": 2.0},
]


def parsed(svg):
    root = ElementTree.fromstring(svg)
    assert root.tag == f"{SVG}svg"
    return root


def texts(svg):
    return ["".join(element.itertext()) for element in parsed(svg).iter(f"{SVG}text")]


def fills(svg):
    return re.findall(r"fill: (#\w+|currentColor)", svg)


FIGURES = {
    "learning_curve": lambda: learning_curve("Curve", HISTORY, "eval_accuracy").figure,
    "confusion_matrix": lambda: confusion_matrix([[3, 1], [0, 4]], ["neg", "pos"]),
    "length_histogram": lambda: length_histogram([5, 100, 900], 512),
    "reliability_diagram": lambda: reliability_diagram(
        [{"confidence": 0.5, "accuracy": 0.25, "documents": 4}, {"confidence": 0.9, "accuracy": 0.8, "documents": 10}]
    ),
}


@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_is_an_accessible_part_of_a_page(name):
    svg, before = FIGURES[name](), dict(matplotlib.rcParams)
    assert svg == FIGURES[name]() and dict(matplotlib.rcParams) == before
    root = parsed(svg)
    assert svg.startswith("<svg")
    assert root.get("role") == "img"
    assert root.get("aria-label")
    assert float(root.get("width")) <= 720
    assert "currentColor" in svg
    assert plots.INK not in svg
    assert not {"style", "script", "image", "metadata", "foreignObject"} & {
        e.tag.removeprefix(SVG) for e in root.iter()
    }
    assert not re.search(r'(href|src)="(?!#)', svg)


def test_no_identifier_is_shared_by_the_figures_of_a_report():
    ids = [identifier for figure in FIGURES.values() for identifier in re.findall(r' id="([^"]+)"', figure())]
    assert len(ids) == len(set(ids))


def test_every_reference_inside_a_figure_has_its_target():
    svg = FIGURES["learning_curve"]()
    referred = set(re.findall(r'href="#([^"]+)"', svg)) | set(re.findall(r"url\(#([^)]+)\)", svg))
    assert referred
    assert referred <= set(re.findall(r' id="([^"]+)"', svg))


@pytest.mark.parametrize(
    ("metric", "larger_is_better", "validation"),
    [
        ("eval_accuracy", True, ["Validation accuracy: best 0.8125 at step 40"]),
        ("eval_accuracy", False, ["Validation accuracy: best 0.5 at step 20"]),
        ("eval_macro_f1", True, []),  # never logged
    ],
)
def test_the_learning_curve_names_its_lines_and_its_best_point(metric, larger_is_better, validation):
    shown = texts(learning_curve("Curve", HISTORY, metric, larger_is_better=larger_is_better).figure)
    assert {"training", "validation", "Loss"} <= set(shown)
    assert [text for text in shown if text.startswith("Validation ")] == validation


def test_one_point_is_told_and_not_drawn():
    """Twice logged losses have a curve; the one evaluation has none."""
    section = learning_curve("Curve", HISTORY[:3], "eval_accuracy", caption="A caption.")
    shown = texts(section.figure)
    assert "training" in shown and "validation" not in shown and "Loss" in shown
    assert not [text for text in shown if "accuracy" in text]
    told = "validation loss 1.7500 at step 20, validation accuracy 0.5000 at step 20."
    assert section.text == f"Logged once, and so without a curve: {told}"
    assert (section.heading, section.caption) == ("Curve", "A caption.")


def test_points_by_themselves_are_no_figure():
    section = learning_curve("Curve", [HISTORY[0], HISTORY[2]], "eval_accuracy", caption="A caption.")
    assert (section.figure, section.caption) == ("", "")
    assert "training loss 2.5000 at step 10, validation loss 1.7500 at step 20" in section.text
    assert learning_curve("Curve", [], "eval_accuracy").text == "Nothing was logged."


def test_a_metric_without_losses_has_the_figure_to_itself():
    history = [{"step": step, "eval_accuracy": step / 10} for step in (1, 2)]
    shown = texts(learning_curve("Curve", history, "eval_accuracy").figure)
    assert "Validation accuracy: best 0.2 at step 2" in shown and "Loss" not in shown


def test_a_long_run_is_drawn_as_means_of_stretches():
    ends = [{"step": step, "eval_loss": 6.0 * step} for step in (0, 1)]
    runs = [[{"step": step, "loss": 3.0 * (step % 3)} for step in range(steps)] + ends for steps in (399, 39_600)]
    short, long = (learning_curve("Curve", run, "eval_accuracy").figure for run in runs)
    assert len(long) < len(short)
    (line, *_), (zero_to_six, *_) = (
        [re.findall(r"[ML] [\d.]+ ([\d.]+)", path) for path in re.findall(rf'd="([^"]+)"[^>]*stroke: {color}', long)]
        for color in (plots.BLUE, plots.ORANGE)
    )
    middle = sum(map(float, zero_to_six)) / 2
    assert line and all(float(y) == pytest.approx(middle, abs=0.01) for y in line)  # 0, 3, 6 have the mean 3


def test_the_confusion_matrix_shows_its_counts_and_colors_shares_of_the_row():
    svg = confusion_matrix([[30, 10], [0, 4000]], ["neg", "pos"])
    assert [text for text in texts(svg) if re.fullmatch(r"[\d,]+", text)] == ["30", "10", "4,000"]
    opacities = [float(value) for value in re.findall(r"fill-opacity: ([\d.]+)", svg)]
    legend = [0.0, 0.25, 0.5, 0.75, 1.0]
    assert opacities == pytest.approx([0.06 + 0.69 * share for share in (0.75, 0.25, 1.0, *legend)], abs=1e-5)
    assert [text for text in texts(svg) if text.endswith("%")] == ["0%", "25%", "50%", "75%", "100%"]
    assert "of the documents of a true label" in texts(svg)


def test_only_small_matrices_have_counts_in_their_cells():
    for labels in (25, 26):
        svg = confusion_matrix((np.eye(labels, dtype=int) * 77).tolist(), ["x"] * labels)
        assert ("77" in texts(svg)) == (labels == 25)


def test_the_most_frequent_labels_are_drawn_when_there_are_too_many():
    svg = confusion_matrix(np.diag(np.arange(60)).tolist(), [f"label {index}" for index in range(60)])
    shown = texts(svg)
    assert "label 9" not in shown
    assert {"label 10", "label 59"} <= set(shown)
    assert "50 labels, the most frequent of 60" in parsed(svg).get("aria-label")


def test_labels_are_text_and_nothing_else(recwarn):
    labels = ["<script>", "$\\frac{x$", "a\x00b\udc80", "日本語", "a label that is much too long to stand there"]
    shown = texts(confusion_matrix(np.eye(5, dtype=int).tolist(), labels))
    assert {"<script>", "$\\frac{x$", "a\N{REPLACEMENT CHARACTER}b\N{REPLACEMENT CHARACTER}", "日本語"} <= set(shown)
    assert "a label that is much to…" in shown
    assert not recwarn.list


def test_a_matrix_that_does_not_fit_its_labels_is_refused():
    with pytest.raises(ValueError, match=r"for each of 3 labels, at least one, got shape \(2, 2\)"):
        confusion_matrix([[1, 0], [0, 1]], ["a", "b", "c"])


def test_the_histogram_says_what_is_cut():
    svg = length_histogram([100, 512, 513, 875], 512)  # 1 + 363 tokens of 2,000 are cut
    assert "50.0 % of 4 documents are longer than 512 tokens; 18.2 % of all tokens lie beyond" in texts(svg)
    assert {plots.BLUE, plots.ORANGE} <= set(fills(svg))


def test_nothing_is_cut_when_every_document_fits():
    shown = texts(length_histogram([1, 0, 512], 512))
    assert "0.0 % of 3 documents are longer than 512 tokens; 0.0 % of all tokens lie beyond" in shown
    assert shown[0] == "1"  # the axis starts at one token, as there is no half token


@given(st.lists(st.integers(0, 5_000_000), min_size=1, max_size=30), st.integers(1, 1_000_000))
def test_bins_hold_every_length_and_split_at_the_maximum(lengths, max_length):
    tokens = np.maximum(lengths, 1)
    edges = plots._length_bins(int(tokens.min()), int(tokens.max()), max_length)
    assert np.histogram(tokens, edges)[0].sum() == len(tokens)
    assert max_length + 0.5 in edges
    assert (np.diff(edges) >= 1).all()
    assert len(edges) < 110


@pytest.mark.parametrize(("lengths", "max_length"), [([], 8), ([3], 0)])
def test_a_histogram_of_nothing_is_refused(lengths, max_length):
    with pytest.raises(ValueError, match="needs lengths and max_length >= 1"):
        length_histogram(lengths, max_length)


def test_pyplot_is_never_imported():
    code = "import sys; from torch_linformer.reporting import plots, report; plots.length_histogram([1], 2)"
    subprocess.run(
        [sys.executable, "-c", f"{code}; assert 'matplotlib.pyplot' not in sys.modules"], check=True, timeout=120
    )
