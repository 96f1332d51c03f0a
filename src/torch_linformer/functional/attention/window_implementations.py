"""The ways to attend to a window beside slots, and what each needs."""

from typing import NamedTuple

import torch
from torch import Tensor

from torch_linformer.functional.kernels import flash
from torch_linformer.functional.kernels.graph import is_compiling, is_transformed, needs_graph, records_a_graph
from torch_linformer.functional.kernels.implementations import UNMEASURED, Implementation, Operation, register
from torch_linformer.functional.kernels.onednn import by_onednn

FLEX_DEVICES = ("cpu", "cuda", "xpu")  # of which FlexAttention has a gradient everywhere but on a CPU
FLEX_WIDTH = 16  # channels that a kernel of FlexAttention multiplies at the least


class Result(NamedTuple):
    """What a call asks for beside the output."""

    dropout_p: float
    need_weights: bool


def _why_not_flex(query: Tensor, key: Tensor, value: Tensor, *call: object) -> str | None:
    device, width = query.device.type, min(query.shape[-1], value.shape[-1])
    *_, window_bias, result = call
    assert isinstance(result, Result)
    if window_bias is not None:
        return "it adds no bias to the scores of a window"
    if result.need_weights:
        return "it returns no weights"
    if result.dropout_p > 0:
        return "it drops no weights"
    if is_transformed():
        return "the transforms of torch.func do not know it"
    if records_a_graph() and not is_compiling():
        return "torch.jit.trace cannot record it"
    if device not in FLEX_DEVICES:
        return f"it runs on {', '.join(FLEX_DEVICES)}, and a tensor is on {device}"
    if 0 in query.shape[:3]:
        return f"it needs a row and a query, got {tuple(query.shape)}"
    if device != "cpu" and width < FLEX_WIDTH:
        return f"its kernels need heads of {FLEX_WIDTH} channels or more, got {width}"
    return None


def _why_not_joined(query: Tensor, key: Tensor, value: Tensor, slot_keys: Tensor, *call: object) -> str | None:
    *tensors, result = call
    assert isinstance(result, Result)
    if result.need_weights or result.dropout_p > 0:
        return "it returns and drops no weights"
    if needs_graph(query, key, value, slot_keys, *(x for x in tensors if isinstance(x, Tensor))):
        return "it has no gradient"
    if query.shape[2] == 0 or slot_keys.shape[2] == 0 or slot_keys.shape[3] != value.shape[3]:
        return "it needs a query and a slot, and keys and values of one width"
    return None


WINDOWED_ATTENTION = register(
    Operation(
        "windowed attention",
        (
            Implementation(
                "flex",
                "cpu, cuda or xpu; no bias of a window, no dropout, no weights, no trace, no torch.func; on a CPU no "
                "gradient",
                _why_not_flex,
                lambda *call: False,  # nobody has measured it
                measured=UNMEASURED,
            ),
            by_onednn((torch.bfloat16,), lambda *call: True),
            flash.implementation(_why_not_joined),
            Implementation("torch"),
        ),
    )
)
