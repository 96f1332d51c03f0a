"""Texts that occur twice, in two parts of the documents, or with two labels, which distorts the scores."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from datasets import Dataset

from torch_linformer.data.parts import GROUP
from torch_linformer.reporting.tables import format_count

_READ = ("text", "question", "label")  # the columns compared, as far as there are any
_COMMON = {GROUP: "groups", "queries": "queries", "text": "contexts"}  # what documents may share, by its column


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
    found = {name: list(_hashes(part)) for name, part in parts.items()}
    texts = {name: {text for text, _ in documents} for name, documents in found.items()}
    repeats = {f"repeated in {name}": len(found[name]) - len(texts[name]) for name in parts}
    warnings = []
    for one, other in combinations(parts, 2):
        shared = sum(text in texts[one] for text, _ in found[other])
        repeats[f"{other} texts that are also in {one}"] = shared
        if shared:
            warnings.append(
                f"warning: {format_count(shared)} of the {format_count(len(found[other]))} {other} documents "
                f"have a text that is also in {one}: scores on them say little about new texts"
            )
        for name, (common, total) in _common(parts[one], parts[other]).items():
            repeats[f"{name} of {other} documents that are also in {one}"] = common
            if common:
                warnings.append(
                    f"warning: {format_count(common)} of the {format_count(total)} {name} of the {other} "
                    f"documents are also in {one}: scores on them say little about new {name}"
                )
    documents = [each for part in found.values() for each in part]
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
