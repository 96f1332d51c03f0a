"""Texts that occur in two parts of the documents, or with two labels, which distorts the scores."""

from collections.abc import Iterator, Mapping
from itertools import combinations

from datasets import Dataset

from torch_linformer.reporting.tables import format_count

_READ = ("text", "question", "label")  # the columns compared, as far as there are any


def overlap_warnings(parts: Mapping[str, Dataset]) -> list[str]:
    """A sentence for each two parts that share texts, and one for texts whose labels contradict each other.

    The keys of ``parts`` are their purposes, such as "to train on". A text with a question is the same only if the
    question is.
    """
    found = {name: list(_hashes(part)) for name, part in parts.items()}
    warnings = []
    for one, other in combinations(parts, 2):
        known = {text for text, _ in found[one]}
        shared = sum(text in known for text, _ in found[other])
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
    return warnings


def _hashes(part: Dataset) -> Iterator[tuple[int, int]]:
    """Two hashes of each document, which take little memory: of its text with the question, and of its label."""
    names = [name for name in _READ if name in part.column_names]
    for batch in part.select_columns(names).iter(batch_size=1000):
        nothing = [None] * len(batch["text"])
        columns = (batch.get(name, nothing) for name in _READ)
        for text, question, label in zip(*columns, strict=True):
            yield hash((text, question)), hash(tuple(label) if isinstance(label, list) else label)
