"""The context of causal Linformer attention: slots that are running means of what came before."""

from typing import Any, cast

from torch import Tensor

from torch_linformer.functional.causal import attend_causally
from torch_linformer.functional.causal_state import CausalState
from torch_linformer.functional.padding import Padding
from torch_linformer.nn.attention.context import Attended, Call, Context, at_positions
from torch_linformer.nn.attention.heads import Heads
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.past import FullState, Past
from torch_linformer.nn.causal_projection import CausalProjection
from torch_linformer.nn.options import AttentionOptions


class CausalSlots(Context):
    """K running means of the tokens up to the query's own, and the last tokens (``window``) and first ones themselves.

    Of the first ``exact_first`` tokens a query sees those up to its own. Its weights are of slots, of these tokens, and
    of the window: a token that is in both counts in the window.

    Adds ``running``, a :class:`CausalProjection`, or None with ``k=0``.
    """

    name = "causal attention, whose slots are running means"
    options = frozenset({"window", "rotary_dim", "exact_first"})
    causal = True
    takes_pieces = True
    no_mask = "a slot mixes all positions up to the query's own, so no score belongs to one (query, key) pair"

    def __init__(self, options: AttentionOptions, max_len: int, k: int) -> None:
        super().__init__(options, max_len, k)
        check_causal_k(k, max_len, self.window)
        self.exact_first = options["exact_first"]

    @property
    def is_ordered(self) -> bool:
        return self.window is not None or self.exact_first > 0  # running means count the real tokens themselves

    def add_parameters(self, attention: Heads, factory: dict[str, Any]) -> None:
        attention.register_module("running", None)
        if self.k > 0:
            heads, width = attention.num_heads, attention.head_dim
            attention.running = CausalProjection(self.k, heads, width, self.max_len, **factory)

    def reset_parameters(self, attention: Heads) -> None:
        if attention.running is not None:
            cast(CausalProjection, attention.running).reset_parameters()

    def attend(self, attention: Heads, queries_BHND: Tensor, context: KeysAndValues, call: Call) -> Attended:
        past, running = call.past, cast("CausalProjection | None", attention.running)
        piece = call.padding if call.padding is not None and call.padding.is_piece else None
        if piece is not None:
            past = Past(self._handed_on(context, piece, queries_BHND.shape[1]))
        queries, keys, values = at_positions(self.rotary_dim, queries_BHND, context, past)
        before = None if past is None else past.state
        assert not isinstance(before, FullState)
        slot_weights, score_bias = (None, None) if running is None else running(keys)
        output, weights, state = attend_causally(
            queries,
            keys,
            values,
            slot_weights,
            score_bias=score_bias,
            window=self.window,
            exact_first=self.exact_first,
            padding_mask=context.padding,
            state=before,
            dropout_p=attention.dropout_p,
            need_weights=call.need_weights,
        )
        if past is not None:
            past.state = state
        if piece is not None:
            output = piece.hand_on(state.like(cast(CausalState, before)), output)
        return output, weights

    def _handed_on(self, context: KeysAndValues, piece: Padding, heads: int) -> CausalState:
        """The state after the pieces of the rows before this one."""
        keys, values = (x[:, :1].expand(-1, heads, -1, -1) for x in (context.keys, context.values))  # only their sizes
        empty = CausalState.empty(keys, values, self.k, self.window, self.exact_first)
        return CausalState(*piece.received(empty.tensors(), context.keys))


def check_causal_k(k: int, max_len: int, window: int | None, *, limit: str = "max_len") -> None:
    """Raise ``ValueError`` for a number of running means that leaves nothing to attend to, or no time scale."""
    if k < 0 or max_len < 1:
        raise ValueError(f"k must be at least 0 and {limit} at least 1, got {k} and {max_len}")
    if k == 0 and window is None:
        raise ValueError("k=0 leaves nothing to attend to: give window, or k of at least 1")
