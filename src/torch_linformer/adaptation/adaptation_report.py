"""What a finished adaptation leaves: the model folder, its card, ``adaptation.json``, ``report.html`` and a table."""

import dataclasses
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch_linformer
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.pretrained_encoder import PretrainedEncoder, copy_sentence_modules
from torch_linformer.errors import flag
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.checkpoints import Spent
from torch_linformer.opening.run_folder import write_model
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.html import Headline, Section, render_report
from torch_linformer.reporting.plots import learning_curve
from torch_linformer.reporting.tables import MISSING, format_count, format_duration, format_score
from torch_linformer.training.run_report import compare_costs, machine_rows
from torch_linformer.training.step_costs import StepCost
from torch_linformer.training.training_screen import TrainingScreen

RESULT = "adaptation.json"


class Table(NamedTuple):
    """Headings, and rows of cells."""

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]


@dataclass(frozen=True)
class Tradeoff:
    """What the trained weights are worth with K slots, and what a text of full length costs."""

    k: int
    scores: dict[str, float]
    cost: StepCost | None


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A finished adaptation, before anything of it is written."""

    source: PretrainedEncoder
    settings: AdaptSettings
    command: str
    model: LinformerPreTrainedModel
    original: dict[str, float]
    start: dict[str, float]
    end: dict[str, float]
    tradeoff: list[Tradeoff]
    history: list[dict[str, Any]]
    costs: dict[int, tuple[StepCost | None, StepCost | None]]
    texts: tuple[int, int]
    spent: Spent
    device: str
    precision: str

    @property
    def longest(self) -> int:
        """Tokens that the adapted model reads at once."""
        return self.model.config.max_position_embeddings

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``adaptation.json``; a number that could not be measured is null."""
        return {
            "source": self.source.path,
            "task": self.source.objective.name,
            "settings": asdict(self.settings),
            "texts": dict(zip(("train", "test"), self.texts, strict=True)),
            "original": self.original,
            "start": self.start,
            "end": self.end,
            "tradeoff": [asdict(each) for each in self.tradeoff],
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
    tokenizer.model_max_length = adapted.longest
    write_model(adapted.model, tokenizer, output)
    if adapted.source.sentences:
        copy_sentence_modules(adapted.source.path, output, adapted.longest)
    write_text(output / "README.md", _model_card(adapted))
    write_text(output / "report.html", _report(adapted))
    write_json(output / RESULT, adapted.result)


def show_adapted(adapted: Adapted, output: Path, screen: TrainingScreen) -> None:
    """The tables at the end, and where everything lies."""
    screen.table(f"{adapted.texts[1]} texts held out", *_score_table(adapted))
    if adapted.tradeoff:
        screen.table("the same weights with other K", *_tradeoff_table(adapted))
    screen.table("a forward pass", *_cost_table(adapted.costs))
    screen.say(
        f"distilled in {format_duration(adapted.spent.seconds)} at "
        f"{format_count(adapted.spent.tokens_per_second)} tokens/s; the model and report.html are in {output}"
    )


def score_line(titles: dict[str, str], scores: dict[str, float]) -> str:
    """Scores in a sentence."""
    return ", ".join(f"{title} {format_score(scores[name])}" for name, title in titles.items() if name in scores)


def _titles(adapted: Adapted, scores: dict[str, float]) -> dict[str, str]:
    """Names and titles of scores: without labels some are missing."""
    return {name: title for name, title in adapted.source.objective.titles.items() if name in scores}


def _score_table(adapted: Adapted) -> Table:
    columns = {"before training": adapted.start, "distilled": adapted.end}
    if adapted.original:  # it has scores of its own where it has a head
        columns["the original itself"] = adapted.original
    rows = [
        (title, *(format_score(scores[name]) if name in scores else MISSING for scores in columns.values()))
        for name, title in _titles(adapted, adapted.end).items()
    ]
    return Table(("", *columns), rows)


def _tradeoff_table(adapted: Adapted) -> Table:
    """A column a K: a classifier has more scores than a terminal has room for columns."""
    each_k = adapted.tradeoff
    speeds, memories = zip(*(_cells(each.cost) for each in each_k), strict=True)
    rows = [
        *(
            (title, *(format_score(each.scores[name]) for each in each_k))
            for name, title in _titles(adapted, each_k[0].scores).items()
        ),
        (f"tokens/s of {format_count(adapted.longest)}", *speeds),
        ("MB", *memories),
    ]
    return Table(("K", *(format_count(each.k) for each in each_k)), rows)


def _cells(cost: StepCost | None) -> tuple[str, str]:
    """Speed and memory."""
    if cost is None:
        return "failed", "failed"
    return format_count(cost.tokens_per_second), format_count(cost.peak_memory_mb)


def _cost_table(costs: dict[int, tuple[StepCost | None, StepCost | None]]) -> Table:
    rows: list[tuple[str, ...]] = []
    for length, (ours, full) in costs.items():
        (speed, memory), (full_speed, full_memory) = _cells(ours), _cells(full)
        faster, more = compare_costs(ours, full)
        rows.append((format_count(length), speed, full_speed, faster, memory, full_memory, more))
    columns = ("tokens", "ours, tokens/s", "full attention", "ours is", "ours, MB", "full attention, MB", "ours takes")
    return Table(columns, rows)


def _report(adapted: Adapted) -> str:
    settings = [
        (flag(name), str(value)) for name, value in dataclasses.asdict(adapted.settings).items() if value is not None
    ]
    sections = [
        Section(
            heading="Beside the original",
            text="Texts held out. Neighbours are those among them, by similarity of the embeddings.",
            **_score_table(adapted)._asdict(),
        ),
        Section(
            heading="Distillation",
            figure=learning_curve(
                adapted.history,
                f"eval_{adapted.source.objective.best}",
                larger_is_better=adapted.source.objective.larger_is_better,
            ),
        ),
        *_tradeoff_section(adapted),
        Section(
            heading="Cost of a forward pass",
            text="One text of full length, ours and the same model with full attention (SDPA) in turn, each in a "
            "process of its own; peak memory is what the pass takes beyond parameters and text.",
            **_cost_table(adapted.costs)._asdict(),
        ),
        Section(heading="Settings", columns=("", ""), rows=settings),
        Section(heading="Machine and versions", columns=("", ""), rows=machine_rows(adapted.device)),
    ]
    lead = (
        f"{adapted.source.path} with {attention_of(adapted.model.config)}, for "
        f"{adapted.longest:,} tokens; distilled in "
        f"{format_duration(adapted.spent.seconds)} on {format_count(adapted.texts[0])} texts without labels."
    )
    headlines = [
        Headline(
            name=title,
            value=format_score(adapted.end[name]),
            note=f"before training {format_score(adapted.start[name])}",
        )
        for name, title in _titles(adapted, adapted.start).items()
    ]
    return render_report(
        f"{Path(adapted.source.path).name}, adapted", sections, adapted.command, lead=lead, headlines=headlines
    )


def _tradeoff_section(adapted: Adapted) -> list[Section]:
    """More slots cost time and memory: what they bring without training any further."""
    if not adapted.tradeoff:
        return []
    return [
        Section(
            heading="The same weights with other K",
            text="Means of segments have no weights that depend on K. Scores are those on the texts for validation, "
            "speed and memory those of a forward pass of one text of full length.",
            **_tradeoff_table(adapted)._asdict(),
        )
    ]


def _model_card(adapted: Adapted) -> str:
    columns, rows = _score_table(adapted)
    lines = "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, ["---"] * len(columns), *rows))
    auto = adapted.source.objective.auto_class
    library, usage = "transformers", f'model = {auto}.from_pretrained("PATH OF THIS FOLDER")'
    imports = f"from transformers import {auto}"
    if adapted.source.sentences:
        library, imports = "sentence-transformers", "from sentence_transformers import SentenceTransformer"
        usage = 'model = SentenceTransformer("PATH OF THIS FOLDER")'
    return f"""---
library_name: {library}
tags: [linformer, long-documents]
---

# {Path(adapted.source.path).name}, adapted

{adapted.source.path} with linear attention: {attention_of(adapted.model.config)}, {adapted.longest:,} tokens at once.
Made by `{adapted.command or "torch_linformer"}`.

On {adapted.texts[1]} texts held out:

{lines}

```python
import torch_linformer
{imports}

{usage}
```

Made with torch-linformer {torch_linformer.__version__}. Source of the method: Wang, Li, Khabsa, Fang, Ma: Linformer:
Self-Attention with Linear Complexity (arXiv 2006.04768).
"""
