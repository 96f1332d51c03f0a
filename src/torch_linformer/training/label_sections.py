"""What a report says of labels: which are taken for which, how good each is, and what probabilities are worth."""

from collections.abc import Mapping, Sequence
from typing import Any

from torch_linformer.reporting.plots import confusion_matrix, reliability_diagram
from torch_linformer.reporting.report import Section
from torch_linformer.reporting.tables import format_percent, format_score
from torch_linformer.tasks.metrics import BINS


def label_sections(scores: Mapping[str, Any], names: Sequence[str]) -> list[Section]:
    """The sections for which there are scores.

    Args:
        scores: of the test documents.
        names: of the labels.
    """
    sections = []
    if "confusion_matrix" in scores:
        matrix = confusion_matrix(scores["confusion_matrix"], names)
        caption = (
            "Held-out documents: a row is a true label, a column what was predicted. The fuller the color, the larger "
            "the share of the row."
        )
        sections.append(Section("Confusion matrix", figure=matrix, caption=caption))
    if "reliability" in scores:
        caption = (
            f"Held-out documents by the highest probability, in {BINS} bins of equal width; the larger a dot, the more "
            "documents. On the dashed line a probability is the share of documents whose label is right; below it the "
            "model is too sure. The expected calibration error is the mean distance from that line over all documents: "
            f"{format_score(scores['ece'])}."
        )
        sections.append(Section("Calibration", figure=reliability_diagram(scores["reliability"]), caption=caption))
    if "per_label" in scores:
        shares = ("precision", "recall", "f1")
        rows = [
            (row["label"], *(format_percent(row[share]) for share in shares), row["support"])
            for row in scores["per_label"]
        ]
        columns = ("label", "precision", "recall", "F1", "support")
        sections.append(Section("Labels", columns=columns, rows=rows, detail=True))
    return sections
