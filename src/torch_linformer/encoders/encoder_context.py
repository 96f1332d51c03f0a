"""What one attention of a linear encoder attends to: slots, exact tokens and a window, or all of a short row."""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.encoders.options import LinearOptions
from torch_linformer.functional.padding import Padding, kept, length_of
from torch_linformer.functional.pytorch import records_a_graph, serves_any_length
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import Attended
from torch_linformer.nn.attention.context import Call, FullContext, FullContextOfDistances, HeadSizes
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.attention.slot_maps import SequenceMap

Heads = tuple[Tensor, Tensor, Tensor]  # queries, keys, values


class EncoderContext(SlotContext):
    """The context of an encoder's attention, in which a row of few real tokens attends to all of them.

    A padded batch gives each row what it gets alone: its own tokens decide, not the batch.

    Args:
        reach: of a layer that was local before: a query sees the positions at most this far away, and gets no slots
            and no exact tokens.
        factory: device and dtype of the parameters.
    """

    def __init__(self, sizes: HeadSizes, options: LinearOptions, reach: int | None = None, **factory: Any) -> None:
        if reach is not None:
            options = options.local(reach)
        super().__init__(sizes, options.of_attention(), options.max_length, options.k, **factory)
        self.is_local, self.exact_below = reach is not None, options.longest_exact
        self.every_position, self.every_distance = FullContext(sizes), FullContextOfDistances(sizes)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | Padding | None = None,
        *,
        call: Call = Call(),
        shared_projection: SequenceMap | None = None,
    ) -> Attended:
        """As in :class:`~torch_linformer.nn.attention.context.Context`; weights of short rows are ``(B, H, N, N)``.

        Raises:
            ValueError: for more than ``max_length`` positions; weights are asked for, and some rows are short and
                others are not, or may be.
        """
        padding = Padding(key_padding_mask) if isinstance(key_padding_mask, Tensor) else key_padding_mask
        heads = query, key, value
        length = length_of(key, padding)
        check_length(length, self.max_len)
        if self.exact_below == 0:
            return super().forward(*heads, padding, call=call)
        if serves_any_length():  # comparing a size would tie the graph to it
            no_padding = torch.zeros_like(key[:, 0, :, 0], dtype=torch.bool)
            return self._as_rows_are(heads, padding or Padding(no_padding, in_order=True), call)
        if key.shape[2] <= self.exact_below and not (padding is not None and padding.is_piece):
            attended: Attended = self._every_position(call)(*heads, padding, call=call)
            return attended
        if padding is None:
            return super().forward(*heads, padding, call=call)
        if call.need_weights and bool((padding.tokens <= self.exact_below).any()):
            raise ValueError(
                f"weights are asked for where some rows have at most exact_below = {self.exact_below} tokens, and "
                "attend to all of them, and others attend to slots: give both in batches of their own"
            )
        if padding.is_piece:
            return self._read_piece(heads, padding, call), None
        if records_a_graph() or query.device.type != "cpu":  # no device is asked which rows are short
            return self._as_rows_are(heads, padding, call)
        (short, short_padding), (long, long_padding), back = _split(padding, self.exact_below)
        if not len(short):
            return super().forward(*heads, padding, call=call)
        if not len(long):
            return self._read_exactly(heads, padding, call), None
        exact = self._read_exactly(_rows(heads, short), short_padding, call)
        others, _ = super().forward(*_rows(heads, long), long_padding, call=call)
        return torch.cat([exact, others]).index_select(0, back), None

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, exact_below={self.exact_below}"

    def _every_position(self, call: Call) -> FullContext:
        return self.every_position if call.distance_bias is None else self.every_distance

    def _of_short(self, padding: Padding) -> Padding:
        """The padding of the first ``exact_below`` positions, real tokens first."""
        return Padding(torch.arange(self.exact_below, device=padding.mask.device) >= padding.tokens, in_order=True)

    def _as_rows_are(self, heads: Heads, padding: Padding, call: Call) -> Attended:
        """Both kinds of attention for all rows, of which each gets its own: nothing depends on their lengths."""
        if call.need_weights and serves_any_length():
            raise ValueError(
                "weights are asked for in a graph of any length, where rows of at most exact_below tokens have others: "
                "linearize with exact_below=0"
            )
        is_short = padding.tokens <= self.exact_below
        long, weights = super().forward(*heads, padding, call=call)
        return torch.where(is_short[:, None, None], self._read_exactly(heads, padding, call), long), weights

    def _read_piece(self, heads: Heads, padding: Padding, call: Call) -> Tensor:
        """Both kinds of attention of a piece of each row, where there are rows for them: all processes agree on that.

        What short rows attend to, the first ``exact_below`` positions, is put together from all pieces.
        """
        is_short = padding.tokens <= self.exact_below
        if not bool(is_short.any()):
            return super().forward(*heads, padding, call=call)[0]
        query, *others = heads
        before = min(padding.start, self.exact_below)
        own = [padding.clean(x)[:, :, : self.exact_below - before] for x in others]
        placed = [F.pad(x, (0, 0, before, self.exact_below - before - x.shape[2])) for x in own]
        key, value = (padding.total(x) for x in placed)
        read = KeysAndValues(Slots(key, value, self._of_short(padding)))
        exact = self.every_position.attend(query, read, call)[0]
        if bool(is_short.all()):
            return exact
        return torch.where(is_short[:, None, None], exact, super().forward(*heads, padding, call=call)[0])

    def _read_exactly(self, heads: Heads, padding: Padding, call: Call) -> Tensor:
        """Ordinary attention of the first ``exact_below`` real tokens of each row; zeros at the others."""
        length, first = heads[0].shape[2], [padding.justify(x) for x in heads]
        if serves_any_length():  # so that there are as many, whatever the length is
            first = [F.pad(x, (0, 0, 0, self.exact_below)) for x in first]
        first = [x[:, :, : self.exact_below] for x in first]
        output: Tensor = self._every_position(call)(*first, self._of_short(padding), call=call)[0]
        return padding.restore(F.pad(output, (0, 0, 0, length))[:, :, :length])


def check_length(length: int, max_length: int) -> None:
    """Raise ``ValueError`` for an input of more positions than an encoder reads."""
    if not records_a_graph() and length > max_length:
        raise ValueError(
            f"the input has {length:,} positions and this encoder reads {max_length:,}: cut it, or make the encoder "
            "linear with a larger max_length"
        )


def _rows(heads: Heads, rows: Tensor) -> Heads:
    query, key, value = (x.index_select(0, rows) for x in heads)
    return query, key, value


@kept
def _split(padding: Padding, exact_below: int) -> tuple[tuple[Tensor, Padding], tuple[Tensor, Padding], Tensor]:
    """Numbers and padding of the short rows and of the long ones, and the way back from one after the other."""
    is_short = padding.tokens.squeeze(-1) <= exact_below
    short, long = (chosen.nonzero().squeeze(-1) for chosen in (is_short, ~is_short))
    of_short, of_long = (Padding(padding.mask[x], padding.in_order) for x in (short, long))
    return (short, of_short), (long, of_long), torch.argsort(torch.cat([short, long]))
