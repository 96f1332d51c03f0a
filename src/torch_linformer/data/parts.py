"""The parts of the documents: to train on, for validation, and held out."""

import numpy as np
import numpy.typing as npt
from datasets import Dataset

from torch_linformer.errors import InputError

GROUP = "group"  # the column of what documents have in common: their author, patient or thread
_ROUNDING = 1e-6  # of a sum of squares of documents

_Ints = npt.NDArray[np.int64]


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
