"""Texts that occur twice, in two parts of the documents, or with two labels, which distorts the scores."""

from collections.abc import Iterator, Mapping
from itertools import combinations
from typing import NamedTuple

from datasets import Dataset

from torch_linformer.reporting.tables import format_count

_READ = ("text", "question", "label")  # the columns compared, as far as there are any


class Overlap(NamedTuple):
    """How many documents have the text of another one, by what they are, and sentences about those that matter."""

    repeats: dict[str, int]
    warnings: list[str]


def find_overlap(parts: Mapping[str, Dataset]) -> Overlap:
    """Documents with the text of another one, in their own part and in each two parts, and contradictory labels.

    The keys of ``parts`` are their purposes, such as "to train on". Texts are compared exactly; a text with a question
    is the same only if the question is.
    """
    found = {name: list(_hashes(part)) for name, part in parts.items()}
    texts = {name: {text for text, _ in documents} for name, documents in found.items()}
    repeats = {f"repeated {name}": len(found[name]) - len(texts[name]) for name in parts}
    warnings = []
    for one, other in combinations(parts, 2):
        shared = sum(text in texts[one] for text, _ in found[other])
        repeats[f"{other}, with the text of one {one}"] = shared
        if shared:
            warnings.append(
                f"warning: {format_count(shared)} of the {format_count(len(found[other]))} documents {other} have the "
                f"text of one {one}: scores on them say little about new texts"
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
