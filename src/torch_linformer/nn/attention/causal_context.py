"""The contexts of causal attention: every position up to the query's own, or slots that are running means of them."""

from typing import Any

from torch import Tensor

from torch_linformer.functional.causal import CausalState, attend_causally
from torch_linformer.functional.padding import Collective, Padding, mask_of
from torch_linformer.functional.slots import Slots
from torch_linformer.functional.softmax import Attended, attend_to_past
from torch_linformer.nn.attention.context import Call, Context, FullContext
from torch_linformer.nn.attention.keys_and_values import FullState, KeysAndValues, Past, at_positions
from torch_linformer.nn.dynamic_projection import CausalProjection
from torch_linformer.nn.options import AttentionConfig, check_k


class CausalFullContext(FullContext):
    """Every position up to the query's own: ordinary causal attention."""

    name = "causal full attention"
    options = frozenset({"rotary_dim"})
    causal = is_aligned = True

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = Call()) -> Attended:
        past, padding = call.past, mask_of(read.slots.padding)
        queries, keys, values = at_positions(self.rotary_dim, queries, read.slots, past)
        if past is not None:
            assert past.state is None or isinstance(past.state, FullState)
            state = FullState(keys, values, padding)
            if past.state is not None:
                state = past.state.followed_by(keys, values, padding)
            past.state = state
            keys, values, padding = state.keys, state.values, state.padding
        return attend_to_past(queries, keys, values, padding_mask=padding, call=call.softmax)


class CausalSlotContext(Context):
    """K running means of the tokens up to the query's own, and the last tokens (``window``) and first ones themselves.

    Of the first ``exact_first`` tokens a query sees those up to its own. Its weights are of slots, of these tokens, and
    of the window: a token that is in both counts in the window.

    Modules: ``running``, a :class:`CausalProjection`, or None with ``k=0``.
    """

    name = "causal attention, whose slots are running means"
    options = frozenset({"window", "rotary_dim", "exact_first"})
    causal = takes_pieces = is_aligned = True
    no_mask = "a slot mixes all positions up to the query's own, so no score belongs to one (query, key) pair"

    running: CausalProjection | None

    def build(self, options: AttentionConfig, **factory: Any) -> None:
        sizes, max_len, k = self.sizes, self.max_len, self.k
        check_k(k, max_len, causal=True, window=self.window)
        self.exact_first = options.exact_first
        # Running means count the real tokens themselves.
        self.is_ordered = self.moves_keys = self.window is not None or self.exact_first > 0
        self.running = CausalProjection(k, sizes.num_heads, sizes.head_dim, max_len, **factory) if k > 0 else None

    def reset_parameters(self) -> None:
        if self.running is not None:
            self.running.reset_parameters()

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = Call()) -> Attended:
        past, padding = call.past, read.slots.padding
        piece = padding.collective if isinstance(padding, Padding) else None
        if piece is not None:
            past = Past(self._received(read.slots, piece, queries.shape[1]))
        queries, keys, values = at_positions(self.rotary_dim, queries, read.slots, past)
        before = None if past is None else past.state
        assert before is None or isinstance(before, CausalState)
        output, weights, state = attend_causally(
            queries,
            keys,
            values,
            None if self.running is None else self.running(keys),
            window=self.window,
            exact_first=self.exact_first,
            padding_mask=mask_of(padding),
            state=before,
            call=call.softmax,
        )
        if past is not None:
            past.state = state
        if piece is not None and before is not None:
            # of the types that the piece after this one receives
            handed_on = [x.to(y.dtype) for x, y in zip(state.tensors(), before.tensors(), strict=True)]
            output = piece.hand_on(handed_on, output)
        return output, weights

    def _received(self, positions: Slots, piece: Collective, heads: int) -> CausalState:
        """The state after the pieces of the rows before this one."""
        keys, values = (x[:, :1].expand(-1, heads, -1, -1) for x in positions[:2])  # only their sizes
        empty = CausalState.empty(keys, values, self.k, self.window, self.exact_first)
        return CausalState(*piece.received(empty.tensors(), positions.keys))
