"""The task of a training run, and its documents split, tokenized and ready for the model."""

import dataclasses
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.tokenizer import build_tokenizer, for_documents
from torch_linformer.data.windows import DocumentEncoder, with_text
from torch_linformer.errors import InputError
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening.load import load_tokenizer
from torch_linformer.reporting.tables import format_duration
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from torch_linformer.tasks.registry import TASKS
from torch_linformer.tasks.retrieval import POOLINGS, Retrieval
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import Examples, Task
from torch_linformer.tasks.whole_documents import Regression
from torch_linformer.training.describing import describe_data
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.splits import Splits
from torch_linformer.training.train_settings import OF_TEXT, OF_WORDS, TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

EVALUATIONS = 10  # of the validation documents, over the whole training
EVALUATED_TOKENS = 500_000  # of text, at most, that a language model is scored on
LEAST_EVALUATED = 20_000  # tokens for validation; more only if all evaluations together read no more than the training
SAMPLE = 20  # documents that tell how long it takes to tokenize one
WORTH_TELLING = 10.0  # seconds
TOKENIZER_CHARACTERS = 100_000_000  # that a tokenizer learns from, at most


def new_task(
    settings: TrainSettings,
    first: FirstModel | None,
    tokenizer: PreTrainedTokenizerFast,
    names: Sequence[str],
    documents: Dataset,
) -> Task:
    """The task that the settings, the first model, the names of the labels and the training documents set."""
    kind = TASKS[settings.task]
    if kind is MaskedLanguageModeling:
        options = {"packing": settings.packing, "whole_words": settings.whole_words}
        return MaskedLanguageModeling(tokenizer, settings.seed, **options)
    if kind is CausalLanguageModeling:
        return CausalLanguageModeling(tokenizer, settings.seed, packing=settings.packing)
    if kind is Retrieval:
        pooling = None if first is None else first.pooling
        pieces = _pieces(settings, first, tokenizer)
        return Retrieval(tokenizer, pooling if pooling in POOLINGS else "mean", pieces)
    if kind is SequenceToSequence:
        return SequenceToSequence(tokenizer, settings.target_length)
    if kind is Answering:
        typed = first is None or first.types_questions
        return Answering(tokenizer, typed=typed)
    if kind is Regression:
        values = np.asarray(documents["label"][:])
        return Regression(tokenizer, float(values.mean()), float(values.std()) or 1.0)
    if kind is Tagging:
        return tagging_of(tokenizer, names)
    return kind(tokenizer, names)


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
    tokenizer: PreTrainedTokenizerFast
    task: Task
    train: Examples
    validation: Examples
    test: Examples


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
    tokenizer = _tokenizer(settings, first, splits, checkpoint)
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
    return Prepared(splits, tokenizer, task, train, validation, test)


def _tokenizer(
    settings: TrainSettings, first: FirstModel | None, splits: Splits, checkpoint: Path | None
) -> PreTrainedTokenizerFast:
    options: dict[str, Any] = {"max_length": settings.length, "goes_on": settings.task in ("clm", "seq2seq")}
    if checkpoint is not None:
        return build_tokenizer(str(checkpoint), (), **options)
    if first is not None:
        return for_documents(load_tokenizer(first.source), **options)
    return build_tokenizer(settings.tokenizer, _texts(splits.train, settings.seed), **options)


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
