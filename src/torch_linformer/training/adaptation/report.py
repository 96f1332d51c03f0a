"""What a finished adaptation leaves: the model folder, its card, ``adaptation.json``, ``report.html`` and a table."""

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch_linformer
from torch_linformer.models import LinformerModel
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.html import Headline, Section, render_report
from torch_linformer.reporting.machine import machine_facts
from torch_linformer.reporting.plots import learning_curve
from torch_linformer.reporting.tables import format_count, format_duration, format_ratio
from torch_linformer.training.adaptation.settings import AdaptSettings
from torch_linformer.training.adaptation.source import Source, copy_sentence_modules
from torch_linformer.training.checkpoints import Spent
from torch_linformer.training.options import flag
from torch_linformer.training.probe import Cost
from torch_linformer.training.report import machine_rows
from torch_linformer.training.run_folder import write_model
from torch_linformer.training.screen import Screen, attention_of

RESULT = "adaptation.json"
SCORES = {
    "cosine": "cosine to the original",
    "rank_correlation": "rank correlation of similarities",
    "neighbours": "ten nearest kept",
}
COST_COLUMNS = ("tokens", "ours, tokens/s", "full attention", "times", "ours, MB", "full attention, MB")


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A finished adaptation, before anything of it is written."""

    source: Source
    settings: AdaptSettings
    command: str
    model: LinformerModel
    start: dict[str, float]
    end: dict[str, float]
    history: list[dict[str, Any]]
    costs: dict[int, tuple[Cost | None, Cost | None]]
    texts: tuple[int, int]
    spent: Spent
    device: str
    precision: str

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``adaptation.json``; a number that could not be measured is null."""
        return {
            "source": self.source.path,
            "settings": asdict(self.settings),
            "texts": dict(zip(("train", "test"), self.texts, strict=True)),
            "start": self.start,
            "end": self.end,
            "costs": [
                {
                    "tokens": length,
                    "ours": None if ours is None else asdict(ours),
                    "full_attention": None if full is None else asdict(full),
                }
                for length, (ours, full) in self.costs.items()
            ],
            "history": self.history,
            "seconds": self.spent.seconds,
            "tokens_per_second": self.spent.tokens_per_second,
            "device": self.device,
            "precision": self.precision,
            "machine": machine_facts(self.device),
        }


def write_adapted(adapted: Adapted, output: Path) -> None:
    """Fill the folder; every file appears whole, and ``adaptation.json`` last: it says that the run is done."""
    tokenizer = adapted.source.tokenizer
    tokenizer.model_max_length = adapted.model.config.max_position_embeddings
    write_model(_with_dropout(adapted), tokenizer, output)
    if adapted.source.sentences:
        copy_sentence_modules(adapted.source.path, output, tokenizer.model_max_length)
    write_text(output / "README.md", _model_card(adapted))
    write_text(output / "report.html", _report(adapted))
    write_json(output / RESULT, adapted.result)


def show_adapted(adapted: Adapted, output: Path, screen: Screen) -> None:
    """The tables at the end, and where everything lies."""
    screen.table(f"{adapted.texts[1]} texts held out", ("", "before training", "distilled"), _score_rows(adapted))
    screen.table("a forward pass", COST_COLUMNS, _cost_rows(adapted))
    screen.say(
        f"distilled in {format_duration(adapted.spent.seconds)} at "
        f"{format_count(adapted.spent.tokens_per_second)} tokens/s; the model and report.html are in {output}"
    )


def said(scores: dict[str, float]) -> str:
    """Scores in a sentence."""
    return ", ".join(f"{title} {scores[name]:.4f}" for name, title in SCORES.items())


def _with_dropout(adapted: Adapted) -> LinformerModel:
    """The model with the dropouts of the original, for those who train it further."""
    for name in ("hidden_dropout_prob", "attention_probs_dropout_prob"):
        setattr(adapted.model.config, name, getattr(adapted.source.model.config, name))
    return adapted.model


def _score_rows(adapted: Adapted) -> list[tuple[str, str, str]]:
    return [(title, f"{adapted.start[name]:.4f}", f"{adapted.end[name]:.4f}") for name, title in SCORES.items()]


def _cost_rows(adapted: Adapted) -> list[tuple[object, ...]]:
    rows: list[tuple[object, ...]] = []
    for length, (ours, full) in adapted.costs.items():
        times = format_ratio(ours.tokens_per_second / full.tokens_per_second) if ours and full else "–"
        speeds = [format_count(cost.tokens_per_second) if cost else "failed" for cost in (ours, full)]
        memory = [format_count(cost.peak_memory_mb) if cost else "failed" for cost in (ours, full)]
        rows.append((format_count(length), *speeds, times, *memory))
    return rows


def _report(adapted: Adapted) -> str:
    settings = [
        (flag(name), str(value)) for name, value in dataclasses.asdict(adapted.settings).items() if value is not None
    ]
    sections = [
        Section(
            heading="Beside the original",
            text="Texts held out. Neighbours are those among them, by similarity of the embeddings.",
            columns=("", "before training", "distilled"),
            rows=_score_rows(adapted),
        ),
        Section(heading="Distillation", figure=learning_curve(adapted.history, "eval_cosine")),
        Section(
            heading="Cost of a forward pass",
            text="One text of full length, ours and the same model with full attention (SDPA) in turn, each in a "
            "process of its own; memory is the peak of the process.",
            columns=COST_COLUMNS,
            rows=_cost_rows(adapted),
        ),
        Section(heading="Settings", columns=("", ""), rows=settings),
        Section(heading="Machine and versions", columns=("", ""), rows=machine_rows(adapted.device)),
    ]
    lead = (
        f"{adapted.source.path} with {attention_of(adapted.model.config)}, for "
        f"{adapted.model.config.max_position_embeddings:,} tokens; distilled in "
        f"{format_duration(adapted.spent.seconds)} on {format_count(adapted.texts[0])} texts without labels."
    )
    headlines = [
        Headline(name=title, value=f"{adapted.end[name]:.4f}", note=f"before training {adapted.start[name]:.4f}")
        for name, title in SCORES.items()
    ]
    return render_report(
        f"{Path(adapted.source.path).name}, adapted", sections, adapted.command, lead=lead, headlines=headlines
    )


def _model_card(adapted: Adapted) -> str:
    config = adapted.model.config
    rows = "\n".join(f"| {title} | {start} | {end} |" for title, start, end in _score_rows(adapted))
    library, usage = "transformers", 'model = AutoModel.from_pretrained("PATH OF THIS FOLDER")'
    imports = "from transformers import AutoModel"
    if adapted.source.sentences:
        library, imports = "sentence-transformers", "from sentence_transformers import SentenceTransformer"
        usage = 'model = SentenceTransformer("PATH OF THIS FOLDER")'
    return f"""---
library_name: {library}
tags: [linformer, long-documents]
---

# {Path(adapted.source.path).name}, adapted

{adapted.source.path} with linear attention: {attention_of(config)}, {config.max_position_embeddings:,} tokens at once.
Made by `{adapted.command or "torch_linformer"}`.

On {adapted.texts[1]} texts held out:

| | before training | distilled |
|---|---|---|
{rows}

```python
import torch_linformer
{imports}

{usage}
```

Made with torch-linformer {torch_linformer.__version__}. Source of the method: Wang, Li, Khabsa, Fang, Ma: Linformer:
Self-Attention with Linear Complexity (arXiv 2006.04768).
"""
