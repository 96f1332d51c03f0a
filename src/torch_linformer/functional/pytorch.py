"""What PyTorch is doing with the operations it is given, and all that it has no public name for.

Both are read here only, so that a new version of PyTorch is tried in one place.
"""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

Function = TypeVar("Function", bound=Callable[..., Any])


def records_a_graph() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records a graph, in which sizes are symbolic."""
    return is_compiling() or is_traced()


def is_compiling() -> bool:
    """Whether torch.compile or torch.export records a graph."""
    return torch.compiler.is_compiling()


def is_traced() -> bool:
    """Whether torch.jit.trace records a graph: sizes are tensors there, and what is decided by one holds for all."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def serves_any_length() -> bool:
    """Whether a graph is recorded that is not recorded again for other sizes: torch.export's, torch.jit.trace's."""
    is_exporting = getattr(torch.compiler, "is_exporting", is_compiling)  # since torch 2.7
    return is_traced() or bool(is_exporting())


def exports_by_running() -> bool:
    """Whether torch.export records what Python computes, objects and all, and not what a compiler reads of it."""
    return serves_any_length() and not is_traced() and not torch.compiler.is_dynamo_compiling()


def needs_graph(*tensors: Tensor) -> bool:
    """Whether autograd records what is computed from these tensors."""
    return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)


def can_be_cut() -> bool:
    """Whether a sequence can be worked on in chunks: a graph over all lengths cannot have as many steps as chunks."""
    return not records_a_graph()


def runs_in_chunks(chunk_size: int | None) -> bool:
    """Whether inference goes chunk by chunk."""
    return chunk_size is not None and not torch.is_grad_enabled() and can_be_cut()


def can_reverse() -> bool:
    """Whether what autograd saves can be computed later: there is a graph, and no compiler or torch.func has it."""
    return torch.is_grad_enabled() and not records_a_graph() and not is_transformed()


def compiles_training() -> bool:
    """Whether a compiled graph is recorded that autograd goes through."""
    return torch.is_grad_enabled() and is_compiling()


def can_swap_parameters() -> bool:
    """Whether a module can have other parameters while it is computed again: not in a compiled graph."""
    return not is_compiling()


def is_transformed() -> bool:
    """Whether torch.func (vmap, grad, jvp) or forward AD is active; no public function of torch 2.6 to 2.13 tells."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active or forward_ad._current_level >= 0


def is_watched() -> bool:
    """Whether a dispatch mode, a counter of operations or a tracer, is active."""
    return torch._C._len_torch_dispatch_stack() > 0


def flash_attention(
    query: Tensor, key: Tensor, value: Tensor, *, mask: Tensor | None, scale: float
) -> tuple[Tensor, Tensor]:
    """The operator below SDPA on a CPU: softmax attention, and the logarithms ``(B, H, N)`` of its softmax's sums.

    Keys and values have one width; the mask, of the query's type or float32, is added to the scores, and broadcast. It
    has no gradient here.
    """
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
    # It reads rows of channels, which SDPA sees to and the operator does not.
    query, key, value = (x if x.stride(-1) == 1 else x.contiguous() for x in (query, key, value))
    output, log_sums = operator(query, key, value, attn_mask=mask, scale=scale)
    return output, log_sums


def flash_attention_backward(
    grad_output: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    output: Tensor,
    log_sums: Tensor,
    *,
    mask: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value.

    ``output`` and ``log_sums`` may be those of a softmax over more keys than these: the gradients are their part of it.
    """
    operator = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
    heads = [x if x.stride(-1) == 1 else x.contiguous() for x in (grad_output, query, key, value, output)]
    grad_query, grad_key, grad_value = operator(*heads, log_sums, 0.0, False, attn_mask=mask, scale=scale)
    return grad_query, grad_key, grad_value


def onednn_linear(
    input: Tensor, weight: Tensor, bias: Tensor | None, activation: str = "none", algorithm: str = ""
) -> Tensor:
    """``activation(X Wᵀ + b)`` by oneDNN; the activations are those that it knows by name."""
    arguments: Sequence[Any] = []
    output: Tensor = torch.ops.mkldnn._linear_pointwise(input, weight, bias, activation, arguments, algorithm)
    return output


def onednn_has_bfloat16() -> bool:
    """Whether the processor has bfloat16 instructions that oneDNN could use."""
    supported: bool = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return supported


def assert_async(condition: Tensor, message: str) -> None:
    """Raise ``RuntimeError`` where ``condition`` is False: in a graph where it runs, on a GPU when it gets there."""
    torch._assert_async(condition, message)


def disable_dynamo(function: Function) -> Function:
    """``function``, which torch.compile leaves out of its graph; the public decorator would load the compiler now."""
    disabled: Function = torch._disable_dynamo(function)  # type: ignore[attr-defined, assignment]
    return disabled
