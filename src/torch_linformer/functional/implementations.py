"""Which implementation computes an operation: decided here, where it can be asked and overruled.

``torch`` is PyTorch's own function. PyTorch multiplies float32 matrices through MKL, which takes its AVX2 kernels on
processors that are not Intel's; ``onednn``, in the same wheel, takes AVX-512 wherever it is, and is twice as fast on a
Zen 5 (docs/performance.md). The same holds in bfloat16 for the gradients of a linear map and for softmax attention.
``auto`` takes oneDNN where that was measured to be faster; results differ only in rounding.

``flex`` computes a window beside slots by FlexAttention. It is tested on a CPU, by FlexAttention's plain formula; no
GPU, for which it is meant, has run it yet, and so ``auto`` never takes it.

``scan`` computes causal attention to running means over all chunks at once, by PyTorch's own functions as ``torch``
does, whose loop suits the caches of a CPU. ``auto`` takes it on every other device.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from torch_linformer.functional.torch_state import is_transformed, is_watched, records_a_graph

Implementation = Literal["auto", "torch", "onednn", "flex", "scan"]

SMALLEST = 2**23  # multiplications from which oneDNN's preparation pays for itself
NARROWEST = 16  # channels; with fewer, transposing the mixture costs more than oneDNN saves
FLEX_DEVICES = ("cpu", "cuda", "xpu")  # of which FlexAttention has a gradient everywhere but on a CPU
FLEX_WIDTH = 16  # channels that a kernel of FlexAttention multiplies at the least
FEWEST_ROWS = 64  # queries in a block; smaller ones are slower than SDPA
SCORES = 2**21  # attention scores at a time, where they are computed in blocks: a few megabytes, which caches hold


class Operation(NamedTuple):
    """An operation with more than one implementation.

    Attributes:
        name: what error messages and :func:`use_implementation` call it.
        onednn_dtypes: types that oneDNN computes it in; none where it has no such implementation.
        onednn_pays: whether tensors are of a kind and size for which oneDNN can be faster.
        on_every_cpu: it is faster beside an MKL that is not held back, too.
        others: implementations that it has beside ``torch`` and ``onednn``.
    """

    name: str
    onednn_dtypes: tuple[torch.dtype, ...]
    onednn_pays: Callable[..., bool]
    on_every_cpu: bool = False
    others: tuple[Implementation, ...] = ()


def rows_at_once(query: Tensor, key: Tensor) -> int:
    """Queries whose scores over all keys fit in the caches."""
    return SCORES // max(1, query.shape[0] * query.shape[1] * key.shape[2])


def needs_graph(*tensors: Tensor) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def _linear_pays(input: Tensor, weight: Tensor) -> bool:
    return input.dim() > 1 and input.numel() * weight.shape[0] >= SMALLEST


def _activated_pays(input: Tensor, weight: Tensor) -> bool:
    return autocast_dtype(input) == torch.bfloat16 and _linear_pays(input, weight)


def _projection_pays(mixture: Tensor, sequence: Tensor) -> bool:
    wide = sequence.dim() == 3 and sequence.shape[-1] >= NARROWEST
    return wide and mixture.numel() * sequence.shape[-1] >= SMALLEST


def _attention_pays(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Only in inference, because training would keep all scores, and with enough queries at once."""
    return not needs_graph(query, key, value) and rows_at_once(query, key) >= FEWEST_ROWS


LINEAR = Operation("linear", (torch.float32, torch.bfloat16), _linear_pays)
ACTIVATED_LINEAR = Operation("linear with activation", LINEAR.onednn_dtypes, _activated_pays, on_every_cpu=True)
PROJECTION = Operation("projection", (torch.float32, torch.bfloat16), _projection_pays)
ATTENTION = Operation("attention", (torch.bfloat16,), _attention_pays)
WINDOWED_ATTENTION = Operation("windowed attention", (torch.bfloat16,), lambda *_: True, others=("flex",))
CAUSAL_ATTENTION = Operation("causal attention", (), lambda *_: False)
RUNNING_MEANS = CAUSAL_ATTENTION._replace(others=("scan",))


class _Here(threading.local):
    """The choice of :func:`use_implementation` in this thread, and where it records what ran."""

    preferred: tuple[Implementation, ...] = ("auto",)
    records: tuple[dict[str, set[str]], ...] = ()


_here = _Here()
_lock = threading.Lock()
_entered = 0  # calls of use_implementation in all threads that have not ended: compiled graphs are guarded on it


@contextmanager
def use_implementation(*implementations: Implementation) -> Iterator[dict[str, set[str]]]:
    """Choose the implementation of what runs inside, modules included, and learn which one ran.

    .. code-block:: python

        with use_implementation("auto") as ran:
            model(input_ids)
        print(ran)  # {'linear': {'onednn', 'torch'}, 'attention': {'torch'}}

    The first of ``implementations`` that can compute an operation does; where none can, a ``ValueError`` says why.
    ``"torch"`` and ``"auto"`` run everywhere. ``"onednn"`` runs on a CPU, outside compiled and traced graphs: linear
    maps and projections in float32 and bfloat16, attention in bfloat16, causal attention not at all;
    ``("onednn", "torch")`` takes it where it can run. ``"flex"`` computes the attention to slots beside a window, of
    modules with ``window=``, without dropout and weights, on the devices that FlexAttention has kernels for; take
    ``("flex", "torch")``, because the rest of a module has no such implementation. No GPU has run it yet. ``"scan"`` is
    for causal attention to running means, likewise ``("scan", "torch")`` for a module, and what ``"auto"`` takes for it
    on devices that are no CPU. The ``impl`` of a function, unless it is ``"auto"``, takes precedence.

    It holds in the thread that enters it. The gradient of a oneDNN product is one itself, wherever ``backward`` is
    called; only what is computed again there, as checkpointing does, is chosen anew.

    Yields:
        The implementations that ran, by operation: ``linear``, ``linear with activation``, ``projection``,
        ``attention``, ``windowed attention`` and ``causal attention``. What is compiled or traced is not listed.

    Raises:
        ValueError: for an unknown implementation, or none.
    """
    global _entered
    if not implementations:
        raise ValueError(f"use_implementation needs at least one of {', '.join(get_args(Implementation))}")
    for name in implementations:
        check_implementation(name)
    before, ran = (_here.preferred, _here.records), dict[str, set[str]]()
    with _lock:
        _entered += 1
    _here.preferred, _here.records = implementations, (*_here.records, ran)
    try:
        yield ran
    finally:
        _here.preferred, _here.records = before
        with _lock:
            _entered -= 1


def check_implementation(name: str) -> None:
    """Raise ``ValueError`` for a name that is not an :data:`Implementation`."""
    if name not in get_args(Implementation):
        raise ValueError(f"impl must be one of {', '.join(get_args(Implementation))}, got {name!r}")


def choose(
    operation: Operation, *tensors: Tensor, impl: Implementation = "auto", beyond_flex: str | None = None
) -> Implementation:
    """What computes ``operation`` on these tensors: any implementation but ``"auto"``.

    ``beyond_flex`` says what the call wants that FlexAttention does not do.

    Raises:
        ValueError: where the implementation that was asked for cannot.
    """
    if impl == "auto" and not _entered:
        return _auto(operation, *tensors)
    preferred = _here.preferred if _entered and impl == "auto" else (impl,)
    for name in preferred:
        if name == "auto":
            name = _auto(operation, *tensors)
        elif _why_not(name, operation, *tensors, beyond_flex=beyond_flex) is not None:
            continue
        if _entered and not records_a_graph():
            for ran in _here.records:
                ran.setdefault(operation.name, set()).add(name)
        return name
    reasons = [
        f"{x} cannot compute this {operation.name}: {_why_not(x, operation, *tensors, beyond_flex=beyond_flex)}"
        for x in preferred
    ]
    names = ", ".join(repr(name) for name in (*preferred, "torch"))
    raise ValueError(f"{'; '.join(reasons)}; choose 'auto' or 'torch', or use_implementation({names})")


def _why_not(name: Implementation, operation: Operation, *tensors: Tensor, beyond_flex: str | None) -> str | None:
    """The reason why an implementation cannot compute ``operation`` on these tensors, or None where it can."""
    if name == "torch":
        return None
    if name == "onednn":
        return why_not_onednn(operation, *tensors)
    if name not in operation.others:
        return "it has no such implementation"
    if name == "scan":
        return None
    return beyond_flex or _why_not_flex(*tensors)


def _why_not_flex(query: Tensor, key: Tensor, value: Tensor) -> str | None:
    device, width = query.device.type, min(query.shape[-1], value.shape[-1])
    if is_transformed():
        return "the transforms of torch.func do not know it"
    if records_a_graph() and not torch.compiler.is_compiling():
        return "torch.jit.trace cannot record it"
    if device not in FLEX_DEVICES:
        return f"it runs on {', '.join(FLEX_DEVICES)}, and a tensor is on {device}"
    if 0 in query.shape[:3]:
        return f"it needs a row and a query, got {tuple(query.shape)}"
    if device != "cpu" and width < FLEX_WIDTH:
        return f"its kernels need heads of {FLEX_WIDTH} channels or more, got {width}"
    return None


def _auto(operation: Operation, *tensors: Tensor) -> Implementation:
    if "scan" in operation.others and tensors[0].device.type != "cpu":
        return "scan"
    return "onednn" if _onednn_is_faster(operation, *tensors) else "torch"


def _onednn_is_faster(operation: Operation, *tensors: Tensor) -> bool:
    """Whether oneDNN can compute it, and faster; compilers have their own kernels, counters know only torch's."""
    return (
        (MKL_IS_HELD_BACK or operation.on_every_cpu)
        and not records_a_graph()
        and operation.onednn_pays(*tensors)
        and not is_watched()
        and why_not_onednn(operation, *tensors) is None
    )


def _mkl_is_held_back() -> bool:
    """Whether MKL takes slow kernels: on an AMD processor with AVX-512, and PyTorch with both libraries."""
    backends: Any = torch.backends
    if not (backends.mkl.is_available() and backends.mkldnn.is_available()):
        return False
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    return "AMD" in capabilities.get("cpu_name", "") and bool(capabilities.get("avx512_bf16"))


MKL_IS_HELD_BACK = _mkl_is_held_back()  # asked once: the answer is needed a dozen times in a layer


def why_not_onednn(operation: Operation, *tensors: Tensor) -> str | None:
    """The reason why oneDNN cannot compute ``operation`` on these tensors, or None where it can."""
    if not operation.onednn_dtypes:
        return "it has no such implementation"
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
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            return f"it takes plain tensors, got {type(tensor).__name__}"
    dtypes = {autocast_dtype(tensor) for tensor in tensors}
    if len(dtypes) > 1 or not dtypes <= set(operation.onednn_dtypes):
        wanted = " or ".join(str(dtype) for dtype in operation.onednn_dtypes)
        return f"it takes tensors of {wanted}, got {', '.join(sorted(map(str, dtypes)))}"
    if torch.bfloat16 in dtypes and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return "this processor has no bfloat16 instructions that it could use"
    return None


def autocast_dtype(tensor: Tensor) -> torch.dtype:
    """The type in which autocast multiplies matrices like this CPU tensor; it casts all but float64."""
    casts = torch.is_autocast_enabled("cpu") and tensor.is_floating_point() and tensor.dtype != torch.float64
    return torch.get_autocast_dtype("cpu") if casts else tensor.dtype
