"""How a contender is built for a case, and how it is compiled."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor, nn

from runner.suite import Case, Compilation, Contender, Workload

# Outputs are compared with the plain computation where its scores have at most this many elements: 1 GiB in float32.
PLAIN_LIMIT = 2**28
WINDOW = 64  # tokens to which each position of a causal contender attends exactly, in addition to the slots

Module = TypeVar("Module", bound=nn.Module)


def placed(module: Module, case: Case) -> Module:
    """The module on the case's device and in its dtype."""
    return module.to(case.device, case.torch_dtype)


def sequence_workload(
    module: Module,
    case: Case,
    run: Callable[[Module, Tensor], Tensor],
    expected: Callable[[Module, Tensor], Tensor] | None = None,
    keys: int | None = None,
) -> Workload:
    """A workload of a module from hidden states ``(B, N, C)`` to hidden states.

    The input is the same for every contender and, drawn on the CPU in float32, on every device. ``expected`` is left
    out where its scores would not fit into memory; ``keys`` are those of each query, K or N by default.
    """
    module = placed(module, case)
    drawn = torch.randn(case.batch, case.length, case.width, generator=torch.Generator().manual_seed(0))
    states = drawn.to(case.device, case.torch_dtype).requires_grad_(case.step == "training")
    fits = case.batch * case.heads * case.length * (keys or case.k or case.length) <= PLAIN_LIMIT
    return Workload(
        module=module,
        inputs=(states,),
        run=partial(run, module),
        output_shape=tuple(states.shape),
        expected=partial(expected, module) if expected is not None and fits else None,
    )


def call(module: nn.Module, states: Tensor) -> Tensor:
    """The output of a module that takes one sequence."""
    output: Tensor = module(states)
    return output


def self_attention(module: nn.Module, states: Tensor, **options: bool) -> Tensor:
    """The output of a module that takes queries, keys and values."""
    output: Tensor = module(states, states, states, **options)[0]
    return output


def linformer_pytorch_attention(case: Case, causal_mask: Tensor | None = None) -> nn.Module:
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


# "reduce-overhead" replays the kernels of a step as one CUDA graph; neither mode tries out matrix products, which takes
# minutes ("max-autotune").
MODES: dict[Compilation, str] = {"compiled": "default", "CUDA graphs": "reduce-overhead"}


def compiled(contender: Contender) -> list[Contender]:
    """The contender, compiled for the shapes of each case, in every way of :data:`MODES`."""
    return [_compiled(contender, compilation) for compilation in MODES]


def compiled_name(name: str, compilation: Compilation) -> str:
    """What a contender is called when it is compiled."""
    return f"{name}, {compilation}"


def _compiled(contender: Contender, compilation: Compilation) -> Contender:
    def build(case: Case) -> Workload:
        if compilation == "CUDA graphs" and case.device != "cuda":
            raise ValueError(f"CUDA graphs need a CUDA device, not {case.device}")
        workload = contender.build(case)
        # One graph of all of it, or an error: what torch leaves out of a graph is no compiled contender.
        workload.module.compile(fullgraph=True, dynamic=False, mode=MODES[compilation])
        return workload

    return replace(contender, name=compiled_name(contender.name, compilation), build=build, compilation=compilation)
