"""What a causal model keeps between two calls, as the cache that transformers' ``generate`` passes around."""

from typing import cast

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin

from torch_linformer.nn.past import Past


class LinformerCacheLayer(CacheLayerMixin):
    """The past of one layer. The layer's attention brings it up to date, not :meth:`update`."""

    def __init__(self) -> None:
        super().__init__()
        self.past = Past()
        self.columns = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing: the first call of the attention makes the state."""

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
        self.past, self.columns = Past(), 0

    def crop(self, tokens_to_remove: int) -> None:
        """Sums cannot be undone: only what removes nothing is possible."""
        if tokens_to_remove:
            raise NotImplementedError(f"a Linformer cache cannot forget its last {tokens_to_remove} tokens; start anew")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.past.select_rows(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep these rows of the batch."""
        self.past.select_rows(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Every row of the batch so many times."""
        if self.past.state is not None:
            rows = torch.arange(len(self.past.state.tokens), device=self.past.state.tokens.device)
            self.past.select_rows(rows.repeat_interleave(repeats))


class LinformerCache(Cache):
    """One :class:`torch_linformer.nn.past.Past` a layer.

    With Linformer attention its size does not depend on how much was read: K × (2D + 2) numbers and the last w − 1 keys
    and values a head. With ``attention="full"`` it holds every key and value.

    Args:
        num_hidden_layers: layers of the model.
    """

    def __init__(self, num_hidden_layers: int) -> None:
        super().__init__(layers=[LinformerCacheLayer() for _ in range(num_hidden_layers)])

    @property
    def pasts(self) -> list[Past]:
        """The pasts, layer by layer."""
        return [layer.past for layer in self._own_layers()]

    @property
    def tokens(self) -> Tensor | None:
        """Real tokens read so far, ``(B,)``; None before the first."""
        state = self.pasts[0].state
        return None if state is None else state.tokens

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(past.nbytes for past in self.pasts)

    def add_columns(self, columns: int) -> None:
        """Count what the model has read, padding included."""
        for layer in self._own_layers():
            layer.columns += columns

    def _own_layers(self) -> list[LinformerCacheLayer]:
        return cast("list[LinformerCacheLayer]", self.layers)
