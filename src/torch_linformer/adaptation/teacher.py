"""The teacher: the original encoder, frozen, which reads longer texts window by window."""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.models import LinformerPreTrainedModel

SHARED = 0.5  # of a window that the next one reads again: every token has a quarter of a window on either side


@dataclass(frozen=True)
class Marks:
    """How many special tokens stand before and behind a text."""

    before: int
    after: int


class Teacher:
    """Hidden states of the original encoder for texts of any length.

    A text that is longer than the original reads goes through it as overlapping windows, each between special tokens of
    its own. A token's hidden states are those of the window in which it stands farthest from the ends; those of the
    special tokens are the means over the windows.

    Args:
        model: the original, perhaps with a head, as this package's twin with full attention; it is frozen.
        longest: tokens that the original reads at once.
        marks: the special tokens around a text.
    """

    def __init__(self, model: LinformerPreTrainedModel, longest: int, marks: Marks) -> None:
        self.model = model.eval().requires_grad_(False)
        self.encoder = model.base_model
        self.longest, self.marks = longest, marks

    @torch.no_grad()
    def hidden_states(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """``(B, N, C)`` of each layer, of rows whose padding stands behind the text."""
        if input_ids.shape[1] <= self.longest:
            outputs = self.encoder(input_ids, attention_mask, output_hidden_states=True)
            return list(outputs.hidden_states[1:])
        windows = self._windows(attention_mask.sum(dim=1).tolist()).to(input_ids.device)
        rows = windows.rows.unsqueeze(-1)
        outputs = self.encoder(input_ids[rows, windows.columns], windows.mask, output_hidden_states=True)
        shape = (*input_ids.shape, outputs.last_hidden_state.shape[-1])
        return [
            hidden.new_zeros(shape).index_put_(
                (rows, windows.columns), hidden * windows.weights.unsqueeze(-1).to(hidden.dtype), accumulate=True
            )
            for hidden in outputs.hidden_states[1:]
        ]

    def _windows(self, lengths: list[int]) -> "_Windows":
        """The windows of rows of so many tokens each."""
        before, after = self.marks.before, self.marks.after
        room = self.longest - before - after
        rows, columns, weights = [], [], []
        for row, length in enumerate(lengths):
            text = torch.arange(length - before - after)
            last = max(0, len(text) - room)
            starts = torch.tensor([*range(0, last, max(1, int(room * (1 - SHARED)))), last])
            distance = torch.minimum(text - starts[:, None], starts[:, None] + room - 1 - text)
            owner = distance.argmax(dim=0)
            for number, start in enumerate(starts.tolist()):
                inside = text[start : start + room]
                rows.append(row)
                columns.append(torch.cat([torch.arange(before), before + inside, torch.arange(length - after, length)]))
                share = torch.ones(len(columns[-1])) / len(starts)
                share[before : before + len(inside)] = (owner[inside] == number).float()
                weights.append(share)
        return _Windows(
            torch.tensor(rows),
            pad_sequence(columns, batch_first=True),
            pad_sequence(weights, batch_first=True),
            pad_sequence([torch.ones_like(each) for each in columns], batch_first=True),
        )


class _Windows(NamedTuple):
    """Windows of a batch: the row of each ``(W,)``, and of its tokens ``(W, L)`` column, share of it and mask."""

    rows: Tensor
    columns: Tensor
    weights: Tensor
    mask: Tensor

    def to(self, device: torch.device) -> "_Windows":
        return _Windows(*(each.to(device) for each in self))
