"""The task of a training run, and its documents split, tokenized and ready for the model."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from datasets import Dataset
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.tokenizer import build_tokenizer, for_documents
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening.model_folder import load_tokenizer, reader_config
from torch_linformer.opening.sentence_transformers import document_vectors, sentence_pooling
from torch_linformer.tasks.answering import Answering
from torch_linformer.tasks.language_modeling import CausalLanguageModeling, MaskedLanguageModeling
from torch_linformer.tasks.registry import TASKS
from torch_linformer.tasks.retrieval import POOLINGS, Retrieval
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence
from torch_linformer.tasks.tagging import Tagging, tagging_of
from torch_linformer.tasks.task import Examples, Task
from torch_linformer.tasks.whole_documents import Regression
from torch_linformer.training.describing import describe_data
from torch_linformer.training.first_model import first_config, pooling_of, token_types
from torch_linformer.training.model_settings import ModelSettings
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.splits import Splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

EVALUATIONS = 10  # of the validation documents, over the whole training
EVALUATED_TOKENS = 500_000  # of text, at most, that a language model is scored on
LEAST_EVALUATED = 20_000  # tokens for validation; more only if all evaluations together read no more than the training
TOKENIZER_CHARACTERS = 100_000_000  # that a tokenizer learns from, at most


def new_task(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerFast, names: Sequence[str], documents: Dataset
) -> Task:
    """The task that the settings, the names of the labels and the training documents set."""
    kind = TASKS[settings.task]
    if kind is MaskedLanguageModeling:
        options = {"packing": settings.packing, "whole_words": settings.whole_words}
        return MaskedLanguageModeling(tokenizer, settings.seed, **options)
    if kind is CausalLanguageModeling:
        return CausalLanguageModeling(tokenizer, settings.seed, packing=settings.packing)
    if kind is Retrieval:
        known = None if settings.from_model is None else pooling_of(settings.from_model)
        return Retrieval(tokenizer, known if known in POOLINGS else "mean", _pieces(settings, known))
    if kind is SequenceToSequence:
        return SequenceToSequence(tokenizer, settings.target_length)
    if kind is Answering:
        return Answering(tokenizer, typed=_is_typed(settings), max_answer_length=settings.max_answer_length)
    if kind is Regression:
        values = np.asarray(documents["label"][:])
        return Regression(tokenizer, float(values.mean()), float(values.std()) or 1.0)
    if kind is Tagging:
        return tagging_of(tokenizer, names)
    return kind(tokenizer, names)


def _pieces(settings: ModelSettings, pooling: str | None) -> PieceVectors | None:
    """What makes several vectors of a document, or maps the one of an encoder that is kept as it is."""
    channels = SIZES[settings.size].hidden_size
    if settings.from_model is not None:
        config: Any = reader_config(cast(Any, first_config(settings.from_model)))
        channels = config.hidden_size
        makes_vectors = sentence_pooling(settings.from_model) is not None
        before = document_vectors(settings.from_model, config).pieces if makes_vectors else None
        if before is not None and before.is_fitted:
            raise InputError(
                f"--from {settings.from_model}: a map was fitted to its vectors, which another training would drop; "
                "begin with the encoder that it began with"
            )
    if settings.vectors == 1 and not settings.freeze:
        return None
    option = "--freeze" if settings.vectors == 1 else f"--vectors {settings.vectors}"
    if pooling in ("cls", "max"):
        raise InputError(f"{option} takes means of states, and {settings.from_model} pools by {pooling}: leave it out")
    return PieceVectors(channels, settings.vectors, settings.read_window)


def _is_typed(settings: ModelSettings) -> bool:
    """Whether questions and texts have token types of their own; a model of this package can be given some."""
    if settings.from_model is None:
        return True
    config = first_config(settings.from_model)
    is_own = isinstance(config, LinformerConfig) and config.backbone_config is None
    return token_types(config) != 1 if is_own else token_types(config) > 1


@dataclass(frozen=True)
class Prepared:
    """What a run trains on and is scored on."""

    splits: Splits
    tokenizer: PreTrainedTokenizerFast
    task: Task
    train: Examples
    validation: Examples
    test: Examples


def prepare(settings: TrainSettings, splits: Splits, checkpoint: Path | None, screen: TrainingScreen) -> Prepared:
    """Learn or load the tokenizer, and make the examples of the three parts of the documents."""
    for note in (*splits.notes, *splits.warnings):
        screen.say(note)
    tokenizer = _tokenizer(settings, splits, checkpoint)
    task = new_task(settings, tokenizer, splits.names, splits.train)
    options: dict[str, Any] = {"overflow": settings.overflow, "stride": settings.stride}
    train = task.examples(splits.train, task.encoder(settings.length, **options))
    task.learn(train)
    encoder = task.encoder(settings.length, **options, whole=settings.with_lexical_part)
    trained = settings.steps(len(train.windows)) * settings.batch_size * settings.length
    validated = min(EVALUATED_TOKENS, max(LEAST_EVALUATED, trained // EVALUATIONS))
    validation = task.examples(splits.validation, encoder, max(1, validated // settings.length))
    test = task.examples(splits.test, encoder, max(1, EVALUATED_TOKENS // settings.length))
    describe_data(splits, train, settings, screen)
    if isinstance(task, Answering):
        screen.say(f"answers have {task.max_answer_length:,} tokens at most (--max-answer-length)")
    return Prepared(splits, tokenizer, task, train, validation, test)


def _tokenizer(settings: ModelSettings, splits: Splits, checkpoint: Path | None) -> PreTrainedTokenizerFast:
    options: dict[str, Any] = {"max_length": settings.length, "goes_on": settings.task in ("clm", "seq2seq")}
    if checkpoint is not None:
        return build_tokenizer(str(checkpoint), (), **options)
    if settings.from_model is not None:
        return for_documents(load_tokenizer(settings.from_model), **options)
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
