"""The parts of the documents, to train on, for validation and held out; texts that occur twice; a digest of all."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from datasets import Dataset

from torch_linformer.errors import InputError
from torch_linformer.reporting.tables import format_count

GROUP = "group"  # the column of what documents have in common: their author, patient or thread
_READ = ("text", "question", "label")  # the columns compared, as far as there are any
_COMMON = {GROUP: "groups", "queries": "queries", "text": "contexts"}  # what documents may share, by its column
_ROUNDING = 1e-6  # of a sum of squares of documents
_Ints = npt.NDArray[np.int64]


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
    by_label = stratified and "label" in dataset.column_names
    labels = _strata(dataset) if by_label else np.zeros(len(dataset), dtype=np.int64)
    if together in dataset.column_names:
        groups = _groups(dataset, together)
        held_out = _draw_groups(groups, labels, fraction, seed)
        short = f", whose column {together!r} makes {_count(len(np.unique(groups)), 'group')}: give more groups"
    else:
        distinct = by_label and len(dataset) > 1
        short = ", no two of which have the same label: give several of each" if distinct else ": give more"
        held_out = _draw_documents(labels, fraction, seed)
    if not len(held_out):
        raise InputError(f"cannot split {_count(len(dataset))}{short}, or a file for each part")
    return dataset.select(np.setdiff1d(np.arange(len(dataset)), held_out)), dataset.select(held_out)


def _draw_documents(labels: _Ints, fraction: float, seed: int) -> _Ints:
    """The documents that are split off, each by itself."""
    generator = np.random.default_rng(seed)
    members = [np.flatnonzero(labels == label) for label in range(labels.max(initial=-1) + 1)]
    quotas = _quotas(np.array([len(indices) for indices in members]), fraction)
    drawn = [generator.permutation(indices)[:quota] for indices, quota in zip(members, quotas, strict=True)]
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *drawn]))


def _draw_groups(groups: _Ints, labels: _Ints, fraction: float, seed: int) -> _Ints:
    """The documents that are split off, in whole groups: one group at least, if any can be.

    The groups are gone through in random order, again and again, and change sides wherever that brings the numbers of
    documents of each label nearer to their shares, by the sum of squares.
    """
    sides = _Sides(_members(groups, seed), labels, fraction)
    moved = True
    while moved:
        moved = False
        for group in range(len(sides.members)):
            if sides.may_move(group) and sides.change(group) < -_ROUNDING:
                sides.move(group)
                moved = True
    movable = [group for group in range(len(sides.members)) if sides.may_move(group)]
    if movable and not sides.away:
        sides.move(min(movable, key=sides.change))
    away = (sides.members[group] for group in sides.away)
    return np.sort(np.concatenate([np.empty(0, dtype=np.int64), *away]))


class _Sides:
    """Groups of documents, some of them split off.

    Args:
        members: the documents of each group.
        labels: of each document.
        fraction: of the documents of each label that is to be split off.

    Attributes:
        away: the groups that are split off.
        left: documents of each label that are not.
        missing: documents of each label that are still to be; below 0 where there are too many.
    """

    def __init__(self, members: list[_Ints], labels: _Ints, fraction: float) -> None:
        self.members, self.away = members, set[int]()
        self.counts = [np.unique(labels[documents], return_counts=True) for documents in members]
        self.left = np.bincount(labels)
        self.missing = self.left * fraction

    def may_move(self, group: int) -> bool:
        """Whether another group stays split off, or each label keeps a document."""
        if group in self.away:
            return len(self.away) > 1
        kinds, numbers = self.counts[group]
        return bool((self.left[kinds] > numbers).all())

    def change(self, group: int) -> float:
        """By how much the sum of squares of what is missing grows if a group changes sides."""
        kinds, numbers = self._moving(group)
        return float((numbers * (numbers - 2 * self.missing[kinds])).sum())

    def move(self, group: int) -> None:
        """Split a group off, or put it back."""
        kinds, numbers = self._moving(group)
        self.missing[kinds] -= numbers
        self.left[kinds] -= numbers
        self.away ^= {group}

    def _moving(self, group: int) -> tuple[_Ints, _Ints]:
        """The labels of a group, and how many documents of each go away with it; fewer than 0 come back."""
        kinds, numbers = self.counts[group]
        return kinds, -numbers if group in self.away else numbers


def _members(groups: _Ints, seed: int) -> list[_Ints]:
    """The documents of each group, the groups in random order."""
    order = np.argsort(groups, kind="stable")
    members = np.split(order, np.flatnonzero(np.diff(groups[order])) + 1) if len(groups) else []
    return [members[group] for group in np.random.default_rng(seed).permutation(len(members))]


def _quotas(sizes: _Ints, fraction: float) -> _Ints:
    """How many members each label gives, by largest remainder; no label gives its last member."""
    shares = sizes * fraction
    quotas = np.floor(shares).astype(np.int64)
    missing = max(1, round(shares.sum())) - quotas.sum()
    quotas[np.argsort(quotas - shares, kind="stable")[:missing]] += 1
    limited: _Ints = np.minimum(quotas, sizes - 1)
    return limited


def _strata(dataset: Dataset) -> _Ints:
    """The number of each document's label, in the order of the labels."""
    numbers: _Ints = np.unique(dataset.select_columns("label")[:]["label"], return_inverse=True)[1]
    return numbers


def _groups(dataset: Dataset, column: str) -> _Ints:
    """The number of each document's value of a column, which may be a long text, in the order of the documents."""
    batches = dataset.select_columns(column).iter(batch_size=1000)
    numbers: dict[int, int] = {}
    values = (numbers.setdefault(hash(value), len(numbers)) for batch in batches for value in batch[column])
    return np.fromiter(values, dtype=np.int64, count=len(dataset))


def _count(number: int, noun: str = "document") -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
