"""What a finished adaptation leaves: the model folder, its card, ``adaptation.json``, ``report.html`` and tables."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch_linformer
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.comparison import WithoutSlots, verdict_on_slots
from torch_linformer.adaptation.objectives import chance_of_neighbours
from torch_linformer.adaptation.pretrained_encoder import PretrainedEncoder
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import flag
from torch_linformer.measuring.machine import machine_and_versions, machine_facts
from torch_linformer.opening.folder import Spent
from torch_linformer.opening.hub import card_of_source
from torch_linformer.opening.load import write_model
from torch_linformer.opening.sentence_transformers import copy_sentence_modules
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.plots import learning_curve
from torch_linformer.reporting.report import (
    Headline,
    Report,
    Section,
    markdown_table,
    name_in_title,
    render_html,
    render_template,
)
from torch_linformer.reporting.tables import format_count, format_duration, format_score
from torch_linformer.training.step_costs import Cost, StepCost, compare_costs, cost_cells
from torch_linformer.training.training_screen import TrainingScreen

RESULT = "adaptation.json"
Pair = tuple[Cost, Cost]  # of the model, and of the same one with full attention


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A finished adaptation, before anything of it is written; ``costs`` are by tokens of a text, longest first."""

    source: PretrainedEncoder
    settings: AdaptSettings
    command: str
    model: LinearEncoder
    original: dict[str, float]
    start: dict[str, float]
    end: dict[str, float]
    alone: WithoutSlots | None
    history: list[dict[str, Any]]
    costs: Mapping[int, Pair]
    texts: tuple[int, int]
    warnings: list[str]
    spent: Spent
    device: str
    precision: str

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``adaptation.json``; a cost that could not be measured is why."""

        def recorded(cost: Cost) -> dict[str, Any] | str:
            return cost if isinstance(cost, str) else asdict(cost)

        return {
            "source": self.source.path,
            "task": self.source.objective.name,
            "settings": asdict(self.settings),
            "texts": dict(zip(("train", "test"), self.texts, strict=True)),
            "original": self.original,
            "start": self.start,
            "end": self.end,
            "window_alone": self.alone and asdict(self.alone),
            "costs": [
                {"tokens": length, "ours": recorded(ours), "full_attention": recorded(full)}
                for length, (ours, full) in self.costs.items()
            ],
            "history": self.history,
            "seconds": self.spent.seconds,
            "tokens_per_second": self.spent.tokens_per_second,
            "device": self.device,
            "precision": self.precision,
            "machine": machine_facts(self.device),
        }

    @cached_property
    def report(self) -> Report:
        """What the terminal and ``report.html`` show."""
        objective, config, name = self.source.objective, self.model.config, name_in_title(self.source.path)
        chance = f"\nrandom guess {format_score(chance_of_neighbours(self.texts[1]))}"
        on_slots = verdict_on_slots(config.linear_options.k, objective.titles, objective.lower_is_better, self.alone)
        curve = learning_curve(
            "Distillation", self.history, f"eval_{objective.best}", larger_is_better=objective.larger_is_better
        )
        return Report(
            title=f"{name}, adapted",
            verdict="\n".join(filter(None, [_verdict(self), on_slots, *self.warnings])),
            lead=f"{name} with {attention_of(config)}, for {config.longest_input:,} tokens; distilled "
            f"in {format_duration(self.spent.seconds)} on {format_count(self.texts[0])} texts without labels.",
            headlines=[
                Headline(
                    title,
                    format_score(self.end[score]),
                    f"before training {format_score(self.start[score])}{chance if score == 'neighbours' else ''}",
                )
                for score, title in objective.titles.items()
                if score in self.start
            ],
            sections=[self.scores, curve, *([cost_section(self.costs)] if self.costs else [])],
            settings={flag(name): str(value) for name, value in asdict(self.settings).items() if value is not None},
            machine=machine_and_versions(self.device),
            command=self.command,
        )

    @cached_property
    def scores(self) -> Section:
        """The table of all scores; without labels some are missing."""
        columns: dict[str, Mapping[str, float]] = {"before": self.start, "distilled": self.end}
        text = (
            "Neighbors are the test texts with the most similar embeddings; random guess is the share that ten "
            "neighbors drawn at random would keep."
        )
        if self.alone:
            columns["without slots"] = self.alone.scores
            text += (
                " Without slots is the distilled model with its slots taken out, not distilled again; what slots add "
                "has its standard error."
            )
        if self.original:  # it has scores of its own where it has a head
            columns["original"] = self.original
        columns["random guess"] = {"neighbours": chance_of_neighbours(self.texts[1])}
        names, rows = ["score", *columns], []
        if self.alone:
            names.insert(4, "slots add")
        for name, title in self.source.objective.titles.items():
            if name in self.end:
                row = [title, *(format_score(of[name]) if name in of else None for of in columns.values())]
                if self.alone:
                    row.insert(4, str(self.alone.gains[name]))
                rows.append(row)
        return Section(
            f"Compared with the original, on {self.texts[1]} test texts", text=text, columns=names, rows=rows
        )


def write_student(source: PretrainedEncoder, student: LinearEncoder, output: Path) -> None:
    """Put the trained model into the folder, which is of use from then on; every file appears whole."""
    longest: int = student.config.longest_input
    source.tokenizer.model_max_length = longest
    write_model(student, source.tokenizer, output)
    if source.sentences:
        copy_sentence_modules(source.path, output, longest)


def write_report(adapted: Adapted, output: Path) -> None:
    """Put what was measured beside the model, and ``adaptation.json`` last: it says that the run is done."""
    card = render_template(
        "adaptation/model_card.md",
        version=torch_linformer.__version__,
        title=adapted.report.title,
        **card_of_source(adapted.source.path),
        data=adapted.settings.data,
        training_texts=format_count(adapted.texts[0]),
        problem_type=getattr(adapted.model.config, "problem_type", None),
        attention=attention_of(adapted.model.config),
        length=format_count(adapted.model.config.longest_input),
        command=adapted.command or "torch_linformer",
        texts=adapted.texts[1],
        scores=markdown_table(adapted.scores.columns, adapted.scores.rows),
        warnings=adapted.warnings,
        sentences=adapted.source.sentences,
        auto_class=adapted.source.objective.auto_class,
    )
    write_text(output / "README.md", card)
    write_text(output / "report.html", render_html(adapted.report))
    write_json(output / RESULT, adapted.result)


def show_adapted(adapted: Adapted, output: Path, screen: TrainingScreen) -> None:
    """The tables at the end, and where everything is."""
    screen.report(adapted.report)
    screen.say(
        f"distilled in {format_duration(adapted.spent.seconds)} at "
        f"{format_count(adapted.spent.tokens_per_second)} tokens/s; the model and report.html are in {output}"
    )


def score_line(titles: Mapping[str, str], scores: Mapping[str, float], texts: int) -> str:
    """Scores on that many texts in a sentence, with what chance gives for the one of which that is known."""
    chance = {"neighbours": f" (random guess {format_score(chance_of_neighbours(texts))})"}
    return ", ".join(
        f"{title} {format_score(scores[name])}{chance.get(name, '')}"
        for name, title in titles.items()
        if name in scores
    )


def _verdict(adapted: Adapted) -> str:
    """How much faster the model is at which lengths, and how close to the original: what a buyer asks."""
    titles, lower_is_better = adapted.source.objective.titles, adapted.source.objective.lower_is_better
    first = next(iter(titles))
    close = {name: adapted.end[name] for name in (first, "neighbours")}
    likeness = f"On texts held out: {score_line(titles, close, adapted.texts[1])}."
    if (adapted.end[first] - adapted.start[first]) * (-1 if first in lower_is_better else 1) <= 0:
        likeness += f" Training did not help: before it, {titles[first]} was {format_score(adapted.start[first])}."
    if not adapted.costs:
        return f"{likeness} Its speed was not measured."
    speeds = [
        f"{compare_costs(*pair)[0]} with a text of {format_count(length)} tokens"
        for length, pair in adapted.costs.items()
        if all(isinstance(cost, StepCost) for cost in pair)
    ]
    failures = dict.fromkeys(cost for pair in adapted.costs.values() for cost in pair if isinstance(cost, str))
    speed = " and ".join(speeds) or f"not measured ({', '.join(failures)})"
    return f"{likeness} A forward pass, compared with full attention: {speed}."


def cost_section(costs: Mapping[int, Pair]) -> Section:
    """A table of the costs by length."""
    rows = []
    for length, (ours, full) in costs.items():
        (speed, memory), (full_speed, full_memory) = cost_cells(ours), cost_cells(full)
        faster, more = compare_costs(ours, full)
        rows.append((format_count(length), speed, full_speed, faster, memory, full_memory, more))
    return Section(
        "Cost of a forward pass",
        text="One text of as many tokens as the model reads, and one of the median of the test texts; the adapted "
        "model and the same model with full attention (SDPA) in turn, each in its own process. Peak memory is that of "
        "the pass, without parameters and input.",
        columns=("tokens", "ours, tokens/s", "full, tokens/s", "ours is", "ours, MB", "full, MB", "ours takes"),
        rows=rows,
    )
