"""The attention of each layer of a linear encoder of transformers in one document."""

from collections.abc import Iterable
from contextlib import ExitStack
from itertools import count
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.analysis.inspection.attention_maps import LayerAttention, layer_with_slots
from torch_linformer.encoders.encoder_context import EncoderContext
from torch_linformer.nn.attention.source import Pair


@torch.no_grad()
def attention_of_encoder(
    encoder: PreTrainedModel, input_ids: Tensor, layers: Iterable[int]
) -> dict[int, LayerAttention]:
    """Run a document ``(1, N)`` and return the attention of some layers by their number from 0, on the CPU.

    Layers are numbered as they run: one attention may be that of several. All read the document by slots, also where it
    is so short that they would read it exactly.
    """
    chosen, running, seen = set(layers), count(), dict[int, LayerAttention]()
    numbers: list[int] = []  # of the layers that have begun
    made: dict[object, Tensor] = {}

    def ask_for_weights(context: nn.Module, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]] | None:
        numbers.append(next(running))
        if numbers[-1] not in chosen:
            return None
        return args, {**kwargs, "call": kwargs["call"]._replace(need_weights=True)}

    def look(context: nn.Module, args: Any, kwargs: dict[str, Any], output: tuple[Tensor, Tensor]) -> None:
        if numbers[-1] in chosen:
            heads = Pair(args[1], args[2])
            like = heads.key[:, 0]  # its order of tokens is that of all heads
            seen[numbers[-1]] = layer_with_slots(
                cast(EncoderContext, context), like, (heads, heads), output[1][0], made
            )

    with ExitStack() as stack:
        for context in cast(nn.Module, encoder).modules():
            if isinstance(context, EncoderContext):
                stack.callback(setattr, context, "exact_below", context.exact_below)
                context.exact_below = 0
                stack.enter_context(context.register_forward_pre_hook(ask_for_weights, with_kwargs=True))
                stack.enter_context(context.register_forward_hook(look, with_kwargs=True))
        cast(Any, encoder)(input_ids=input_ids)
    return seen
