"""What PyTorch is doing with the operations it is given, and what that allows."""

import torch

from torch_linformer.functional.kernels.torch_private import is_transformed


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


def needs_graph(*tensors: torch.Tensor) -> bool:
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
