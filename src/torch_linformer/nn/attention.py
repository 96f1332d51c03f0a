"""Linformer's multi-head attention: keys and values compressed along the sequence."""

from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.attention import repeat_heads
from torch_linformer.functional.causal import attend_causally, check_window
from torch_linformer.functional.padding import Padding, zero_padding
from torch_linformer.functional.window import attend_with_window
from torch_linformer.nn.causal_projection import CausalProjection
from torch_linformer.nn.chunks import Chunks, SlotsOfChunks
from torch_linformer.nn.full_attention import FullAttention
from torch_linformer.nn.keys_and_values import KeysAndValues
from torch_linformer.nn.linear import run_linear
from torch_linformer.nn.past import FullState, Past
from torch_linformer.nn.projection import (
    DENSE,
    PARAMETERLESS,
    Projection,
    SequenceProjection,
    Sharing,
    resize_maps,
)


class LinformerAttention(FullAttention):
    r"""Multi-head attention over K slots instead of M positions: O(N·K) time and memory.

    Called as :class:`torch.nn.MultiheadAttention`, with three other defaults: ``batch_first=True``, so inputs are
    ``(B, N, C)``; ``need_weights=False``; and ``value`` is ``key`` where it is left out.

    .. math::
        \bar K = s E^\top (m \odot (X W_k + b_k)), \quad \bar V = s F^\top (m \odot (X W_v + b_v)), \quad
        \mathrm{out} = \mathrm{softmax}(Q \bar K^\top / \sqrt D)\, \bar V

    Padding is exact, wherever it stands: a padded batch gives each row's real tokens what the row alone would give, and
    whatever stands at padding, NaN included, changes nothing. Row i of E belongs to the i-th real token.

    Where the heads share a linear map, :math:`E^\top (X W + b) = (E^\top X) W + (E^\top 1) b` lets the sequence be
    compressed before the channels are mixed; the order with fewer multiplications is taken.

    Args:
        embed_dim: model width C.
        num_heads: heads H.
        max_len: longest key sequence M, in tokens.
        k: slots K, 1 to ``max_len``.
        dropout: on the attention weights, in training.
        bias: on the four linear maps.
        kdim: width of ``key``, C by default.
        vdim: width of ``value``, C by default.
        head_dim: width of one head, C / H by default.
        num_kv_heads: heads of keys and values (multi-query attention with 1), H by default; divides H.
        projection: ``linear``, ``random``, ``conv``, ``mean`` or ``max`` (see :class:`SequenceProjection`); None
            for an attention that owns no map and is given ``shared_projection`` at each call.
        sharing: ``none`` (E and F for every key/value head), ``headwise`` (one E, one F) or ``kv`` (one E = F,
            ``proj_v`` is None). ``layerwise`` spans layers: see :class:`LinformerEncoder`.
        length_scaling: False leaves s out.
        causal: position t attends to running means of what came before it, itself included, instead of E and F
            over all positions: see :class:`CausalProjection`. There is no longest sequence: ``max_len`` is the longest
            time scale that slots begin with. ``projection``, ``sharing`` and ``length_scaling`` do not apply.
        window: a local window in the same softmax: with ``causal`` the last w tokens, the query's own among them, and
            else those at most w // 2 positions away. With it a causal attention may have ``k=0``: the window alone.
        rotary_dim: channels of each head in which queries and keys of causal attention are turned by their position,
            even; see :func:`torch_linformer.functional.rotary.rotate`.
        slot_bias: parameters ``slot_bias_k`` and ``slot_bias_v`` ``(num_kv_heads, K, D)``, 0 at first, are added to
            :math:`\bar K` and :math:`\bar V`. The paper has none: models trained elsewhere do.
        batch_first: inputs are ``(B, N, C)``; False for ``(N, B, C)``.

    Raises:
        ValueError: for arguments out of range, and for ``sharing="layerwise"``.

    Source: arXiv 2006.04768, section 4.
    """

    slot_bias_k: nn.Parameter | None
    slot_bias_v: nn.Parameter | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        max_len: int,
        k: int = 256,
        *,
        dropout: float = 0.0,
        bias: bool = True,
        kdim: int | None = None,
        vdim: int | None = None,
        head_dim: int | None = None,
        num_kv_heads: int | None = None,
        projection: Projection | None = "linear",
        sharing: Sharing = "headwise",
        length_scaling: bool = True,
        causal: bool = False,
        window: int | None = None,
        rotary_dim: int = 0,
        slot_bias: bool = False,
        batch_first: bool = True,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(
            embed_dim,
            num_heads,
            dropout=dropout,
            bias=bias,
            kdim=kdim,
            vdim=vdim,
            head_dim=head_dim,
            num_kv_heads=num_kv_heads,
            causal=causal,
            rotary_dim=rotary_dim,
            batch_first=batch_first,
            device=device,
            dtype=dtype,
        )
        check_sharing(sharing)
        check_window(window)
        self.window = window
        if sharing == "layerwise":
            raise ValueError(
                "sharing='layerwise' shares one projection among layers, so a lone layer cannot own it: "
                "use LinformerEncoder, or sharing='kv' for one projection in this layer"
            )
        self.proj_k: SequenceProjection | None = None
        self.proj_v: SequenceProjection | None = None
        self.running: CausalProjection | None = None
        if causal:
            check_causal(k, max_len, window, projection, slot_bias)
            if k > 0:
                self.running = CausalProjection(k, num_heads, self.head_dim, max_len, device=device, dtype=dtype)
        elif projection is not None:
            options: dict[str, Any] = {
                "projection": projection,
                "num_heads": self.num_kv_heads if sharing == "none" else None,
                "length_scaling": length_scaling,
                "device": device,
                "dtype": dtype,
            }
            self.proj_k = SequenceProjection(max_len, k, **options)
            if sharing != "kv" and projection not in PARAMETERLESS:
                self.proj_v = SequenceProjection(max_len, k, **options)
        shape = (self.num_kv_heads, k, self.head_dim)
        for name in ("slot_bias_k", "slot_bias_v"):
            bias_HKD = nn.Parameter(torch.zeros(shape, device=device, dtype=dtype)) if slot_bias else None
            self.register_parameter(name, bias_HKD)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        # Absent while the base class is still building: the projections then draw their own first values.
        for projection in (getattr(self, name, None) for name in ("proj_k", "proj_v", "running")):
            if projection is not None:
                projection.reset_parameters()
        for slot_bias in (getattr(self, "slot_bias_k", None), getattr(self, "slot_bias_v", None)):
            if slot_bias is not None:
                nn.init.zeros_(slot_bias)

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take sequences up to ``max_len``; see :meth:`SequenceProjection.resize_max_len`.

        Raises:
            ValueError: as there, nothing being changed then; and where there is no E, in causal attention for one.
        """
        resize_maps(self, max_len, mode)

    @property
    def order_matters(self) -> bool:
        # Running means count the real tokens themselves.
        return not self.causal or self.window is not None

    @property
    def looks_around(self) -> bool:
        return self.causal or self.window is not None

    def attend_to(
        self, keys_and_values: KeysAndValues, query: Tensor, need_weights: bool = False, start: int = 0
    ) -> tuple[Tensor, Tensor | None]:
        keys_and_values = self._biased(keys_and_values)
        if self.window is None:
            output, weights = super().attend_to(keys_and_values, query, need_weights)
            return output, None if weights is None else keys_and_values.over_all_slots(weights)
        keys, values, slot_padding, near, _ = keys_and_values
        assert near is not None
        first, last = max(0, start - self.window // 2), start + query.shape[1] + self.window // 2
        near_keys, near_values = near.keys[:, :, first:last], near.values[:, :, first:last]
        output_BHND, weights = attend_with_window(
            self._split_heads(run_linear(self.q_proj, query), self.num_heads),
            repeat_heads(keys, self.num_heads),
            repeat_heads(values, self.num_heads),
            repeat_heads(near_keys, self.num_heads),
            repeat_heads(near_values, self.num_heads),
            self.window // 2,
            slot_padding=slot_padding,
            key_padding=None if near.padding is None else near.padding[:, first:last],
            offset=start - first,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        output = run_linear(self.out_proj, output_BHND.transpose(1, 2).flatten(2))
        return output, None if weights is None else keys_and_values.over_all_slots(weights)

    def _attend_to_past(
        self,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        padding: Tensor | None,
        past: Past | None,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        before = None if past is None else past.state
        assert not isinstance(before, FullState)
        slot_weights, score_bias = (None, None) if self.running is None else self.running(keys)
        output, weights, state = attend_causally(
            queries,
            keys,
            values,
            slot_weights,
            score_bias=score_bias,
            window=self.window,
            padding_mask=padding,
            state=before,
            dropout_p=self.dropout if self.training else 0.0,
            need_weights=need_weights,
        )
        if past is not None:
            past.state = state
        return output, weights

    def _keys_and_values(
        self,
        key: Tensor,
        value: Tensor,
        padding: Padding | None,
        shared_projection: SequenceProjection | None,
    ) -> KeysAndValues:
        proj_k, proj_v = self._projections(shared_projection)
        padding = None if padding is None else padding.justified
        near = super()._keys_and_values(key, value, padding, None) if self.window else None
        if self._compresses_first(proj_k, proj_v, key.shape[1], value is key):
            slots_k = proj_k(key, padding, all_slots=False)
            slots_v = slots_k if proj_v is proj_k and value is key else proj_v(value, padding, all_slots=False)
            keys, values = self._heads_of_slots(slots_k, slots_v, proj_k, proj_v, key, padding)
        else:
            positions = near or super()._keys_and_values(key, value, padding, None)
            keys = proj_k(positions.keys, padding, all_slots=False)
            values = proj_v(positions.values, padding, all_slots=False)
        return self._slots(keys, values, proj_k, key, padding, near)

    def keys_and_values_of_chunks(
        self, chunks: Chunks, norm: nn.LayerNorm | None, shared_projection: SequenceProjection | None
    ) -> KeysAndValues:
        proj_k, proj_v = self._projections(shared_projection)
        self._check_inputs(chunks.sequence, chunks.sequence, chunks.sequence)
        before_channels = self._compresses_first(proj_k, proj_v, chunks.length, True)
        one_for_both = before_channels and proj_v is proj_k
        slots_k, slots_v = SlotsOfChunks(proj_k, chunks), SlotsOfChunks(proj_v, chunks)
        near = super().keys_and_values_of_chunks(chunks, norm, None) if self.window else None
        for chunk in chunks.cut_at(1 if proj_k.projection in DENSE else proj_k.window):
            if near is not None and not before_channels:
                slots_k.add(chunk, near.keys[:, :, chunk])
                slots_v.add(chunk, near.values[:, :, chunk])
                continue
            x = chunks.read(chunk) if norm is None else norm(chunks.read(chunk))
            slots_k.add(
                chunk, x if before_channels else self._split_heads(run_linear(self.k_proj, x), self.num_kv_heads)
            )
            if not one_for_both:
                slots_v.add(
                    chunk, x if before_channels else self._split_heads(run_linear(self.v_proj, x), self.num_kv_heads)
                )
        keys = slots_k.total()
        values = keys if one_for_both else slots_v.total()
        if before_channels:
            keys, values = self._heads_of_slots(keys, values, proj_k, proj_v, chunks.sequence, chunks.padding)
        return self._slots(keys, values, proj_k, chunks.sequence, chunks.padding, near)

    def _projections(self, shared: SequenceProjection | None) -> tuple[SequenceProjection, SequenceProjection]:
        proj_k = shared if self.proj_k is None else self.proj_k
        if proj_k is None:
            raise ValueError("this attention owns no projection (projection=None): pass shared_projection")
        return proj_k, proj_k if self.proj_v is None else self.proj_v

    def _heads_of_slots(
        self,
        slots_k: Tensor,
        slots_v: Tensor,
        proj_k: SequenceProjection,
        proj_v: SequenceProjection,
        key: Tensor,
        padding: Padding | None,
    ) -> tuple[Tensor, Tensor]:
        """Keys and values ``(B, H, K, D)`` from the slots ``(B, K, C)`` of the inputs themselves."""
        ones = key.new_ones(1 if padding is None else key.shape[0], key.shape[1], 1)
        keys = self._split_heads(_project_slots(self.k_proj, slots_k, proj_k, ones, padding), self.num_kv_heads)
        values = self._split_heads(_project_slots(self.v_proj, slots_v, proj_v, ones, padding), self.num_kv_heads)
        return keys, values

    def _slots(
        self,
        keys: Tensor,
        values: Tensor,
        projection: SequenceProjection,
        sequence: Tensor,
        padding: Padding | None,
        near: KeysAndValues | None,
    ) -> KeysAndValues:
        """The slots that a sequence reaches, so that a short text pays for no more, and what is near."""
        slot_padding = projection.slot_padding_mask(sequence, padding, all_slots=False)
        return KeysAndValues(keys, values, slot_padding, near, projection.k)

    def _biased(self, slots: KeysAndValues) -> KeysAndValues:
        """With the biases, added where they are used: slots of chunks are made outside this module's own call."""
        if self.slot_bias_k is None or self.slot_bias_v is None:
            return slots
        reached = slots.keys.shape[2]
        keys, values = slots.keys + self.slot_bias_k[:, :reached], slots.values + self.slot_bias_v[:, :reached]
        # A slot without a token is nothing, and its bias too: a row of padding alone attends to all of them.
        return slots._replace(keys=keys, values=zero_padding(values, slots.padding))

    def _compresses_first(
        self, proj_k: SequenceProjection, proj_v: SequenceProjection, length: int, same_source: bool
    ) -> bool:
        """True where compressing the inputs before ``k_proj`` and ``v_proj`` takes fewer multiplications."""
        if not (proj_k.commutes_with_channels and proj_v.commutes_with_channels):
            return False
        # A compiled graph serves many lengths: deciding on the actual one would tie the graph to it.
        length = proj_k.max_len if torch.compiler.is_compiling() else length
        plain = compressed = 0
        for linear, projection in ((self.k_proj, proj_k), (self.v_proj, proj_v)):
            width_in, width_out = linear.in_features, linear.out_features
            plain += projection.multiplications(length, width_out)
            if not self.window:  # which needs the keys and values of all positions anyway
                plain += length * width_in * width_out
            compressed += projection.multiplications(length, width_in)
            compressed += projection.reached(length) * width_in * width_out
        if proj_v is proj_k and same_source:
            compressed -= proj_v.multiplications(length, self.v_proj.in_features)
        return compressed < plain


def _project_slots(
    linear: nn.Linear, slots: Tensor, projection: SequenceProjection, ones: Tensor, padding: Padding | None
) -> Tensor:
    """``(Eᵀ X) W + (Eᵀ m) bᵀ``, where b is what the map makes of a zero, called once for both.

    So adapters around the map take part, and its parameters are read by nobody else.
    """
    if linear.bias is None:
        return run_linear(linear, slots)
    mapped, bias = torch.split(run_linear(linear, F.pad(slots, (0, 0, 0, 1))), [slots.shape[1], 1], dim=1)
    mass: Tensor = projection(ones, padding, all_slots=False)
    return mapped + (mass - 1) * bias


def check_causal(k: int, max_len: int, window: int | None, projection: str | None, slot_bias: bool) -> None:
    """Raise ``ValueError`` for options that causal attention has no use for."""
    if projection not in (None, "linear"):
        raise ValueError(
            f"projection={projection!r} mixes a whole sequence; with causal=True slots are running means: leave "
            "projection at its default"
        )
    if slot_bias:
        raise ValueError("slot_bias=True belongs to slots of a whole sequence: leave it out with causal=True")
    if k < 0 or max_len < 1:
        raise ValueError(f"k must be at least 0 and max_len at least 1, got {k} and {max_len}")
    if k == 0 and window is None:
        raise ValueError("k=0 leaves nothing to attend to: give window, or k of at least 1")


def check_sharing(sharing: str) -> None:
    """Raise ``ValueError`` for an unknown way of sharing."""
    if sharing not in get_args(Sharing):
        raise ValueError(f"sharing must be one of {', '.join(get_args(Sharing))}, got {sharing!r}")
