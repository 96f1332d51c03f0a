"""Texts to learn from, for validation and held out: read, split, tokenized, and some of them cut short."""

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from datasets import Dataset
from datasets.fingerprint import Hasher

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.objectives import Embeddings, Labels
from torch_linformer.data.labels import check_labels, name_labels
from torch_linformer.data.parts import parse_part, split_documents
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import Documents, load_documents, quiet
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.windows import DocumentEncoder, ask_of_lines, tokenize_documents, with_text
from torch_linformer.errors import InputError
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_percent

CUT = 0.25  # share of the texts that are cut to a random length, so that the student learns every length
SHORTEST = 8  # tokens of such a text
VALIDATED, TESTED = 128, 512  # texts
LEAST_TEXTS = 20  # enough for ten nearest neighbors


class Part(NamedTuple):
    """The tokens of texts, and the texts as they were read, perhaps with labels."""

    windows: Dataset
    documents: Dataset

    def sample(self, texts: int) -> "Part":
        """At most so many of the texts, drawn, in their order."""
        numbers = np.sort(np.random.default_rng(0).permutation(len(self.documents))[:texts])
        return Part(self.windows.select(numbers), self.documents.select(numbers))


@dataclass(frozen=True)
class Texts:
    """The windows to learn from, the texts for validation and those held out, and the special tokens around a text."""

    train: Dataset
    validation: Part
    test: Part


def read_documents(objective: Embeddings, settings: AdaptSettings) -> tuple[Dataset, Dataset, list[str]]:
    """Texts to learn from, texts held out, with labels if they are asked for, and notes on both for the user.

    Raises:
        InputError: they are missing or malformed, or their labels are not the model's.
    """
    held_out = parse_part(settings.test)
    if isinstance(held_out, float):
        documents = _load(str(settings.data), objective, settings, labeled=True)
        train, test = split_documents(documents.dataset, held_out, settings.seed, stratified=not objective.several)
        notes = documents.notes
    else:
        documents = _load(str(settings.data), objective, settings, labeled=False)
        others = _load(held_out, objective, settings, labeled=True)
        train, test = documents.dataset, others.dataset
        notes = [*documents.notes, *(f"test: {note}" for note in others.notes)]
    return train, test, notes


def _load(path: str, objective: Embeddings, settings: AdaptSettings, labeled: bool) -> Documents:
    options = DataOptions.of(settings)
    label = options.label_column
    if label and not isinstance(objective, Labels):
        raise InputError("--label-column is for a classifier, and this model has none")
    if not (labeled and label and isinstance(objective, Labels)):
        return load_documents(path, TEXT, options=replace(options, label_column=None))
    documents = load_documents(path, objective.task.record, options=options)
    dataset = name_labels(documents.dataset, objective.task.names, several=objective.several)
    check_labels(objective.task.names, dataset, path)
    return replace(documents, dataset=dataset)


def prepare_texts(
    train: Dataset,
    test: Dataset,
    encoder: DocumentEncoder,
    settings: AdaptSettings,
    screen: Screen,
) -> Texts:
    """Split texts for validation from those to learn from, and tokenize all three parts.

    Raises:
        InputError: there are too few.
    """
    train, test = (with_text(part, encoder, screen.say) for part in (train, test))
    validated = min(VALIDATED, max(LEAST_TEXTS, len(train) // 10))
    train, validation = split_documents(train, min(0.5, validated / len(train)), settings.seed)
    for part, name in ((train, "for training"), (validation, "for validation"), (test, "for the test")):
        if len(part) < LEAST_TEXTS:
            raise InputError(f"{settings.data}: leaves {len(part)} texts {name}; at least {LEAST_TEXTS} are needed")
    texts, draws = len(train) + len(validation) + len(test), np.random.default_rng(settings.seed)
    test = test.select(np.sort(draws.permutation(len(test))[:TESTED]))
    max_length, (_, after) = encoder.max_length, encoder.marks
    windows = [tokenize_documents(part, encoder) for part in (train, validation, test)]
    tokens = np.asarray(windows[0]["num_tokens"][:])
    screen.say(
        f"{format_count(len(train))} training texts, {format_count(len(validation))} for validation, "
        f"{format_count(len(test))} for the test; tokens per text: median {format_count(np.median(tokens))}, "
        f"{format_percent(float((tokens > max_length).mean()))} longer than --max-length {max_length:,} and truncated"
    )
    for question in ask_of_lines(texts, tokens):
        screen.say(question)
    return Texts(
        mix_lengths(windows[0], after, settings.seed),
        Part(windows[1], validation),
        Part(windows[2], test),
    )


def mix_lengths(windows: Dataset, after: list[int], seed: int) -> Dataset:
    """``windows``, a quarter of them cut to a length drawn log-uniformly; ``after`` ends each text."""

    def cut(ids: list[int], number: int) -> dict[str, object]:
        draws = np.random.default_rng([seed, number])
        if draws.random() < CUT and len(ids) > SHORTEST:
            length = int(np.exp(draws.uniform(np.log(SHORTEST), np.log(len(ids) + 1))))
            ids = ids[: length - len(after)] + after
        return {"input_ids": ids, "length": len(ids)}

    with quiet():
        return windows.map(
            cut,
            input_columns=["input_ids"],
            with_indices=True,
            remove_columns=["num_tokens", "text_from"],
            new_fingerprint=Hasher.hash([windows._fingerprint, after, seed, CUT, SHORTEST]),
        )
