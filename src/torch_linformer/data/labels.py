"""The labels that documents have: their names, and whether they are labels at all."""

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any
from unicodedata import category, normalize

from datasets import Dataset

from torch_linformer.data.reading.documents import label_counts, quiet
from torch_linformer.data.reading.rows import counted, is_number, listed, some_of
from torch_linformer.errors import InputError

_FEW = 10  # with so few documents each may well have its own label
_WHOLE_NUMBER = re.compile(r"-?\d+")


def label_names(dataset: Dataset, at_least: int = 2) -> list[str]:
    """The distinct labels, one or several a document: by number if all are whole numbers, otherwise by alphabet."""
    names = sorted({label for labels in _label_lists(dataset) for label in labels})
    if len(names) < at_least:
        problem = f"every document has the label {names[0]!r}" if names else "no document has a label"
        raise InputError(f"{problem}: a classifier needs {('one label', 'two labels')[at_least - 1]} at least")
    if are_numbers(names):
        names.sort(key=int)
    return names


def are_numbers(labels: Sequence[str]) -> bool:
    """Whether all labels are whole numbers, which may stand for names."""
    return all(map(_WHOLE_NUMBER.fullmatch, labels))


def name_labels(dataset: Dataset, names: Sequence[str], *, several: bool = False) -> Dataset:
    """The documents with names for the labels that are positions among them: "0" becomes the first name.

    With ``several`` labels a document, lists of zeros and ones, as many as there are names, become the names at the
    ones. Other labels stay, and so do all where a name is a number itself.
    """
    if any(map(_WHOLE_NUMBER.fullmatch, names)):
        return dataset
    positions = {str(position): name for position, name in enumerate(names)}
    one_hot = several and _one_hot_length(dataset) == len(names)

    def named(labels: Any) -> Any:
        if one_hot:
            return [name for name, label in zip(names, labels, strict=True) if label == "1"]
        if isinstance(labels, list):
            return [positions.get(label, label) for label in labels]
        return positions.get(labels, labels)

    with quiet():
        return dataset.map(lambda label: {"label": named(label)}, input_columns=["label"], features=dataset.features)


def alike_labels(names: Sequence[str]) -> list[str]:
    """A warning for each group of labels that look the same but for their case, or characters that are not seen."""
    groups: dict[str, list[str]] = {}
    for name in names:
        seen = "".join(character for character in normalize("NFKC", name) if category(character) != "Cf")
        groups.setdefault(" ".join(seen.casefold().split()), []).append(name)
    return [
        f"warning: the labels {' and '.join(map(repr, group))} differ only in case, spaces or how their characters are "
        f"written, and are learned as {len(group)}; if they are one, write them alike"
        for group in groups.values()
        if len(group) > 1
    ]


def missed_labels(names: Sequence[str], part: Dataset, purpose: str) -> list[str]:
    """A warning if no document of a part has some of the labels."""
    missed = sorted({*names} - {label for labels in _label_lists(part) for label in labels})
    if not missed:
        return []
    return [f"warning: no {purpose} document has the label{'' if len(missed) == 1 else 's'} {listed(missed)}"]


def check_labels(
    names: Sequence[str], dataset: Dataset, source: str, problem: str = "which no training document has"
) -> None:
    """Raise an `InputError` if `dataset`, read from `source`, holds a label that is not in `names`."""
    holding = Counter(label for labels in _label_lists(dataset) for label in set(labels))
    for label, number in sorted(holding.items()):
        if label not in names:
            raise InputError(f"{source}: {counted(number)} with label {label!r}, {problem} ({some_of(names)})")


def check_known(dataset: Dataset, names: Sequence[str], source: str) -> None:
    """Raise an `InputError` where empty cells leave a label no document that has it not, as where they mean "no"."""
    having, unknown = label_counts(dataset)
    for name in names:
        if unknown[name] and having[name] + unknown[name] == len(dataset):
            cells = "each cell is empty" if not having[name] else "each cell holds 1 or is empty"
            raise InputError(
                f"{source}: column {name!r}: {cells}, and an empty cell is a label that nobody knows: write 0 where a "
                "document does not have it, or leave the column out of --label-column"
            )


def check_repeated(dataset: Dataset, source: str, column: str | None) -> None:
    """Raise an `InputError` if labels, one a document, have fewer than two documents on average.

    Those of an address, an identifier or a title have one each.
    """
    labels = set(dataset["label"][:])
    if len(dataset) < _FEW or 2 * len(labels) <= len(dataset):
        return
    needs = "--task classify needs several documents of each label"
    if all(map(is_number, labels)):
        raise InputError(
            f"{source}: {len(labels):,} different numbers as the labels of {counted(len(dataset))}: "
            f"--task regress learns numbers, {needs}"
        )
    doubt = "" if column is None else f"is {column!r} the label column? Name another with --label-column, as "
    raise InputError(f"{source}: {len(labels):,} different labels of {counted(len(dataset))}: {doubt}{needs}")


def check_one_hot(dataset: Dataset, source: str, names: Sequence[str] = ()) -> None:
    """Raise an `InputError` if the labels of each document are zeros and ones, and not as many as ``names``."""
    lists = _label_lists(dataset)
    if any(lists) and all({"0", "1"}.issuperset(labels) for labels in lists):
        shortest, longest = min(map(len, lists)), max(map(len, lists))
        if longest == shortest == 1 and not names:
            raise InputError(
                f"{source}: each document has one label, 0 or 1: take --task classify, or name the columns of several "
                "labels with --label-column A,B,…"
            )
        if shortest < longest and any(len(labels) > len(set(labels)) for labels in lists):
            raise InputError(
                f"{source}: the labels are lists of {shortest} to {longest} zeros and ones: write one for each label"
            )
    length = _one_hot_length(dataset)
    if length and length != len(names):
        known = f", not {len(names)}" if names else ""
        raise InputError(
            f"{source}: the labels of each document are {length} zeros and ones: give {length} names{known}, in their "
            "order, with --label-names A,B,…"
        )


def _one_hot_length(dataset: Dataset) -> int:
    """The length of the lists of labels if all have the same, above 1, and hold nothing but zeros and ones; else 0."""
    lists = _label_lists(dataset)
    lengths = {len(labels) for labels in lists}
    one_hot = len(lengths) == 1 and max(lengths) > 1 and all({"0", "1"}.issuperset(labels) for labels in lists)
    return max(lengths) if one_hot else 0


def _label_lists(dataset: Dataset) -> list[list[str]]:
    """The labels of each document, one or several."""
    labels = dataset.select_columns("label")[:]["label"]
    return [label if isinstance(label, list) else [label] for label in labels]
