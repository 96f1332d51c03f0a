"""Contenders of one causal attention: ours, ordinary attention, and a package whose causal mask leaks."""

import torch

from torch_linformer.bench.contenders.building import (
    installed,
    linformer_pytorch_attention,
    placed,
    sequence_workload,
    versioned,
)
from torch_linformer.bench.contenders.plain import (
    plain_causal_attention,
    plain_full_attention,
    plain_leaking_attention,
)
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.nn.attention import FullAttention, LinformerAttention
from torch_linformer.nn.options import AttentionOptions

WINDOW = 64  # tokens that each position attends to exactly, beside the slots
LONGEST_LOOP = 16384  # positions up to which ours is compared with a loop over them

OURS = f"torch-linformer, slots and window of {WINDOW}"
WINDOW_ALONE = f"torch-linformer, window of {WINDOW} alone"
SDPA = f"full causal attention, SDPA (torch {torch.__version__})"


def ours() -> list[Contender]:
    """Running slots beside a local window, and only the window."""
    return [
        Contender(name=OURS, build=_build_ours, ours=True),
        Contender(name=WINDOW_ALONE, build=_build_ours, ours=True, has_slots=False),
    ]


def full_attention() -> Contender:
    """Ordinary causal attention with the same linear maps: torch's fused kernel."""
    return Contender(name=SDPA, build=_build_full, has_slots=False)


def peers() -> list[Contender]:
    """linformer-pytorch, where it is installed; what it computes is not causal, and its name says so."""
    if not installed("linformer-pytorch"):
        return []
    name = f"{versioned('linformer-pytorch')}, causal=True (leaks the future)"
    return [Contender(name=name, build=_build_linformer_pytorch)]


def _build_ours(case: Case) -> Workload:
    options: AttentionOptions = {"causal": True, "window": min(WINDOW, case.length)}
    module = placed(LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options), case)
    return sequence_workload(
        module,
        case,
        lambda x: module(x, x, x)[0],
        (lambda x: plain_causal_attention(module, x)) if case.length <= LONGEST_LOOP else None,
        keys=case.k + WINDOW,
    )


def _build_full(case: Case) -> Workload:
    module = placed(FullAttention(case.width, case.heads, causal=True), case)
    return sequence_workload(module, case, lambda x: module(x, x, x)[0], lambda x: plain_full_attention(module, x))


def _build_linformer_pytorch(case: Case) -> Workload:
    from linformer_pytorch.linformer_pytorch import gen_causal_mask

    mask = gen_causal_mask(case.length, case.k)  # what its models pass for causal=True
    module = placed(linformer_pytorch_attention(case, mask), case)
    return sequence_workload(module, case, module, lambda x: plain_leaking_attention(module, x))
