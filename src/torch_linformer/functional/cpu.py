"""What only a CPU has: when oneDNN, and when the operator below SDPA, computes an operation, and when it is faster."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.functional.implementations import Implementation
from torch_linformer.functional.pytorch import is_transformed, is_watched, onednn_has_bfloat16, records_a_graph

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


def why_not_onednn(dtypes: tuple[torch.dtype, ...], *call: Any) -> str | None:
    """The reason why oneDNN cannot compute with the tensors of a call, or None where it can."""
    if records_a_graph():
        return "compiled and traced graphs hold PyTorch's own functions"
    if is_transformed():
        return "the transforms of torch.func know PyTorch's own functions only"
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        return "this PyTorch is built without it"
    if not mkldnn.enabled:
        return "torch.backends.mkldnn is switched off"
    tensor_dtypes = set()
    for tensor in tensors_in(call):
        if tensor.device.type != "cpu":
            return f"it runs on a CPU, and a tensor is on {tensor.device}"
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"it takes plain tensors, got {type(tensor).__name__}"
        tensor_dtypes.add(autocast_dtype(tensor))
    if len(tensor_dtypes) > 1 or not tensor_dtypes <= set(dtypes):
        expected = " or ".join(str(dtype) for dtype in dtypes)
        return f"it takes tensors of {expected}, got {', '.join(sorted(map(str, tensor_dtypes)))}"
    if torch.bfloat16 in tensor_dtypes and not onednn_has_bfloat16():
        return "this processor has no bfloat16 instructions that it could use"
    return None


def by_flash(compute: Callable[..., Any], why_not: Callable[..., str | None]) -> Implementation:
    """The operator below SDPA, where ``why_not`` has no objection to a call."""

    def why_not_flash(*call: Any) -> str | None:
        if records_a_graph() or is_transformed():
            return "compiled and traced graphs, and transforms of torch.func, take PyTorch's public functions"
        if not all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" for x in tensors_in(call)):
            return "it takes plain tensors on a CPU"
        return why_not(*call)

    def pays(*call: Any) -> bool:
        return not records_a_graph() and not is_watched()  # counters of operations know only public ones

    needs = "plain tensors on a CPU, of one width; no graph, no torch.func"
    return Implementation(compute, needs, why_not_flash, pays, is_public=False)


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
