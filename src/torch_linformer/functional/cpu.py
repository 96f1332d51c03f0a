"""What only a CPU has: when oneDNN, and when the operator below SDPA, computes an operation, and when it is faster."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.functional.implementations import Implementation
from torch_linformer.functional.pytorch import is_transformed, is_watched, onednn_has_bfloat16, records_a_graph

SMALLEST = 2**23  # multiplications from which oneDNN's preparation pays for itself
PRODUCTS = (torch.float32, torch.bfloat16)  # types in which it multiplies matrices


def by_onednn(
    dtypes: tuple[torch.dtype, ...], pays: Callable[..., bool], *, on_every_cpu: bool = False
) -> Implementation:
    """oneDNN as an implementation for tensors of these types.

    ``pays`` says whether they are of a size for which it can be faster; ``on_every_cpu``, that it is beside an MKL that
    is not held back, too. Compilers have their own kernels, and counters of operations know only torch's.
    """

    def is_faster(*call: Any) -> bool:
        held_back = MKL_IS_HELD_BACK or on_every_cpu
        return held_back and not records_a_graph() and pays(*call) and not is_watched()

    def why_not(*call: Any) -> str | None:
        return why_not_onednn(dtypes, *(x for x in call if isinstance(x, Tensor)))

    names = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    return Implementation("onednn", f"plain {names} tensors on a CPU, no graph, no torch.func", why_not, is_faster)


def why_not_onednn(dtypes: tuple[torch.dtype, ...], *tensors: Tensor) -> str | None:
    """The reason why oneDNN cannot compute with these tensors, or None where it can."""
    if records_a_graph():
        return "compiled and traced graphs hold PyTorch's own functions"
    if is_transformed():
        return "the transforms of torch.func know PyTorch's own functions only"
    mkldnn: Any = torch.backends.mkldnn
    if not mkldnn.is_available():
        return "this PyTorch is built without it"
    if not mkldnn.enabled:
        return "torch.backends.mkldnn is switched off"
    for tensor in tensors:
        if tensor.device.type != "cpu":
            return f"it runs on a CPU, and a tensor is on {tensor.device}"
        if type(tensor) not in (Tensor, nn.Parameter):
            return f"it takes plain tensors, got {type(tensor).__name__}"
    tensor_dtypes = {autocast_dtype(tensor) for tensor in tensors}
    if len(tensor_dtypes) > 1 or not tensor_dtypes <= set(dtypes):
        expected = " or ".join(str(dtype) for dtype in dtypes)
        return f"it takes tensors of {expected}, got {', '.join(sorted(map(str, tensor_dtypes)))}"
    if torch.bfloat16 in tensor_dtypes and not onednn_has_bfloat16():
        return "this processor has no bfloat16 instructions that it could use"
    return None


def by_flash(why_not: Callable[..., str | None]) -> Implementation:
    """The operator below SDPA as an implementation, where ``why_not`` has no objection to a call."""

    def why_not_flash(*call: Any) -> str | None:
        if records_a_graph() or is_transformed():
            return "compiled and traced graphs, and transforms of torch.func, take PyTorch's public functions"
        tensors = [x for x in call if isinstance(x, Tensor)]
        if not all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" for x in tensors):
            return "it takes plain tensors on a CPU"
        return why_not(*call)

    def pays(*call: Any) -> bool:
        return not records_a_graph() and not is_watched()  # counters of operations know only public ones

    needs = "plain tensors on a CPU, of one width; no graph, no torch.func"
    return Implementation("flash", needs, why_not_flash, pays, is_public=False)


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
