"""The teacher, frozen, which reads longer texts window by window, and the student: the same, made linear."""

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.linearize import linearize
from torch_linformer.errors import InputError
from torch_linformer.nn.options import default_k

# Of a window that the next one reads too, so that every token has a quarter of a window on either side. None where
# positions are learned: those of the student repeat as in windows that are read one after the other.
SHARED = 0.5


@dataclass(frozen=True)
class Marks:
    """Numbers of special tokens before and after a text."""

    before: int
    after: int


class Teacher:
    """Hidden states of the original encoder for texts of any length.

    A text longer than the original reads at once goes through it as windows, each with the special tokens around it. A
    token's hidden states come from the window in which it is farthest from the ends; those of the special tokens are
    means over the windows.

    Args:
        model: the original, perhaps with a head; it is frozen.
        longest: tokens that the original reads at once.
        marks: the special tokens around a text.
        shared: share of a window that the next one reads too.
    """

    def __init__(self, model: PreTrainedModel, longest: int, marks: Marks, shared: float = SHARED) -> None:
        self.model = model
        cast(nn.Module, model).requires_grad_(False).eval()
        self.encoder: Any = model.base_model
        self.longest, self.marks, self.shared = longest, marks, shared

    @torch.no_grad()
    def hidden_states(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """``(B, N, C)`` of each layer, of rows whose padding follows the text."""
        if input_ids.shape[1] <= self.longest:
            outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
            return list(outputs.hidden_states[1:])
        windows = self._windows(attention_mask.sum(dim=1).tolist())
        rows, columns, weights, mask = (x.to(input_ids.device) for x in windows)
        outputs = self.encoder(input_ids=input_ids[rows, columns], attention_mask=mask, output_hidden_states=True)
        shape = (*input_ids.shape, outputs.last_hidden_state.shape[-1])
        return [
            hidden.new_zeros(shape).index_put_((rows, columns), hidden * weights.to(hidden.dtype), accumulate=True)
            for hidden in outputs.hidden_states[1:]
        ]

    def _windows(self, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The W windows of L tokens into which rows of these lengths are cut.

        Their rows ``(W, 1)``; and of each token the column ``(W, L)``, the weight of its hidden states ``(W, L, 1)``
        and the mask ``(W, L)``.
        """
        before, after = self.marks.before, self.marks.after
        room = self.longest - before - after
        rows, columns, weights = [], [], []
        for row, length in enumerate(lengths):
            text = torch.arange(length - before - after)
            last, step = max(0, len(text) - room), max(1, int(room * (1 - self.shared)))
            starts = torch.tensor([*range(0, last, step), last] if self.shared else [*range(0, last + room, room)])
            distance = torch.minimum(text - starts[:, None], starts[:, None] + room - 1 - text)
            owner = distance.argmax(dim=0)
            for number, start in enumerate(starts.tolist()):
                inside = text[start : start + room]
                rows.append(row)
                columns.append(torch.cat([torch.arange(before), before + inside, torch.arange(length - after, length)]))
                share = torch.ones(len(columns[-1])) / len(starts)
                share[before : before + len(inside)] = (owner[inside] == number).float()
                weights.append(share)
        mask = [torch.ones_like(values) for values in columns]
        padded = [pad_sequence(values, batch_first=True) for values in (columns, weights, mask)]
        return torch.tensor(rows).unsqueeze(-1), padded[0], padded[1].unsqueeze(-1), padded[2]


def build_student(
    original: PreTrainedModel, settings: AdaptSettings, max_length: int, marks: Marks, usual_length: int
) -> LinearEncoder:
    """The original with slots; raises ``InputError`` where K or the exact tokens do not fit."""
    k = default_k(max_length) if settings.k is None else settings.k
    if k > max_length:
        raise InputError(f"--k must lie between 0 and the {max_length:,} tokens read at once, got {k}")
    first = marks.before if settings.exact_first is None else settings.exact_first
    last = marks.after if settings.exact_last is None else settings.exact_last
    if first + last > max_length:
        raise InputError(
            f"--exact-first {first} and --exact-last {last} are more than the {max_length:,} tokens read at once"
        )
    try:
        student = linearize(
            original,
            k,
            settings.window,
            max_length=max_length,
            usual_length=usual_length,
            exact_first=first,
            exact_last=last,
            exact_below=settings.exact_below,
            projection=cast(Any, settings.projection),
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return cast(LinearEncoder, student)
