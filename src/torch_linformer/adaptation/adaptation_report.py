"""What a finished adaptation leaves: the model folder, its card, ``adaptation.json``, ``report.html`` and tables."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch_linformer
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation_costs import Pair
from torch_linformer.adaptation.comparison import WithoutSlots, verdict_on_slots
from torch_linformer.adaptation.cost_sections import cost_sections
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


@dataclass(frozen=True)
class Tradeoff:
    """What the trained weights are worth with K slots, and what a text of full length costs."""

    k: int
    scores: dict[str, float]
    cost: Cost | None


@dataclass(frozen=True, kw_only=True)
class Adapted:
    """A finished adaptation, before anything of it is written."""

    source: PretrainedEncoder
    settings: AdaptSettings
    command: str
    model: LinearEncoder
    original: dict[str, float]
    start: dict[str, float]
    end: dict[str, float]
    alone: WithoutSlots | None
    tradeoff: list[Tradeoff]
    history: list[dict[str, Any]]
    costs: Mapping[int, Pair]
    texts: tuple[int, int]
    warnings: list[str]
    spent: Spent
    device: str
    precision: str

    @property
    def longest(self) -> int:
        """Tokens that the adapted model reads at once."""
        longest: int = self.model.config.longest_input
        return longest

    @property
    def chance(self) -> dict[str, float]:
        """What chance gives on the texts held out, for the score of which that is known."""
        return {"neighbours": chance_of_neighbours(self.texts[1])}

    @property
    def result(self) -> dict[str, Any]:
        """The content of ``adaptation.json``; a cost that could not be measured is why."""
        return {
            "source": self.source.path,
            "task": self.source.objective.name,
            "settings": asdict(self.settings),
            "texts": dict(zip(("train", "test"), self.texts, strict=True)),
            "original": self.original,
            "start": self.start,
            "end": self.end,
            "window_alone": self.alone and asdict(self.alone),
            "tradeoff": [asdict(row) for row in self.tradeoff],
            "costs": [
                {"tokens": length, "ours": _recorded(ours), "full_attention": _recorded(full)}
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
        objective, name = self.source.objective, name_in_title(self.source.path)
        k, titles = self.model.config.linear_options.k, objective.titles
        verdicts = [_verdict(self), verdict_on_slots(k, titles, objective.lower_is_better, self.alone)]
        curve = learning_curve(
            "Distillation", self.history, f"eval_{objective.best}", larger_is_better=objective.larger_is_better
        )
        return Report(
            title=f"{name}, adapted",
            verdict="\n".join(filter(None, [*verdicts, *self.warnings])),
            lead=f"{name} with {attention_of(self.model.config)}, for {self.longest:,} tokens; distilled "
            f"in {format_duration(self.spent.seconds)} on {format_count(self.texts[0])} texts without labels.",
            headlines=[
                Headline(title, format_score(self.end[score]), _beside(score, self))
                for score, title in objective.titles.items()
                if score in self.start
            ],
            sections=[_scores(self), curve, *_tradeoff(self), *cost_sections(self.costs)],
            settings={flag(name): str(value) for name, value in asdict(self.settings).items() if value is not None},
            machine=machine_and_versions(self.device),
            command=self.command,
        )


def _recorded(cost: Cost) -> dict[str, Any] | str:
    return cost if isinstance(cost, str) else asdict(cost)


def write_student(source: PretrainedEncoder, student: LinearEncoder, output: Path) -> None:
    """Put the trained model into the folder, which is of use from then on; every file appears whole."""
    longest: int = student.config.longest_input
    source.tokenizer.model_max_length = longest
    write_model(student, source.tokenizer, output)
    if source.sentences:
        copy_sentence_modules(source.path, output, longest)


def write_report(adapted: Adapted, output: Path) -> None:
    """Put what was measured beside the model, and ``adaptation.json`` last: it says that the run is done."""
    write_text(output / "README.md", _model_card(adapted))
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
    chance = {"neighbours": f" (chance {format_score(chance_of_neighbours(texts))})"}
    return ", ".join(
        f"{title} {format_score(scores[name])}{chance.get(name, '')}"
        for name, title in titles.items()
        if name in scores
    )


def _beside(score: str, adapted: Adapted) -> str:
    """What a score at the head of the page is compared with."""
    before = f"before training {format_score(adapted.start[score])}"
    return f"{before}\nchance {format_score(adapted.chance[score])}" if score in adapted.chance else before


def _score_rows(adapted: Adapted, columns: Iterable[Mapping[str, float]]) -> list[tuple[object, ...]]:
    """A row for each score that there is: without labels some are missing."""
    return [
        (title, *(format_score(scores[name]) if name in scores else None for scores in columns))
        for name, title in adapted.source.objective.titles.items()
        if name in adapted.end
    ]


def _scores(adapted: Adapted) -> Section:
    objective = adapted.source.objective
    columns: dict[str, Mapping[str, float]] = {"before": adapted.start, "distilled": adapted.end}
    if adapted.alone:
        columns["window only"] = adapted.alone.scores
    if adapted.original:  # it has scores of its own where it has a head
        columns["original"] = adapted.original
    columns["chance"] = adapted.chance
    names, rows = ["score", *columns], _score_rows(adapted, columns.values())
    text = (
        "Neighbors are the test texts with the most similar embeddings; chance is the share that ten neighbors drawn "
        "at random would keep."
    )
    if adapted.alone:
        names.insert(4, "slots add")
        gains = [str(adapted.alone.gains[name]) for name in objective.titles if name in adapted.end]
        rows = [(*row[:4], gain, *row[4:]) for row, gain in zip(rows, gains, strict=True)]
        text += (
            " Window only is the distilled model without its slots, not distilled again; what slots add has its "
            "standard error."
        )
    return Section(
        f"Compared with the original, on {adapted.texts[1]} test texts",
        text=text,
        columns=names,
        rows=rows,
    )


def _verdict(adapted: Adapted) -> str:
    """How much faster the model is at which lengths, and how close to the original: what a buyer asks."""
    titles = adapted.source.objective.titles
    close = {name: adapted.end[name] for name in (next(iter(titles)), "neighbours")}
    likeness = score_line(titles, close, adapted.texts[1])
    if not adapted.costs:
        return f"On texts held out: {likeness}. Its speed was not measured."
    speeds = [
        f"{compare_costs(*pair)[0]} with a text of {format_count(length)} tokens"
        for length, pair in adapted.costs.items()
        if all(isinstance(cost, StepCost) for cost in pair)
    ]
    failures = {cost: None for pair in adapted.costs.values() for cost in pair if isinstance(cost, str)}
    speed = " and ".join(speeds) or f"not measured ({', '.join(failures)})"
    return f"On texts held out: {likeness}. A forward pass, compared with full attention: {speed}."


def _tradeoff(adapted: Adapted) -> list[Section]:
    """A column a K, because a classifier has more scores than a terminal has room for columns."""
    if not adapted.tradeoff:
        return []
    scores = _score_rows(adapted, [row.scores for row in adapted.tradeoff])
    speeds, memories = zip(*(cost_cells(row.cost) for row in adapted.tradeoff), strict=True)
    text = (
        "Means of segments have no weights that depend on K, except for their learned mass, which is left out for "
        "another K. Scores are on the validation texts; speed and memory are of a forward pass of one text of full "
        "length."
    )
    columns = ("K", *(format_count(row.k) for row in adapted.tradeoff))
    rows = [*scores, (f"tokens/s of {format_count(adapted.longest)}", *speeds), ("MB", *memories)]
    return [Section("The same weights with other K", text=text, columns=columns, rows=rows)]


def _model_card(adapted: Adapted) -> str:
    scores = _scores(adapted)
    return render_template(
        "adaptation/model_card.md",
        version=torch_linformer.__version__,
        title=adapted.report.title,
        **card_of_source(adapted.source.path),
        data=adapted.settings.data,
        training_texts=format_count(adapted.texts[0]),
        problem_type=getattr(adapted.model.config, "problem_type", None),
        attention=attention_of(adapted.model.config),
        length=format_count(adapted.longest),
        command=adapted.command or "torch_linformer",
        texts=adapted.texts[1],
        scores=markdown_table(scores.columns, scores.rows),
        warnings=adapted.warnings,
        sentences=adapted.source.sentences,
        auto_class=adapted.source.objective.auto_class,
    )
