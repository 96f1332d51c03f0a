"""The contexts of ordinary attention: every position, perhaps with a bias of distances, or those up to the query's."""

from torch import Tensor

from torch_linformer.functional.attention.distances import attend_by_distance
from torch_linformer.functional.attention.operation import attend
from torch_linformer.functional.attention.past import attend_to_past
from torch_linformer.functional.attention.softmax_parts import Slots
from torch_linformer.functional.masks import mask_of
from torch_linformer.nn.attention.context import CALL, Attended, Call, Context
from torch_linformer.nn.attention.keys_and_values import KeysAndValues
from torch_linformer.nn.attention.past import FullState, at_positions
from torch_linformer.nn.attention.source import Source
from torch_linformer.nn.maps import SequenceMap


class FullContext(Context):
    """Every position of the keys: ordinary attention."""

    name = "full attention"
    options = frozenset()
    no_mask = "it takes the masks that Linformer attention takes"

    def read(self, source: Source, shared_projection: SequenceMap | None = None) -> KeysAndValues:
        return KeysAndValues(read_positions(self, source, shared_projection))

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = CALL) -> Attended:
        return attend(queries, read.slots, dropout_p=call.dropout_p, need_weights=call.need_weights)


class FullContextOfDistances(FullContext):
    """Every position of the keys, and a bias of their distance in real tokens: self-attention only."""

    name = "full attention with a bias of distances"
    takes_distances = True

    @property
    def is_ordered(self) -> bool:
        return True

    @property
    def is_aligned(self) -> bool:
        return True

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = CALL) -> Attended:
        if call.distance_bias is None:
            return super().attend(queries, read, call)
        return attend_by_distance(queries, read.slots, call.distance_bias, call.dropout_p, call.need_weights)


class CausalFullContext(FullContext):
    """Every position up to the query's own: ordinary causal attention."""

    name = "causal full attention"
    options = frozenset({"rotary_dim"})
    causal = True

    def attend(self, queries: Tensor, read: KeysAndValues, call: Call = CALL) -> Attended:
        past, padding = call.past, mask_of(read.slots.padding)
        queries, keys, values = at_positions(self.rotary_dim, queries, read.slots, past)
        if past is not None:
            state = FullState(keys, values, padding)
            if isinstance(past.state, FullState):
                state = past.state.followed_by(keys, values, padding)
            past.state = state
            keys, values, padding = state.keys, state.values, state.padding
        return attend_to_past(
            queries, keys, values, padding_mask=padding, dropout_p=call.dropout_p, need_weights=call.need_weights
        )


def read_positions(context: Context, source: Source, shared_projection: SequenceMap | None) -> Slots:
    """Keys and values of every position."""
    if shared_projection is not None:
        raise ValueError(f"shared_projection belongs to an attention with projection=None, not to {context.name}")
    keys, values = source.all_heads()
    return Slots(keys, values, source.padding)
