"""What PyTorch is doing with the operations it is given; private attributes are read only here."""

import torch


def records_a_graph() -> bool:
    """Whether torch.compile, torch.export or torch.jit.trace records a graph, in which sizes are symbolic."""
    return torch.compiler.is_compiling() or is_traced()


def is_traced() -> bool:
    """Whether torch.jit.trace records a graph: sizes are tensors there, and what is decided by one holds for all."""
    return bool(torch.jit.is_tracing())  # type: ignore[attr-defined, no-untyped-call]


def is_transformed() -> bool:
    """Whether a transform of torch.func (vmap, grad, jvp) is active; no public function of torch 2.6 to 2.13 tells."""
    active: bool = torch._C._are_functorch_transforms_active()
    return active


def is_watched() -> bool:
    """Whether a dispatch mode, a counter of operations or a tracer, is active; no public function tells either."""
    return torch._C._len_torch_dispatch_stack() > 0
