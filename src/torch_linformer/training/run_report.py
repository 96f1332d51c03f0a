"""What a finished run leaves: the model folder, its card, ``metrics.json``, ``report.html`` and tables."""

import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch_linformer
from torch_linformer.data.reading.sources import STDLIB
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder
from torch_linformer.encoders.heads import AUTO_OF_HEAD, head_of
from torch_linformer.errors import flag
from torch_linformer.measuring.machine import machine_and_versions
from torch_linformer.models import LinformerConfig
from torch_linformer.opening.folder import Spent, write_columns
from torch_linformer.opening.hub import card_of_source
from torch_linformer.opening.load import reader_config, write_model
from torch_linformer.opening.sentence_transformers import write_sentence_modules
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.plots import confusion_matrix, learning_curve, length_histogram, reliability_diagram
from torch_linformer.reporting.report import (
    Headline,
    Report,
    Section,
    markdown_table,
    name_in_title,
    render_html,
    render_template,
)
from torch_linformer.reporting.tables import format_count, format_duration, format_percent, format_score, score_title
from torch_linformer.tasks.baselines import BASELINES
from torch_linformer.tasks.metrics import BINS, paired_difference
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.training.document_parts import NETWORK, SUM, Weighed, worth_of_parts
from torch_linformer.training.learned_search import LearnedSearch
from torch_linformer.training.prepared import Start
from torch_linformer.training.step_costs import Cost, StepCost, compare_costs, cost_cells
from torch_linformer.training.train_settings import OF_TEXT
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.verdict import verdict

MANY_CUT = 0.05  # a share of the documents


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """A finished run, before anything of it is written."""

    start: Start
    command: str
    scores: dict[str, Any]
    weighed: Weighed | None
    search: LearnedSearch | None
    baselines: dict[str, dict[str, Any]]
    costs: tuple[Cost, Cost] | None
    history: list[dict[str, Any]]
    spent: Spent

    @property
    def config(self) -> LinformerConfig:
        """The configuration of what reads documents, by the names of this package."""
        reader = reader_config(self.start.model.config)
        return LinformerConfig(backbone_config=reader) if isinstance(reader, LinearConfig) else reader

    @property
    def method(self) -> str:
        """What the model is called in its report."""
        if self.weighed is not None and self.weighed.shipped == SUM:
            return " and ".join(part.name for part in self.weighed.parts)
        # With --from it is the first model that says so.
        model = "full attention" if self.config.attention == "full" else "Linformer"
        if self.weighed is not None and self.weighed.shipped != NETWORK:
            return self.weighed.shipped
        if (settings := self.start.settings).task == "embed" and settings.frozen:
            number = settings.vectors
            model = f"{number} vector{'s' * (number > 1)} of a document"
        return model if self.search is None else self.search.name(model)

    @property
    def parts(self) -> dict[str, dict[str, Any]]:
        """The scores of each of several parts alone, by its name in a report."""
        if self.weighed is not None and len(self.weighed.parts) > 1:
            names = {part.name: f"{part.name} alone" for part in self.weighed.parts} | {SUM: f"{SUM} together"}
            return {names[name]: row for name, row in self.weighed.scores.items() if name != self.weighed.shipped}
        if self.search is None or not self.search.has_words:
            return {}
        return {"words alone": self.search.test["lexical"], "without the words": self.search.test["rest"]}

    @cached_property
    def verdict(self) -> str:
        """What each part is worth, and whether the model is better than the strongest simple method."""
        task, simple = self.start.data.task, {BASELINES[name]: row for name, row in self.baselines.items()}
        if self.weighed is None:
            simple |= {name: row for name, row in self.parts.items() if name.endswith("alone")}
        elif len(self.weighed.parts) > 1:
            simple |= self.parts
        compared = verdict(task.headline, task.larger_is_better, self.scores, simple, _advice(self), task.counted)
        worth = "" if self.weighed is None else worth_of_parts(self.weighed, task)
        return f"{worth} {compared}".strip()

    @property
    def metrics(self) -> dict[str, Any]:
        """The content of ``metrics.json``; a number that could not be measured is null."""
        ours, full = (asdict(cost) if isinstance(cost, StepCost) else {} for cost in self.costs or (None, None))
        start, parts = self.start, ("train", "validation", "test")
        return {
            **{name: score for name, score in self.scores.items() if name != "tallies"},
            **{
                f"{other}_{name}": score
                for other, scores in (*self._named_parts, *self.baselines.items())
                for name, score in start.data.task.heading(scores).items()
            },
            "method": self.method,
            "verdict": self.verdict,
            "train_seconds": self.spent.all_seconds,
            "training_tokens_per_second": self.spent.tokens_per_second,
            "tokens_per_second": ours.get("tokens_per_second"),
            "peak_memory_mb": ours.get("peak_memory_mb"),
            "full_attention_tokens_per_second": full.get("tokens_per_second"),
            "full_attention_peak_memory_mb": full.get("peak_memory_mb"),
            "parameters": start.model.num_parameters(),
            "documents": {part: len(getattr(start.data.splits, part)) for part in parts},
            "device": start.device,
            "precision": start.precision,
        }

    @property
    def _named_parts(self) -> list[tuple[str, dict[str, Any]]]:
        """The parts by their names in ``metrics.json``: words, reader, network, both; of a search lexical and rest."""
        if self.search is not None and self.search.has_words:
            return [(name, self.search.test[name]) for name in ("lexical", "rest")]
        if self.weighed is None or len(self.weighed.parts) == 1:
            return []
        named = [(part.name.split()[-1], self.weighed.scores[part.name]) for part in self.weighed.parts]
        return [*named, *[(SUM, self.weighed.scores[SUM])] * (self.weighed.shipped != SUM)]

    @cached_property
    def report(self) -> Report:
        """What the terminal and ``report.html`` show."""
        kind = "Full-attention twin" if self.method == "full attention" else self.method
        start, splits = self.start, self.start.data.splits
        return Report(
            title=f"{kind[0].upper()}{kind[1:]} on {name_in_title(start.settings.data)}",
            verdict="\n".join(filter(None, [self.verdict, *splits.warnings])),
            lead=f"{format_count(start.model.num_parameters())} parameters, trained in "
            f"{format_duration(self.spent.all_seconds)} on {format_count(len(splits.train))} documents. "
            f"The scores are those of {format_count(len(splits.test))} documents the model never saw.",
            headlines=_headlines(self),
            sections=[_scores(self), *_costs(self), *_data(self), *_labels(self.scores, splits.names)],
            settings=_settings(self),
            machine=machine_and_versions(start.device),
            command=self.command,
        )


def write_outcome(outcome: Outcome, output: Path) -> None:
    """Fill the folder of the run; every file appears whole, and ``metrics.json`` last: it says the run is done."""
    start, task = outcome.start, outcome.start.data.task
    write_model(start.model, task.tokenizer, output)
    if isinstance(task, Retrieval):
        write_sentence_modules(start.model.config, output, task.vectors)
    write_text(output / "README.md", _model_card(outcome))
    write_text(output / "report.html", render_html(outcome.report))
    write_columns(start.data.splits.columns, output)
    write_json(output / "metrics.json", outcome.metrics)


def show_outcome(outcome: Outcome, output: Path, screen: TrainingScreen) -> None:
    """The tables at the end of a run, and where everything is."""
    screen.report(outcome.report)
    screen.say(
        f"trained in {format_duration(outcome.spent.all_seconds)} at "
        f"{format_count(outcome.spent.tokens_per_second)} tokens/s; the model and report.html are in {output}"
    )
    examples = outcome.search.hits if outcome.search else []
    for query, hits in examples:
        screen.say("\n".join([f"\n{query}", *(f"  {hit}" for hit in hits)]))
    if examples:
        searched = outcome.start.settings.documents or outcome.start.settings.data
        searched = sysconfig.get_paths()["stdlib"] if searched == STDLIB else searched
        screen.say(f'\nto ask your own:  linformer search {output} --documents {searched} "a question"')


def _headlines(outcome: Outcome) -> list[Headline]:
    """The scores with those of the baselines, and the speed."""
    headlines = []
    for key in outcome.start.data.task.headline:
        others = {BASELINES[name]: scores[key] for name, scores in outcome.baselines.items() if key in scores}
        note = "\n".join(f"{name} {format_score(score)}" for name, score in others.items())
        headlines.append(Headline(score_title(key), format_score(outcome.scores[key]), note))
    ours, full = outcome.costs or (None, None)
    if isinstance(ours, StepCost):
        beside = f"full attention {cost_cells(full)[0]}"
        headlines.append(Headline("tokens/s", format_count(ours.tokens_per_second), beside))
    return headlines


def _scores(outcome: Outcome) -> Section:
    """The model beside what it must beat."""
    task, scores = outcome.start.data.task, {outcome.method: outcome.scores}
    scores |= outcome.parts
    scores |= {BASELINES[name]: row for name, row in outcome.baselines.items()}
    keys, best = task.headline, task.best_metric
    rows = [(name, *(format_score(row[key]) if key in row else None for key in keys)) for name, row in scores.items()]
    columns: tuple[str, ...] = ("method", *map(score_title, keys))
    if isinstance(task, Retrieval):  # how much better the model is, on the same queries
        ours = outcome.scores["tallies"][best]
        gains = [paired_difference(ours, row["tallies"][best]) if "tallies" in row else None for row in scores.values()]
        columns = (*columns, f"{score_title(best)} below the model (s.e.)")
        rows = [
            (*row, None if gain is None or row[0] == outcome.method else f"{gain[0]:+.4f} (± {gain[1]:.4f})")
            for row, gain in zip(rows, gains, strict=True)
        ]
    return Section("Held-out documents, scored once", columns=columns, rows=rows)


def _advice(outcome: Outcome) -> str:
    """What to try where a model is not clearly better than what it must beat."""
    settings, data = outcome.start.settings, outcome.start.data
    if data.task.larger_is_better and outcome.scores[data.task.best_metric] == 1:
        return ""
    best = f"eval_{data.task.best_metric}"
    ideas = [] if settings.from_model else ["--from an adapted encoder"]
    if settings.frozen:
        ideas.append("training the encoder: --no-freeze")
    curve = [entry[best] for entry in outcome.history if best in entry]
    pick = max if data.task.larger_is_better else min
    if len(curve) > 1 and curve[-1] != pick(curve[:-1]) and curve[-1] == pick(curve):
        ideas.append("more --epochs, as the last evaluation was the best")
    cut = float((data.train.num_tokens > settings.length).mean())
    if settings.overflow == "cut" and settings.task not in OF_TEXT and cut > MANY_CUT:
        ideas.append(f"a longer --max-length, as {format_percent(cut)} of the documents are cut")
    return f" To try next: {'; '.join([*ideas, 'or keep the simpler method'])}."


def _costs(outcome: Outcome) -> list[Section]:
    if outcome.costs is None:
        return []
    settings, (ours, full) = outcome.start.settings, outcome.costs
    rows = [("this model", *cost_cells(ours)), ("the same with full attention", *cost_cells(full))]
    if isinstance(ours, StepCost) and isinstance(full, StepCost):
        rows.append(("this model is", *compare_costs(ours, full)))
    text = (
        f"One training step of {settings.batch_size} × {settings.length:,} tokens, both models in turn; a step that "
        "would take over 2 minutes is left out. Peak memory is that of the step, without parameters and batch."
    )
    columns = ("model", "tokens/s", "peak memory, MB")
    return [Section("A training step, compared with full attention", text=text, columns=columns, rows=rows)]


def _data(outcome: Outcome) -> list[Section]:
    data, splits, task = outcome.start.data, outcome.start.data.splits, outcome.start.data.task
    lengths = length_histogram(data.train.num_tokens.tolist(), outcome.start.settings.length)
    documents = {f"{part} documents": count for part, count in outcome.metrics["documents"].items()}
    cut = "Tokens of whole documents; the line is what the model reads at once."
    kept = "The weights that were best on the validation documents are the ones kept."
    metric, higher = f"eval_{task.best_metric}", task.larger_is_better
    sections = [
        Section("Data", text="\n\n".join(splits.notes), facts=documents | splits.repeats, detail=True),
        Section("Length of the training documents", figure=lengths, caption=cut),
    ]
    if outcome.history:
        sections.append(
            learning_curve("Learning curve", outcome.history, metric, larger_is_better=higher, caption=kept)
        )
    return sections


def _labels(scores: Mapping[str, Any], names: Sequence[str]) -> list[Section]:
    """Which labels are taken for which, how good each is, and what probabilities are worth, where there are scores."""
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


def _settings(outcome: Outcome) -> dict[str, object]:
    start, config = outcome.start, outcome.config
    chosen = {name: value for name, value in asdict(start.settings).items() if start.settings.applies(name)}
    decided = {"K": str(config.k), "device": start.device, "precision": start.precision}
    if config.problem_type == "multi_label_classification":
        decided["labels predicted above"] = f"{config.threshold:.3g}"
    if config.max_answer_length is not None:
        decided["tokens of an answer at most"] = str(config.max_answer_length)
    return {**{flag(name): str(value) for name, value in chosen.items() if value is not None}, **decided}


def _model_card(outcome: Outcome) -> str:
    start, data, scores = outcome.start, outcome.start.data, _scores(outcome)
    opener, head = f"torch_linformer.{type(start.model).__name__}", head_of(start.model)
    if isinstance(start.model, LinearEncoder):
        opener = f"transformers.{'AutoModel' if head == 'none' else AUTO_OF_HEAD[head].__name__}"
    return render_template(
        "training/model_card.md",
        version=torch_linformer.__version__,
        title=name_in_title(start.settings.data),
        **card_of_source(start.settings.from_model),
        data=start.settings.data,
        training_documents=format_count(len(data.splits.train)),
        task=data.task,
        attention=outcome.config.attention,
        parameters=format_count(start.model.num_parameters()),
        length=format_count(start.settings.length),
        command=outcome.command or "torch_linformer",
        documents=format_count(len(data.splits.test)),
        scores=markdown_table(scores.columns, scores.rows),
        verdict=outcome.verdict,
        warnings=data.splits.warnings,
        opener=opener,
    )
