"""Modules of `torch_linformer.nn` with each of their options, and what they are called with.

Their parameters follow from a formula, so that no file holds them.
"""

import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from recorded import at_real_tokens, gradients_of, weighted_sum
from torch import Tensor, nn

from torch_linformer.functional.padding import Padding
from torch_linformer.nn import (
    DynamicProjection,
    LinformerAttention,
    LinformerDecoder,
    LinformerDecoderLayer,
    LinformerEncoder,
    LinformerEncoderLayer,
    SequenceProjection,
)

BATCH, LENGTH, MEMORY_LENGTH, WIDTH = 2, 11, 7, 6
LATE_PADDING = torch.tensor([[False] * 8 + [True] * 3, [False] * LENGTH])
EARLY_PADDING = torch.tensor([[True, True] + [False] * 5, [False, True] + [False] * 5])  # of a memory


@dataclass(frozen=True)
class Case:
    """A module that is built of ``options``, and how it is called."""

    build: Callable[..., nn.Module]
    options: dict[str, Any] = field(default_factory=dict)

    def module(self) -> nn.Module:
        module = self.build(**self.options).double()
        with torch.no_grad():
            for name, tensor in module.state_dict().items():
                tensor.copy_(formula(name, tensor.shape))
        return module


def formula(name: str, shape: torch.Size) -> Tensor:
    """Numbers between -0.5 and 0.5, and logarithms of time scales between 1 and 2."""
    first = zlib.crc32(name.encode()) % 1000 + 1
    numbers = torch.arange(first, first + shape.numel(), dtype=torch.float64).mul(0.7).sin().mul(0.5).view(shape)
    return numbers + 1.5 if name.endswith("log_time") else numbers


def attention(**options: Any) -> nn.Module:
    return LinformerAttention(WIDTH, 2, **{"max_len": 13, "k": 4, **options})


def encoder_layer(**options: Any) -> nn.Module:
    return LinformerEncoderLayer(WIDTH, 2, 10, 0.0, max_len=13, k=4, **options)


def decoder_layer(**options: Any) -> nn.Module:
    return LinformerDecoderLayer(WIDTH, 2, 10, 0.0, max_len=13, k=4, memory_len=9, memory_k=3, **options)


def encoder(**options: Any) -> nn.Module:
    return LinformerEncoder(WIDTH, 2, 2, 10, 0.0, **{"max_len": 13, "k": 4, **options})


def decoder(**options: Any) -> nn.Module:
    options = {"max_len": 13, "k": 4, "memory_len": 9, "memory_k": 3, **options}
    return LinformerDecoder(WIDTH, 2, 2, 10, 0.0, **options)


def projection(**options: Any) -> nn.Module:
    return SequenceProjection(13, 4, **options)


def dynamic_projection(**options: Any) -> nn.Module:
    return DynamicProjection(13, 4, **options)


DYNAMIC = {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}
CASES = {
    "projection-linear": Case(projection),
    "projection-random": Case(projection, {"projection": "random"}),
    "projection-conv": Case(projection, {"projection": "conv"}),
    "projection-mean": Case(projection, {"projection": "mean"}),
    "projection-max": Case(projection, {"projection": "max"}),
    "projection-unscaled": Case(projection, {"length_scaling": False}),
    "projection-linear-of-heads": Case(projection, {"num_heads": 2}),
    "projection-conv-of-heads": Case(projection, {"num_heads": 2, "projection": "conv"}),
    "projection-dynamic": Case(dynamic_projection, {"width": WIDTH}),
    "projection-dynamic-of-heads": Case(dynamic_projection, {"width": WIDTH // 2, "num_heads": 2}),
    "attention": Case(attention),
    "attention-of-each-head": Case(attention, {"sharing": "none"}),
    "attention-kv": Case(attention, {"sharing": "kv"}),
    "attention-random": Case(attention, {"projection": "random"}),
    "attention-conv-of-each-head": Case(attention, {"projection": "conv", "sharing": "none"}),
    "attention-mean": Case(attention, {"projection": "mean"}),
    "attention-max": Case(attention, {"projection": "max"}),
    "attention-window": Case(attention, {"window": 3}),
    "attention-slot-bias": Case(attention, {"slot_bias": True, "num_kv_heads": 1, "head_dim": 5}),
    "attention-kv-of-each-head": Case(attention, {"sharing": "kv_per_head"}),
    "attention-dynamic": Case(attention, {"projection": "dynamic"}),
    "attention-dynamic-of-each-head": Case(attention, {**DYNAMIC, "sharing": "none", "window": 3}),
    "attention-mean-fixed-mass": Case(attention, {"projection": "mean", "slot_mass": "fixed"}),
    "attention-exact-tokens": Case(attention, {"exact_first": 1, "exact_last": 2, "num_kv_heads": 1}),
    "attention-window-alone": Case(attention, {"k": 0, "window": 3, "exact_first": 1}),
    "attention-unscaled-without-bias": Case(attention, {"length_scaling": False, "bias": False}),
    "attention-of-two-widths": Case(attention, {"kdim": 5, "vdim": 3}),
    "attention-sequence-first": Case(attention, {"batch_first": False}),
    "causal": Case(attention, {"causal": True}),
    "causal-window": Case(attention, {"causal": True, "window": 3, "rotary_dim": 2, "num_kv_heads": 1}),
    "causal-window-alone": Case(attention, {"causal": True, "window": 3, "k": 0, "rotary_dim": 2}),
    "causal-exact-first": Case(attention, {"causal": True, "window": 3, "exact_first": 2}),
    "encoder-layer": Case(encoder_layer),
    "encoder-layer-pre-norm-gated": Case(encoder_layer, {"norm_first": True, "gated": True, "activation": "gelu"}),
    "encoder-layer-chunks": Case(encoder_layer, {"chunk_size": 3, "window": 5}),
    "encoder-layer-causal": Case(encoder_layer, {"causal": True, "window": 3, "rotary_dim": 2}),
    "encoder": Case(encoder),
    "encoder-layerwise": Case(encoder, {"sharing": "layerwise"}),
    "encoder-dynamic-layerwise": Case(encoder, {**DYNAMIC, "sharing": "layerwise", "chunk_size": 4}),
    "encoder-of-two-k": Case(encoder, {"k": [3, 5], "norm_first": True}),
    "encoder-reversible": Case(encoder, {"activation_memory": "reversible", "norm_first": True}),
    "encoder-checkpoint": Case(encoder, {"activation_memory": "checkpoint", "norm_first": True, "final_norm": False}),
    "encoder-causal": Case(encoder, {"causal": True, "window": 3, "chunk_size": 4}),
    "decoder-layer": Case(decoder_layer),
    "decoder-layer-pre-norm-gated": Case(decoder_layer, {"norm_first": True, "gated": True, "window": 3}),
    "decoder-layer-of-two-widths": Case(decoder_layer, {"memory_dim": 5, "projection": "mean", "rotary_dim": 2}),
    "decoder": Case(decoder, {"norm_first": True}),
    "decoder-layerwise": Case(decoder, {"sharing": "layerwise", "window": 3}),
    "decoder-of-two-k": Case(decoder, {"k": [2, 4], "memory_k": [3, 5], "chunk_size": 4}),
    "decoder-dynamic": Case(decoder, {**DYNAMIC, "sharing": "kv"}),
    "decoder-checkpoint": Case(decoder, {"activation_memory": "checkpoint", "sharing": "kv"}),
}


def record_module(case: Case) -> dict[str, Tensor]:
    """A number a position of its output in inference, and one a gradient in training: to input and parameters."""
    module = case.module()
    with torch.no_grad():
        output, _ = _run(module.eval())
    trained, given = _run(module.train())
    gradients = gradients_of(weighted_sum(trained), module, given)
    return {"output": weighted_sum(output, -1), "gradients": gradients.detach()}


def _run(module: nn.Module) -> tuple[Tensor, Tensor]:
    """The output at real tokens, and the input that it is asked of."""
    real = ~LATE_PADDING
    x = formula("input", torch.Size([BATCH, LENGTH, WIDTH])).requires_grad_()
    if isinstance(module, SequenceProjection | DynamicProjection):
        heads = x if module.num_heads is None else x.unflatten(-1, (2, -1)).transpose(1, 2)
        if isinstance(module, DynamicProjection):
            return module(heads, [heads], Padding(LATE_PADDING, in_order=True))[0], x
        return module(heads, LATE_PADDING), x
    if isinstance(module, LinformerAttention):
        return at_real_tokens(_attend(module, x), real), x
    if isinstance(module, LinformerDecoderLayer | LinformerDecoder):
        first = module if isinstance(module, LinformerDecoderLayer) else module.layers[0]
        memory = formula("memory", torch.Size([BATCH, MEMORY_LENGTH, first.multihead_attn.k_proj.in_features]))
        masks = {"tgt_key_padding_mask": LATE_PADDING, "memory_key_padding_mask": EARLY_PADDING}
        return at_real_tokens(module(x, memory, **masks), real), x
    return at_real_tokens(module(x, src_key_padding_mask=LATE_PADDING), real), x


def _attend(module: LinformerAttention, x: Tensor) -> Tensor:
    if module.k_proj.in_features != WIDTH:  # and so reads something else than the queries' sequence
        keys, values = (formula(name, torch.Size([BATCH, LENGTH, width])) for name, width in (("k", 5), ("v", 3)))
        return module(x, keys, values, key_padding_mask=LATE_PADDING)[0]
    if not module.batch_first:
        x = x.transpose(0, 1)
        return module(x, x, x, key_padding_mask=LATE_PADDING)[0].transpose(0, 1)
    return module(x, x, x, key_padding_mask=LATE_PADDING)[0]
