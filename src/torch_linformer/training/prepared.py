"""The task of a training run, its documents tokenized and ready for the model, and what is said of both."""

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.rows import some_of
from torch_linformer.data.tokenizer import build_tokenizer, for_documents
from torch_linformer.data.windows import DocumentEncoder, ask_of_lines, with_text
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.errors import InputError
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening.load import AnyConfig, AnyModel, load_tokenizer
from torch_linformer.opening.summary import attention_of
from torch_linformer.reporting.tables import format_count, format_duration, format_percent
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.registry import TASKS
from torch_linformer.tasks.retrieval import POOLINGS, queries_of
from torch_linformer.tasks.tagging import tagging_of
from torch_linformer.tasks.task import Examples, Task
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_model import has_new_head
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.splits import Splits
from torch_linformer.training.step_costs import ModelStep, step_of
from torch_linformer.training.train_settings import NO_WINDOWS, OF_TEXT, OF_WORDS, TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

EVALUATIONS = 10  # of the validation documents, over the whole training
EVALUATED_TOKENS = 500_000  # of text, at most, that a language model is scored on
LEAST_EVALUATED = 20_000  # tokens for validation; more only if all evaluations together read no more than the training
SAMPLE = 20  # documents that tell how long it takes to tokenize one
WORTH_TELLING = 10.0  # seconds
MOST = 0.5  # a share of the documents
READ_WHOLE = 0.9  # a share of them that a length should do for
LENGTHS = [2**power for power in range(4, 18)]  # up to 131,072 tokens
TOKENIZER_CHARACTERS = 100_000_000  # that a tokenizer learns from, at most


def new_task(
    settings: TrainSettings,
    first: FirstModel | None,
    tokenizer: PreTrainedTokenizerFast,
    names: Sequence[str],
    documents: Dataset,
) -> Task:
    """The task that the settings, the first model, the names of the labels and the training documents set."""
    kind: Any = TASKS[settings.task]
    match settings.task:
        case "mlm":
            options = {"packing": settings.packing, "whole_words": settings.whole_words}
            task = kind(tokenizer, settings.seed, **options)
        case "clm":
            task = kind(tokenizer, settings.seed, packing=settings.packing)
        case "embed":
            pooling = first.pooling if first is not None and first.pooling in POOLINGS else "mean"
            task = kind(tokenizer, pooling, _pieces(settings, first, tokenizer))
        case "seq2seq":
            task = kind(tokenizer, settings.target_length)
        case "qa":
            task = kind(tokenizer, typed=first is None or first.types_questions)
        case "regress":
            values = np.asarray(documents["label"][:])
            task = kind(tokenizer, float(values.mean()), float(values.std()) or 1.0)
        case "token-classify":
            task = tagging_of(tokenizer, names)
        case _:
            task = kind(tokenizer, names)
    return cast(Task, task)


def _pieces(
    settings: TrainSettings, first: FirstModel | None, tokenizer: PreTrainedTokenizerFast
) -> PieceVectors | None:
    """What makes several vectors of a document, or maps the one of an encoder that is kept as it is."""
    if first is not None and first.has_fitted_vectors:
        raise InputError(
            f"--from {first.source}: a map was fitted to its vectors, which another training would drop; begin with "
            "the encoder that it began with"
        )
    if settings.vectors == 1 and not settings.frozen:
        return None
    if first is not None and first.pooling in ("cls", "max"):
        remedy = "give --no-freeze" if settings.vectors == 1 else f"leave out --vectors {settings.vectors}"
        raise InputError(
            f"--freeze and --vectors take means of states, and {first.source} pools by {first.pooling}: {remedy}"
        )
    channels = SIZES[settings.size].hidden_size if first is None else first.reader.hidden_size
    window = settings.read_window or None
    return PieceVectors(channels, settings.vectors, window, *(DocumentEncoder(tokenizer, 64).marks if window else ()))


@dataclass(frozen=True)
class Prepared:
    """What a run trains on and is scored on."""

    splits: Splits
    task: Task
    train: Examples
    validation: Examples
    test: Examples


@dataclass(frozen=True)
class Start:
    """What a training begins with.

    Attributes:
        settings: completed by the first model, if there is one.
        first: the model of ``--from``.
        data: what is learned from and scored on, with the task.
        model: before its first step.
        output: folder for checkpoints.
        checkpoint: that the run goes on from.
        device: where it computes, and
        precision: in what.
    """

    settings: TrainSettings
    first: FirstModel | None
    data: Prepared
    model: AnyModel
    output: Path
    checkpoint: Path | None
    device: str
    precision: str

    @property
    def has_new_head(self) -> bool:
        """Whether another model has become a classifier whose head knows nothing yet."""
        return self.first is not None and has_new_head(
            self.first.config, self.data.task, cast(AnyConfig, self.model.config)
        )

    def step(self, rows: int) -> ModelStep:
        """A step of so many of the longest rows, to be measured."""
        length, training = self.settings.length, not self.settings.frozen
        return step_of(self.model, rows, length, self.device, self.precision, training=training)


def prepare(
    settings: TrainSettings,
    first: FirstModel | None,
    splits: Splits,
    checkpoint: Path | None,
    screen: TrainingScreen,
) -> Prepared:
    """Learn or load the tokenizer, and make the examples of the three parts of the documents."""
    for note in (*splits.notes, *splits.warnings):
        screen.say(note)
    options: dict[str, Any] = {"max_length": settings.length, "goes_on": settings.task in ("clm", "seq2seq")}
    if checkpoint is not None:
        tokenizer = build_tokenizer(str(checkpoint), (), **options)
    elif first is not None:
        tokenizer = for_documents(load_tokenizer(first.source), **options)
    else:
        tokenizer = build_tokenizer(settings.tokenizer, _texts(splits.train, settings.seed), **options)
    reader = DocumentEncoder(tokenizer, settings.length)
    parts = {name: with_text(getattr(splits, name), reader, screen.say) for name in ("train", "validation", "test")}
    splits = dataclasses.replace(splits, **parts)
    task = new_task(settings, first, tokenizer, splits.names, splits.train)
    whole = settings.task in OF_WORDS  # whose words are those of all of a document
    encoder = task.encoder(settings.length, overflow=settings.overflow, stride=settings.stride, whole=whole)
    began, sample = time.monotonic(), splits.train[:SAMPLE]["text"]
    encoder.ids(sample)
    seconds = (time.monotonic() - began) / len(sample)
    number = sum(map(len, (splits.train, splits.validation, splits.test)))
    if seconds * number > WORTH_TELLING and settings.task not in OF_TEXT:
        screen.say(f"tokenizing {number:,} documents: about {format_duration(seconds * number)}")
    train = task.examples(splits.train, encoder)
    task.learn(train)
    trained = settings.steps(len(train.windows)) * settings.batch_size * settings.length
    validated = min(EVALUATED_TOKENS, max(LEAST_EVALUATED, trained // EVALUATIONS))
    validation = task.examples(splits.validation, encoder, max(1, validated // settings.length))
    test = task.examples(splits.test, encoder, max(1, EVALUATED_TOKENS // settings.length))
    describe_data(splits, train, settings, screen)
    if isinstance(task, Answering):
        screen.say(f"answers have {task.max_answer_length:,} tokens at most, as the longest training answer")
    return Prepared(splits, task, train, validation, test)


def _texts(documents: Dataset, seed: int) -> Iterator[str]:
    """Documents in random order, up to as much text as a tokenizer learns from."""
    characters = 0
    for number in np.random.default_rng(seed).permutation(len(documents)):
        document = documents[int(number)]
        for text in filter(None, (document["text"], document.get("target"))):
            yield text
            characters += len(text)
        if characters > TOKENIZER_CHARACTERS:
            return


def describe_data(splits: Splits, train: Examples, settings: TrainSettings, screen: TrainingScreen) -> None:
    """How many documents there are for what, their labels and lengths, and what of them is not read."""
    tokens = train.num_tokens
    long = tokens > settings.length
    counted: dict[str, Callable[[Dataset], int]] = {"documents": len}
    if "queries" in splits.train.column_names:
        counted["queries"] = lambda part: len(queries_of(part))
    for name, count in counted.items():
        numbers = [format_count(count(part)) for part in (splits.train, splits.validation, splits.test)]
        screen.say("{} {name} to train on, {} for validation, {} held out".format(*numbers, name=name))
    if splits.names:
        screen.say(f"{len(splits.names)} labels: {some_of(splits.names)}")
    low, middle, high = (format_count(value) for value in np.quantile(tokens, (0.05, 0.5, 0.95)))
    lost = format_percent(float((tokens - np.minimum(tokens, settings.length)).sum() / tokens.sum()))
    fate = f"are cut at --max-length {settings.length}, which leaves out {lost} of all tokens"
    in_windows = settings.overflow == "windows" or settings.task in OF_TEXT
    if in_windows:
        fate = f"are longer than --max-length {settings.length}; {format_count(len(train.windows))} windows in all"
    screen.say(
        f"tokens a document: median {middle}, 5 % below {low}, 5 % above {high}; {format_percent(long.mean())} {fate}"
    )
    for question in ask_of_lines(sum(map(len, (splits.train, splits.validation, splits.test))), tokens):
        screen.say(question)
    if not in_windows and long.mean() > MOST:
        enough = float(np.quantile(tokens, READ_WHOLE))
        longer = next((length for length in LENGTHS if length >= enough), LENGTHS[-1])
        windows = "" if settings.task in NO_WINDOWS else "; --overflow windows reads all of them"
        screen.say(
            f"warning: most documents are cut: --max-length {longer} reads {format_percent((tokens <= longer).mean())} "
            f"of them whole, with steps of up to {longer / settings.length:.2g} times the time (--check measures it)"
            f"{windows}"
        )
    if settings.task == "seq2seq":
        tokens = np.asarray(train.windows["target_tokens"][:])
        long = tokens > settings.target_length
        screen.say(
            f"tokens a target: median {format_count(np.median(tokens))}; {format_percent(long.mean())} are cut at "
            f"--max-target-length {settings.target_length}"
        )


def describe_model(start: Start, screen: TrainingScreen) -> None:
    """What the training begins with, and what it computes on."""
    settings, model = start.settings, start.model
    if settings.from_model:
        name = f"from {settings.from_model}"
        keeps_all = settings.task in ("embed", "seq2seq") or isinstance(model, LinearEncoder)
        first = "nothing of it new" if keeps_all else "only its head is new"
        if settings.freeze_layers > 0:
            first += f"; the word embeddings stay, and of its layers the lowest {settings.freeze_layers}"
    else:
        name = settings.size
        embeddings = "latent semantics of the documents" if settings.task in OF_WORDS else "random"
        first = f"first word embeddings {embeddings}"
    size = f"{format_count(model.num_parameters())} parameters"
    screen.say(f"model {name}: {size}, {attention_of(model.config)}, {first}; {start.device}, {start.precision}")
