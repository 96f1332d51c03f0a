"""What every contender is built with: a module in the case's dtype on its device, and its input."""

from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from typing import TypeVar

import torch
from torch import Tensor, nn

from torch_linformer.bench.suite import Case, Workload

# A plain computation is compared with where its scores have at most so many elements: 1 GiB in float32.
PLAIN_LIMIT = 2**28

Module = TypeVar("Module", bound=nn.Module)


def installed(module: str) -> bool:
    """Whether this module can be imported; nothing is imported."""
    return find_spec(module) is not None


def versioned(distribution: str) -> str:
    """A package and its version, as contenders are named: ``linformer 0.2.3``."""
    return f"{distribution} {version(distribution)}"


def placed(module: Module, case: Case) -> Module:
    """The module on the case's device and in its dtype."""
    return module.to(case.device, case.torch_dtype)


def hidden_states(case: Case) -> Tensor:
    """Input ``(B, N, C)``, the same for every contender; a training step takes its gradient too."""
    shape = (case.batch, case.length, case.width)
    # Drawn on the CPU in float32: the same numbers on every device.
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    return drawn.to(case.device, case.torch_dtype).requires_grad_(case.step == "training")


def sequence_workload(
    module: nn.Module,
    case: Case,
    run: Callable[[Tensor], Tensor],
    expected: Callable[[Tensor], Tensor] | None = None,
    keys: int | None = None,
) -> Workload:
    """A workload from hidden states to hidden states; ``expected`` is left out where it would not fit into memory.

    ``keys`` are those that a query of ``expected`` is compared with: K, or N where there are no slots.
    """
    states = hidden_states(case)
    fits = case.batch * case.heads * case.length * (keys or case.k or case.length) <= PLAIN_LIMIT
    return Workload(
        module=module,
        inputs=(states,),
        run=run,
        output_shape=tuple(states.shape),
        expected=expected if fits else None,
    )


def linformer_pytorch_attention(case: Case, causal_mask: Tensor | None) -> nn.Module:
    """The multi-head attention of linformer-pytorch, with the mask on its slots that its causal models use."""
    from linformer_pytorch import MHAttention

    attention: nn.Module = MHAttention(
        input_size=case.length,
        dim=case.width // case.heads,
        channels=case.width,
        dim_k=case.k,
        nhead=case.heads,
        dropout=0.0,
        checkpoint_level="C0",
        parameter_sharing="headwise",
        E_proj=None,
        F_proj=None,
        full_attention=False,
        causal_mask=causal_mask,
    )
    return attention
