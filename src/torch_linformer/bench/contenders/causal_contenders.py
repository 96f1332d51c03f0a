"""Contenders of one causal attention: ours, ordinary attention, and a package whose causal mask leaks."""

from functools import partial

import torch

from torch_linformer.bench.contenders.attention_contenders import build_full
from torch_linformer.bench.contenders.building import (
    call,
    linformer_pytorch_attention,
    self_attention,
    sequence_workload,
)
from torch_linformer.bench.contenders.plain import plain_causal_attention, plain_leaking_attention
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.measuring.machine import package_versions
from torch_linformer.nn.attention import LinformerAttention
from torch_linformer.nn.options import AttentionOptions

WINDOW = 64  # tokens that each position attends to exactly, beside the slots
LONGEST_LOOP = 16384  # positions up to which ours is compared with a loop over them

OURS = f"torch-linformer, slots and window of {WINDOW}"
WINDOW_ALONE = f"torch-linformer, window of {WINDOW} alone"
SDPA = f"full causal attention, SDPA (torch {torch.__version__})"


def contenders() -> list[Contender]:
    """Running slots beside a local window, only the window, torch's fused kernel, and linformer-pytorch if installed.

    What that one computes is not causal, and its name says so.
    """
    found = [
        Contender(name=OURS, build=_build_ours),
        Contender(name=WINDOW_ALONE, build=_build_ours, has_slots=False),
        Contender(name=SDPA, build=partial(build_full, causal=True), has_slots=False),
    ]
    for name, version in package_versions(["linformer-pytorch"]).items():
        found.append(Contender(name=f"{name} {version}, causal=True (leaks the future)", build=_build_leaking))
    return found


def _build_ours(case: Case) -> Workload:
    options: AttentionOptions = {"causal": True, "window": min(WINDOW, case.length)}
    module = LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options)
    expected = plain_causal_attention if case.length <= LONGEST_LOOP else None
    return sequence_workload(module, case, self_attention, expected, keys=case.k + WINDOW)


def _build_leaking(case: Case) -> Workload:
    from linformer_pytorch.linformer_pytorch import gen_causal_mask

    mask = gen_causal_mask(case.length, case.k)  # what its models pass for causal=True
    return sequence_workload(linformer_pytorch_attention(case, mask), case, call, plain_leaking_attention)
