"""What a CPU has for itself: oneDNN, the operator below SDPA, when each is faster, and how much is computed at a time.

What is worked on at once stays in a CPU's caches, as measured (docs/log.md). A GPU wants the opposite, few kernels over
much data: its sizes are chosen by arithmetic and have not been measured (docs/performance.md).
"""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from torch_linformer.functional.implementations import UNMEASURED, Implementation, compute, register
from torch_linformer.functional.pytorch import (
    is_transformed,
    is_watched,
    onednn_has_bfloat16,
    records_a_graph,
    runs_in_chunks,
)


class Sizes(NamedTuple):
    """How much one type of device computes at a time.

    Attributes:
        window_block: queries whose windows are computed together with slots.
        window_scores: scores of slots and windows; None for all.
        pooled_scores: scores of slots chosen by the input.
        segment: positions of causal attention whose chunks are computed side by side, in a loop over segments.
        inference_rows: queries from their projection to the output; None for all.
    """

    window_block: int
    window_scores: int | None
    pooled_scores: int
    segment: int
    inference_rows: int | None


CPU = Sizes(window_block=64, window_scores=2**21, pooled_scores=2**20, segment=512, inference_rows=1024)
# A block of 128 queries copies (K + c + 2r) / c keys and values a query, with K 256 and r 32 that is 6 for c = 64 and
# 3.5 for c = 128, for a sixth more scores. 2^27 scores are 512 MB in float32. A segment is 64 chunks of 64 positions.
OTHERS = Sizes(window_block=128, window_scores=None, pooled_scores=2**27, segment=4096, inference_rows=None)


def sizes_for(device: torch.device) -> Sizes:
    """The sizes of a device."""
    return CPU if device.type == "cpu" else OTHERS


QUERIES = register(
    "queries",
    {
        "chunks": Implementation(
            lambda length, device: sizes_for(device).inference_rows,
            "inference on a CPU, no graph",
            lambda length, device: (
                None
                if runs_in_chunks(sizes_for(device).inference_rows)
                else "only inference outside of graphs, on a CPU, goes chunk by chunk"
            ),
            lambda length, device: length > (sizes_for(device).inference_rows or length),
            measured="docs/log.md",
        ),
        "at once": Implementation(lambda length, device: None, measured=f"docs/log.md; {UNMEASURED} off a CPU"),
    },
    is_plan=True,
)


def queries_at_once(length: int, device: torch.device) -> int | None:
    """Queries from their projection to the output at a time; None for all of them."""
    number: int | None = compute(QUERIES, length, device)
    return number


SMALLEST = 2**23  # multiplications from which oneDNN's preparation pays for itself
PRODUCTS = (torch.float32, torch.bfloat16)  # types in which it multiplies matrices


def by_onednn(
    compute: Callable[..., Any],
    dtypes: tuple[torch.dtype, ...],
    pays: Callable[..., bool] = lambda *call: True,
    *,
    on_every_cpu: bool = False,
) -> Implementation:
    """oneDNN for tensors of these types; ``on_every_cpu`` it can be faster, beside an MKL that is not held back too."""

    def is_faster(*call: Any) -> bool:
        # Compilers have their own kernels, and counters of operations know only torch's.
        return (MKL_IS_HELD_BACK or on_every_cpu) and not records_a_graph() and pays(*call) and not is_watched()

    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    needs = f"plain {names} tensors on a CPU, no graph, no torch.func"
    return Implementation(compute, needs, lambda *call: why_not_onednn(dtypes, *call), is_faster)


def _why_not_private(call: tuple[Any, ...]) -> str | None:
    """The reason why no operator without a public name can compute with the tensors of a call, or None where it can."""
    if records_a_graph():
        return "compiled and traced graphs hold PyTorch's own functions"
    if is_transformed():
        return "the transforms of torch.func know PyTorch's own functions only"
    for tensor in tensors_in(call):
        if tensor.device.type != "cpu":
            return f"it runs on a CPU, and a tensor is on {tensor.device}"
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"it takes plain tensors, got {type(tensor).__name__}"
    return None


def why_not_onednn(dtypes: tuple[torch.dtype, ...], *call: Any) -> str | None:
    """The reason why oneDNN cannot compute with the tensors of a call, or None where it can."""
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        return "this PyTorch is built without it"
    if not mkldnn.enabled:
        return "torch.backends.mkldnn is switched off"
    if reason := _why_not_private(call):
        return reason
    tensor_dtypes = {autocast_dtype(tensor) for tensor in tensors_in(call)}
    if len(tensor_dtypes) > 1 or not tensor_dtypes <= set(dtypes):
        expected = " or ".join(str(dtype) for dtype in dtypes)
        return f"it takes tensors of {expected}, got {', '.join(sorted(map(str, tensor_dtypes)))}"
    if torch.bfloat16 in tensor_dtypes and not onednn_has_bfloat16():
        return "this processor has no bfloat16 instructions that it could use"
    return None


def by_flash(compute: Callable[..., Any], why_not: Callable[..., str | None]) -> Implementation:
    """The operator below SDPA, where ``why_not`` has no objection to a call."""
    return Implementation(
        compute,
        "plain tensors on a CPU, of one width; no graph, no torch.func; private to PyTorch",
        lambda *call: _why_not_private(call) or why_not(*call),
        lambda *call: not records_a_graph() and not is_watched(),  # counters of operations know only public ones
    )


def tensors_in(call: Iterable[Any]) -> Iterator[Tensor]:
    """The tensors of arguments and of records among them, but masks."""
    for argument in call:
        if isinstance(argument, Tensor):
            if argument.dtype != torch.bool:
                yield argument
        elif isinstance(argument, tuple | list):
            yield from tensors_in(argument)


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The type in which autocast multiplies matrices like this CPU tensor; it casts all but float64."""
    casts = torch.is_autocast_enabled("cpu") and tensor.is_floating_point() and tensor.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if casts else tensor.dtype


def _mkl_is_held_back() -> bool:
    """Whether MKL takes slow kernels: on an AMD processor with AVX-512, and PyTorch with both libraries."""
    backends: Any = torch.backends
    if not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "AMD" in capabilities.get("cpu_name", "") and bool(capabilities.get("avx512_bf16"))


MKL_IS_HELD_BACK = _mkl_is_held_back()  # asked once: the answer is needed a dozen times in a layer
