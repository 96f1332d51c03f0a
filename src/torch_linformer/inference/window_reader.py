"""Documents in groups, and what a model makes of their windows, computed in batches of similar lengths."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document
from torch_linformer.opening.devices import autocast
from torch_linformer.tasks.task import Batch

Windows = dict[str, list[Any]]  # the columns of a `DocumentEncoder`

BATCHES_AHEAD = 16  # batches of documents read ahead, to batch those of similar lengths
GROUP_CHARACTERS = 10_000_000  # read ahead at most, apart from the last document


def what_was_read(number: int, done: str, empty: str, cut: int, max_length: int, report: ReadReport) -> str:
    """A sentence: what was done with how many documents, and how many of them were cut, skipped or damaged."""
    counts = (
        (f"cut at {max_length:,} tokens", cut),
        (empty, report.empty),
        ("with half a character replaced", report.replaced),
        ("left out, as they cannot be read", report.bad),
    )
    notes = "".join(f", {count:,} {what}" for what, count in counts if count)
    return f"{number:,} document{'' if number == 1 else 's'} {done}{notes}"


def in_groups(documents: Iterable[Document], batch_size: int) -> Iterator[list[Document]]:
    """Documents in groups of some batches, or of fewer where they are long."""
    group: list[Document] = []
    characters = 0
    for document in documents:
        group.append(document)
        characters += len(document.text)
        if len(group) == batch_size * BATCHES_AHEAD or characters > GROUP_CHARACTERS:
            yield group
            group, characters = [], 0
    if group:
        yield group


class WindowReader:
    """Runs a function of a batch over windows.

    Args:
        collate: makes a batch of windows.
        respond: what is kept of a batch, a row for each window.
        device: where ``respond`` computes, and
        precision: in what.
        batch_size: windows of a batch.
    """

    def __init__(
        self,
        collate: Callable[[list[dict[str, Any]]], Batch],
        respond: Callable[[Batch], Tensor],
        *,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        self.collate, self.respond = collate, respond
        self.device, self.precision, self.batch_size = device, precision, batch_size

    @torch.inference_mode()
    def read(self, windows: Windows) -> list[Any]:
        """What is kept of each window, in their order."""
        order = sorted(range(len(windows["length"])), key=windows["length"].__getitem__)
        found: list[Any] = [None] * len(order)
        names = [name for name in ("input_ids", "text_from", "whole_ids") if name in windows]
        for start in range(0, len(order), self.batch_size):
            numbers = order[start : start + self.batch_size]
            batch = self.collate([{name: windows[name][i] for name in names} for i in numbers])
            with autocast(self.device, self.precision):
                kept = self.respond({name: tensor.to(self.device) for name, tensor in batch.items()})
            for i, row in zip(numbers, kept.cpu().numpy(), strict=True):
                found[i] = row
        return found


def split_windows(windows: Windows) -> list[Windows]:
    """Each window by itself."""
    return [{name: [column[at]] for name, column in windows.items()} for at in range(len(windows["length"]))]


def join_windows(parts: Sequence[Windows]) -> Windows:
    """The windows of all parts, one part after the other."""
    return {name: [row for part in parts for row in part[name]] for name in parts[0]}
