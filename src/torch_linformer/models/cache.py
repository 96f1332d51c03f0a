"""What a causal model keeps between two calls, as the cache that transformers' ``generate`` passes around."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.export import register_dataclass
from torch.utils._pytree import KeyEntry, MappingKey, register_pytree_node
from transformers import GenerationConfig
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.generation.configuration_utils import GenerationMode

from torch_linformer.functional.causal import CausalState
from torch_linformer.models.arguments import CACHE
from torch_linformer.nn.attention import KeysAndValues, Past
from torch_linformer.nn.attention.keys_and_values import FullState


class LinformerCacheLayer(CacheLayerMixin):
    """The past of one layer, which its attention updates, and in a decoder its keys and values of the memory."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.past = Past()
        self.memory: KeysAndValues | None = None
        self.columns = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first call of the attention creates the state."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: object, **kwargs: object
    ) -> tuple[Tensor, Tensor]:
        raise NotImplementedError("a Linformer layer keeps sums, not keys and values: pass the cache to the model")

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.columns + query_length, 0

    def get_seq_length(self) -> int:
        return self.columns

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        self.past, self.memory, self.columns = Past(), None, 0

    def crop(self, tokens_to_remove: int) -> None:
        """Sums cannot be undone: only what removes nothing is possible."""
        if tokens_to_remove:
            raise NotImplementedError(
                f"a Linformer cache cannot forget its last {tokens_to_remove} tokens; use a new cache"
            )

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.batch_select_indices(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self.past.select_rows(indices)
        if self.memory is not None:
            self.memory = self.memory.rows(indices.to(self.memory.slots.keys.device))

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Repeat every row of the batch that many times."""
        state, memory = self.past.state, self.memory
        held = state.tokens if state is not None else None if memory is None else memory.slots.keys
        if held is not None:
            self.batch_select_indices(torch.arange(len(held), device=held.device).repeat_interleave(repeats))

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return self.past.nbytes + (0 if self.memory is None else self.memory.nbytes)


class LinformerCache(Cache):
    """One :class:`torch_linformer.nn.Past` per layer.

    With Linformer attention its size does not depend on how much was read: K × (2D + 1) numbers a head, the keys and
    values of the last w − 1 and first ``exact_first`` tokens, and in a decoder 2 × K × D of the memory. With
    ``attention="full"`` it holds every key and value.
    """

    layers: list[LinformerCacheLayer]  # type: ignore[assignment]

    def __init__(self, num_hidden_layers: int) -> None:
        super().__init__(layers=[LinformerCacheLayer() for _ in range(num_hidden_layers)])

    @property
    def pasts(self) -> list[Past]:
        """The pasts, layer by layer."""
        return [layer.past for layer in self.layers]

    @property
    def tokens(self) -> Tensor | None:
        """Real tokens read so far, ``(B,)``; None before the first."""
        state = self.pasts[0].state
        return None if state is None else state.tokens

    @property
    def max_cache_len(self) -> int:
        """No limit, which transformers writes as −1."""
        return self.layers[0].get_max_length()

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(layer.nbytes for layer in self.layers)

    @property
    def memories(self) -> list[KeysAndValues] | None:
        """The keys and values of the memory in a decoder's layers; None before there are any."""
        memories = [layer.memory for layer in self.layers]
        return None if None in memories else cast("list[KeysAndValues]", memories)

    @memories.setter
    def memories(self, memories: list[KeysAndValues]) -> None:
        for layer, memory in zip(self.layers, memories, strict=True):
            layer.memory = memory

    def add_columns(self, columns: int) -> None:
        """Count columns that the model has read, padding included."""
        for layer in self.layers:
            layer.columns += columns


@dataclass(frozen=True)
class Columns:
    """The columns that each layer has counted; not compared, so that one exported step works for any number."""

    layers: int
    counted: list[int] = field(compare=False)


# For torch.export and other users of pytrees a cache is the tensors of its layers. What an exported step returns has
# the tokens, and so the positions, of its past; its columns are those of the cache that it was exported with.
def _tensors_of(cache: LinformerCache) -> tuple[list[Any], Columns]:
    columns = Columns(len(cache.layers), [layer.columns for layer in cache.layers])
    return [(layer.past.state, layer.memory) for layer in cache.layers], columns


def _tensors_by_name(cache: LinformerCache) -> tuple[list[tuple[KeyEntry, Any]], Columns]:
    parts, columns = _tensors_of(cache)
    return [(MappingKey(f"layer_{number}"), part) for number, part in enumerate(parts)], columns


def _cache_of(parts: Iterable[Any], columns: Columns) -> LinformerCache:
    cache = LinformerCache(columns.layers)
    for layer, (state, memory), counted in zip(cache.layers, parts, columns.counted, strict=True):
        layer.past.state, layer.memory, layer.columns = state, memory, counted
    return cache


register_dataclass(CausalState, serialized_type_name="torch_linformer.CausalState")
register_dataclass(FullState, serialized_type_name="torch_linformer.FullState")
register_pytree_node(
    LinformerCache,
    _tensors_of,
    _cache_of,
    serialized_type_name="torch_linformer.LinformerCache",
    to_dumpable_context=asdict,
    from_dumpable_context=lambda saved: Columns(**saved),
    flatten_with_keys_fn=_tensors_by_name,
)


class GenerationWithOurCache:
    """What ``generate`` must know of models that continue from a :class:`LinformerCache`; a base before its mixin."""

    config: Any
    _is_stateful = True  # sums cannot be undone, so assisted generation is impossible

    def _prepare_cache_for_generation(
        self,
        generation_config: GenerationConfig,
        model_kwargs: dict[str, Any],
        generation_mode: GenerationMode,
        batch_size: int,
        max_cache_length: int,
    ) -> bool:
        """A :class:`LinformerCache`, unless the user gave a cache or turned caching off."""
        if generation_config.cache_implementation is not None:
            raise ValueError(
                f"cache_implementation={generation_config.cache_implementation!r}: Linformer has one cache, whose size "
                "does not grow; leave cache_implementation out"
            )
        if generation_config.use_cache is not False and model_kwargs.get(CACHE) is None:
            config = self.config.get_text_config(decoder=True)
            model_kwargs[CACHE] = LinformerCache(config.num_hidden_layers)
        return True
