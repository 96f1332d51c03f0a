"""The parts of the documents, to train on, for validation and held out; texts that occur twice; a digest of all."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from datasets import Dataset

from torch_linformer.data.reading.rows import counted
from torch_linformer.errors import InputError
from torch_linformer.reporting.tables import format_count

GROUP = "group"  # the column of what documents have in common: their author, patient or thread
_READ = ("text", "question", "label")  # the columns compared, as far as there are any
_COMMON = {GROUP: "groups", "queries": "queries", "text": "contexts"}  # what documents may share, by its column
_ROUNDING = 1e-6  # of a sum of squares of documents
_Ints = npt.NDArray[np.int64]
_Bools = npt.NDArray[np.bool_]


def content_digest(parts: Mapping[str, Dataset]) -> str:
    """A digest of the texts, labels and other columns of some parts of the documents, by their names, in their order.

    It is the same on every machine and in every process, wherever the files lie and whenever they were written.
    """
    digest = hashlib.sha256()
    for name, part in parts.items():
        columns = sorted(part.column_names)
        digest.update(json.dumps([name, columns, len(part)]).encode())
        for batch in part.iter(batch_size=1000):
            digest.update(json.dumps([batch[column] for column in columns]).encode())
    return digest.hexdigest()


class Overlap(NamedTuple):
    """How many documents have the text of another one, by what they are, and sentences about those that matter."""

    repeats: dict[str, int]
    warnings: list[str]


def find_overlap(parts: Mapping[str, Dataset]) -> Overlap:
    """Documents with the text of another one, in their own part and in each two parts, and contradictory labels.

    The keys of ``parts`` are their purposes, such as "training". Texts are compared exactly; a text with a question
    is the same only if the question is. What else documents of two parts share is counted too: the contexts of
    questions, queries, and the groups that the user has named.
    """
    hashes = {name: list(_hashes(part)) for name, part in parts.items()}
    texts = {name: {text for text, _ in documents} for name, documents in hashes.items()}
    repeats = {f"repeated in {name}": len(hashes[name]) - len(texts[name]) for name in parts}
    warnings = []
    for one, other in combinations(parts, 2):
        shared = sum(text in texts[one] for text, _ in hashes[other])
        repeats[f"{other} texts that are also in {one}"] = shared
        if shared:
            warnings.append(
                f"warning: {format_count(shared)} of the {format_count(len(hashes[other]))} {other} documents "
                f"have a text that is also in {one}: scores on them say little about new texts"
            )
        for name, (common, total) in _common(parts[one], parts[other]).items():
            repeats[f"{name} of {other} documents that are also in {one}"] = common
            if common:
                warnings.append(
                    f"warning: {format_count(common)} of the {format_count(total)} {name} of the {other} "
                    f"documents are also in {one}: scores on them say little about new {name}"
                )
    documents = [each for part in hashes.values() for each in part]
    first = dict(reversed(documents))
    contradictory = {text for text, label in documents if label != first[text]}
    if contradictory:
        standing = sum(text in contradictory for text, _ in documents)
        warnings.append(
            f"warning: the same text with different labels: {format_count(len(contradictory))} such "
            f"text{'' if len(contradictory) == 1 else 's'} in {format_count(standing)} documents; no model can be "
            "right about all of them"
        )
    return Overlap(repeats, warnings)


def _hashes(part: Dataset) -> Iterator[tuple[int, int]]:
    """Two hashes of each document, which take little memory: of its text with the question, and of its label."""
    names = [name for name in _READ if name in part.column_names]
    for batch in part.select_columns(names).iter(batch_size=1000):
        nothing = [None] * len(batch["text"])
        columns = (batch.get(name, nothing) for name in _READ)
        for text, question, label in zip(*columns, strict=True):
            yield hash((text, question)), hash(tuple(label) if isinstance(label, list) else label)


def _common(one: Dataset, other: Dataset) -> dict[str, tuple[int, int]]:
    """Of the contexts, queries and groups of the second part: how many the first has too, and how many there are."""
    columns = {*one.column_names} & {*other.column_names}
    compared = [name for name in _COMMON if name in columns and (name != "text" or "question" in columns)]
    sides = {name: [_values(part, name) for part in (one, other)] for name in compared}
    return {_COMMON[name]: (len(first & second), len(second)) for name, (first, second) in sides.items()}


def _values(part: Dataset, column: str) -> set[int]:
    """The hashes of the distinct values of a column, or of those in its lists."""
    batches = part.select_columns(column).iter(batch_size=1000)
    rows = (value for batch in batches for value in batch[column])
    return {hash(value) for row in rows for value in (row if isinstance(row, list) else [row])}


def parse_part(value: str) -> float | str:
    """PATH|FRACTION: a number between 0 and 1 is a share of the training data, anything else a path."""
    try:
        fraction = float(value)
    except ValueError:
        if value.strip():
            return value
        raise InputError("no part of the data is named: give a fraction above 0 and below 1, or a path") from None
    if not 0 < fraction < 1:
        raise InputError(f"{value} is no part of the data: give a fraction above 0 and below 1, or a path")
    return fraction


def split_documents(
    dataset: Dataset, fraction: float, seed: int, stratified: bool = True, together: str = GROUP
) -> tuple[Dataset, Dataset]:
    """Split off about `fraction` of the documents: (the rest, the part split off), both in their old order.

    Stratified, each label gives its share, rounded so that the total is right, and keeps at least one document. The
    same arguments give the same split.

    Args:
        dataset: the documents.
        fraction: of them that is split off.
        seed: of the draw.
        stratified: by the column "label", if there is one.
        together: the column, if there is one, whose documents of equal value all go to the same part. The shares are
            then as near to the fraction as whole groups allow.

    Raises:
        InputError: there are too few documents, or groups of them, for two parts.
    """
    labels, generator = np.zeros(len(dataset), dtype=np.int64), np.random.default_rng(seed)
    by_label = stratified and "label" in dataset.column_names
    if by_label:
        labels = np.unique(dataset.select_columns("label")[:]["label"], return_inverse=True)[1]
    if together in dataset.column_names:
        numbers: dict[int, int] = {}  # by hashes, as a value may be a long text
        batches = dataset.select_columns(together).iter(batch_size=1000)
        groups = [numbers.setdefault(hash(value), len(numbers)) for batch in batches for value in batch[together]]
        away = _draw_groups(np.array(groups, dtype=np.int64), labels, fraction, generator)
        short = f", whose column {together!r} makes {counted(len(numbers), 'group')}: give more groups"
    else:
        away = _draw_documents(labels, fraction, generator)
        distinct = by_label and len(dataset) > 1
        short = ", no two of which have the same label: give several of each" if distinct else ": give more"
    if not away.any():
        raise InputError(f"cannot split {counted(len(dataset))}{short}, or a file for each part")
    return dataset.select(np.flatnonzero(~away)), dataset.select(np.flatnonzero(away))


def _draw_documents(labels: _Ints, fraction: float, generator: np.random.Generator) -> _Bools:
    """Which documents are split off, each by itself: of each label its share, by largest remainder, but never all."""
    sizes, away = np.bincount(labels), np.zeros(len(labels), dtype=bool)
    quotas = np.floor(sizes * fraction).astype(np.int64)
    missing = max(1, round(sizes.sum() * fraction)) - quotas.sum()
    quotas[np.argsort(quotas - sizes * fraction, kind="stable")[:missing]] += 1
    for label, quota in enumerate(np.minimum(quotas, sizes - 1)):
        away[generator.permutation(np.flatnonzero(labels == label))[:quota]] = True
    return away


def _draw_groups(groups: _Ints, labels: _Ints, fraction: float, generator: np.random.Generator) -> _Bools:
    """Which documents are split off, in whole groups: one group at least, if any can be.

    The groups are gone through in random order, again and again, and change sides wherever that brings the numbers of
    documents of each label nearer to their shares, by the sum of squares.
    """
    members = np.split(np.argsort(groups, kind="stable"), np.cumsum(np.bincount(groups))[:-1]) if len(groups) else []
    order = generator.permutation(len(members))
    counts = [np.unique(labels[members[group]], return_counts=True) for group in order]
    left, away = np.bincount(labels), np.zeros(len(order), dtype=bool)
    missing = left * fraction  # documents of each label that are still to be split off; below 0: too many are

    def change(group: int) -> float:
        """By how much the sum of squares of what is missing grows if a group changes sides; inf where it may not."""
        kinds, numbers = counts[group]
        if away.sum() == 1 if away[group] else (left[kinds] <= numbers).any():  # one stays away, and of each label one
            return np.inf
        numbers = -numbers if away[group] else numbers
        return float((numbers * (numbers - 2 * missing[kinds])).sum())

    def move(group: int) -> None:
        kinds, numbers = counts[group]
        for remaining in (left, missing):
            remaining[kinds] += numbers if away[group] else -numbers
        away[group] = not away[group]

    moved = True
    while moved:
        moved = False
        for group in range(len(order)):
            if change(group) < -_ROUNDING:
                move(group)
                moved = True
    nearest = min(range(len(order)), key=change, default=None)
    if nearest is not None and not away.any() and change(nearest) < np.inf:
        move(nearest)
    return np.isin(groups, order[away])
