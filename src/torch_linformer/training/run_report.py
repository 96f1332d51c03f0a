"""What a finished run leaves: the model folder, its card, ``metrics.json``, ``report.html`` and a table."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerFast

import torch_linformer
from torch_linformer.errors import flag
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.checkpoints import Spent
from torch_linformer.opening.model_folder import reader_config
from torch_linformer.opening.run_folder import write_model
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.html import Headline, Section, render_report
from torch_linformer.reporting.plots import confusion_matrix, learning_curve, length_histogram
from torch_linformer.reporting.tables import (
    MISSING,
    format_comparison,
    format_count,
    format_duration,
    format_percent,
    format_score,
)
from torch_linformer.tasks.task import Task
from torch_linformer.training.splits import Splits
from torch_linformer.training.step_costs import StepCost
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

PAPER = "Wang, Li, Khabsa, Fang, Ma: Linformer: Self-Attention with Linear Complexity (arXiv 2006.04768)"

FLOORS = {
    "tfidf": "TF-IDF + logistic regression",
    "tfidf_ridge": "TF-IDF + ridge regression",
    "majority": "majority class",
    "mean": "mean of the training values",
    "frequent_tag": "most frequent tag of each word",
    "bzip2": "bzip2 behind training documents",
    "beginning": "beginning of the source",
}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run, before anything of it is written."""

    settings: TrainSettings
    command: str
    splits: Splits
    model: LinformerPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    task: Task
    scores: dict[str, Any]
    floors: dict[str, dict[str, float]]
    costs: tuple[StepCost | None, StepCost | None]
    history: list[dict[str, Any]]
    num_tokens: np.ndarray
    spent: Spent
    device: str
    precision: str

    @property
    def full_attention(self) -> bool:
        """Whether the model is the twin; with --from the settings do not say so."""
        return reader_config(self.model.config).attention == "full"

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``; a number that could not be measured is null."""
        ours, full = (asdict(cost) if cost else {} for cost in self.costs)
        return {
            **self.scores,
            **{f"{floor}_{name}": score for floor, scores in self.floors.items() for name, score in scores.items()},
            "train_seconds": self.spent.seconds,
            "training_tokens_per_second": self.spent.tokens_per_second,
            "tokens_per_second": ours.get("tokens_per_second"),
            "peak_memory_mb": ours.get("peak_memory_mb"),
            "full_attention_tokens_per_second": full.get("tokens_per_second"),
            "full_attention_peak_memory_mb": full.get("peak_memory_mb"),
            "parameters": self.model.num_parameters(),
            "documents": {
                "train": len(self.splits.train),
                "validation": len(self.splits.validation),
                "test": len(self.splits.test),
            },
            "device": self.device,
            "precision": self.precision,
        }


def write_outcome(outcome: Outcome, output: Path) -> None:
    """Fill the folder of the run; every file appears whole, and ``metrics.json`` last: it says the run is done."""
    write_model(outcome.model, outcome.tokenizer, output)
    write_text(output / "README.md", _model_card(outcome))
    write_text(output / "report.html", _report(outcome))
    write_json(output / "metrics.json", outcome.metrics)


def show_outcome(outcome: Outcome, output: Path, screen: TrainingScreen) -> None:
    """The table at the end of a run, and where everything lies."""
    screen.table("held-out documents, scored once", ("", *_score_columns(outcome)), _score_rows(outcome))
    screen.table("a training step", ("", "tokens/s", "peak memory, MB"), _cost_rows(outcome))
    screen.say(
        f"trained in {format_duration(outcome.spent.seconds)} at "
        f"{format_count(outcome.spent.tokens_per_second)} tokens/s; the model and report.html are in {output}"
    )


def _score_columns(outcome: Outcome) -> tuple[str, ...]:
    return tuple(name.replace("_", "-") for name in outcome.task.headline)


def _score_rows(outcome: Outcome) -> list[Sequence[object]]:
    name = "full attention" if outcome.full_attention else "Linformer"
    rows: list[Sequence[object]] = [(name, *(format_score(outcome.scores[key]) for key in outcome.task.headline))]
    for floor, scores in outcome.floors.items():
        rows.append(
            (FLOORS[floor], *(format_score(scores[key]) if key in scores else None for key in outcome.task.headline))
        )
    return rows


def _cost_rows(outcome: Outcome) -> list[Sequence[object]]:
    ours, full = outcome.costs
    rows: list[Sequence[object]] = []
    for name, cost in (("this model", ours), ("the same with full attention", full)):
        if cost is None:
            rows.append((name, "failed", "failed"))
        else:
            rows.append((name, format_count(cost.tokens_per_second), format_count(cost.peak_memory_mb)))
    if ours and full:
        rows.append(("this model beside it", *compare_costs(ours, full)))
    return rows


def compare_costs(ours: StepCost | None, full: StepCost | None) -> tuple[str, str]:
    """Speed and memory of a model beside those of its twin with full attention, in words; a dash where one failed."""
    if ours is None or full is None:
        return MISSING, MISSING
    speed = format_comparison(ours.tokens_per_second / full.tokens_per_second, "faster", "slower")
    if not ours.peak_memory_mb or not full.peak_memory_mb:  # so small a step that no page of memory was added
        return speed, MISSING
    return speed, format_comparison(ours.peak_memory_mb / full.peak_memory_mb, "more memory", "less memory")


def _report(outcome: Outcome) -> str:
    settings, scores = outcome.settings, outcome.scores
    headlines = [
        Headline(name=name, value=format_score(scores[key]), note=_floor_note(outcome, key))
        for name, key in zip(_score_columns(outcome), outcome.task.headline, strict=True)
    ]
    ours, full = outcome.costs
    if ours:
        beside = f"full attention {format_count(full.tokens_per_second)}" if full else "full attention failed"
        headlines.append(Headline(name="tokens/s", value=format_count(ours.tokens_per_second), note=beside))
    sections = [
        Section(
            heading="Data",
            text="\n\n".join((*outcome.splits.notes, *outcome.splits.warnings)),
            columns=("part", "documents"),
            rows=[(part, count) for part, count in outcome.metrics["documents"].items()],
        ),
        Section(
            heading="Length of the training documents",
            figure=length_histogram(outcome.num_tokens.tolist(), settings.length),
            caption="Tokens of whole documents; the line is what the model reads at once.",
        ),
        Section(
            heading="Learning curve",
            figure=learning_curve(
                outcome.history,
                f"eval_{outcome.task.best_metric}",
                larger_is_better=outcome.task.larger_is_better,
            ),
            caption="The weights that were best on the validation documents are the ones kept.",
        ),
        *_label_sections(outcome),
        Section(
            heading="Beside full attention",
            text=f"One training step of {settings.batch_size} × {settings.length:,} tokens, each model in a fresh "
            "process, stepping in turn. Peak memory is what the step takes beyond parameters and batch.",
            columns=("", "tokens/s", "peak memory, MB"),
            rows=_cost_rows(outcome),
        ),
        Section(heading="Settings", columns=("option", "value"), rows=_setting_rows(outcome)),
        Section(heading="Machine and versions", columns=("", ""), rows=machine_rows(outcome.device)),
    ]
    kind = "Full-attention twin" if outcome.full_attention else "Linformer"
    lead = (
        f"{format_count(outcome.model.num_parameters())} parameters, trained in "
        f"{format_duration(outcome.spent.seconds)} on {format_count(len(outcome.splits.train))} documents. "
        f"The scores are those of {format_count(len(outcome.splits.test))} documents the model never saw."
    )
    return render_report(f"{kind} on {settings.data}", sections, outcome.command, lead=lead, headlines=headlines)


def _floor_note(outcome: Outcome, key: str) -> str:
    return "\n".join(
        f"{FLOORS[floor]} {format_score(scores[key])}" for floor, scores in outcome.floors.items() if key in scores
    )


def _label_sections(outcome: Outcome) -> list[Section]:
    sections = []
    if "confusion_matrix" in outcome.scores:
        sections.append(
            Section(
                heading="Confusion matrix",
                figure=confusion_matrix(outcome.scores["confusion_matrix"], outcome.splits.names),
                caption="Held-out documents: a row is a true label, a column what was predicted.",
            )
        )
    if "per_label" in outcome.scores:
        rows = [
            (row["label"], *(format_percent(row[key]) for key in ("precision", "recall", "f1")), row["support"])
            for row in outcome.scores["per_label"]
        ]
        sections.append(Section(heading="Labels", columns=("label", "precision", "recall", "F1", "support"), rows=rows))
    return sections


def _setting_rows(outcome: Outcome) -> list[tuple[str, str]]:
    settings = outcome.settings
    given = {name: value for name, value in asdict(settings).items() if value is not None and settings.applies(name)}
    rows = [(flag(name), str(value)) for name, value in given.items()]
    return [
        *rows,
        ("K", str(reader_config(outcome.model.config).k)),
        ("device", outcome.device),
        ("precision", outcome.precision),
    ]


def machine_rows(device: str) -> list[tuple[str, str]]:
    """Name and value of what a run was made on, and with."""
    versions = {**package_versions(("torch", "transformers")), "torch-linformer": torch_linformer.__version__}
    return list({**machine_facts(device), **versions}.items())


def _model_card(outcome: Outcome) -> str:
    model_class = type(outcome.model).__name__
    columns = " | ".join(("", *_score_columns(outcome)))
    rows = "\n".join("| " + " | ".join(str(cell or "–") for cell in row) + " |" for row in _score_rows(outcome))
    warnings = "".join(f"\n{warning}\n" for warning in outcome.splits.warnings)
    return f"""---
library_name: transformers
pipeline_tag: {outcome.task.pipeline_tag}
tags: [linformer, long-documents]
---

# {outcome.settings.data}

A {reader_config(outcome.model.config).attention} model of {outcome.model.num_parameters():,} parameters that reads
{outcome.settings.length:,} tokens at once, trained by `{outcome.command or "torch_linformer"}`.

Scores on {len(outcome.splits.test):,} held-out documents:

|{columns} |
|---{"|---" * len(outcome.task.headline)}|
{rows}
{warnings}
```python
import torch_linformer
from transformers import AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH OF THIS FOLDER")
model = torch_linformer.{model_class}.from_pretrained("PATH OF THIS FOLDER")
{outcome.task.usage}
```

Made with torch-linformer {torch_linformer.__version__}. Source of the method: {PAPER}.
"""
