"""Contenders of one attention: ours in every form, ordinary attention, and other packages' attention."""

from collections.abc import Callable
from functools import partial

import torch
from torch import nn

from torch_linformer.bench.contenders.building import (
    installed,
    linformer_pytorch_attention,
    placed,
    sequence_workload,
    versioned,
)
from torch_linformer.bench.contenders.plain import plain_full_attention, plain_linformer_attention
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.nn.attention import FullAttention, LinformerAttention
from torch_linformer.nn.options import Projection, Sharing

OURS = "torch-linformer"
SDPA = f"full attention, SDPA (torch {torch.__version__})"
EAGER = f"full attention, eager (torch {torch.__version__})"

MATRIX_PRODUCT = f"matrix product (torch {torch.__version__})"

_BUCKET = 64  # reformer-pytorch's own choice


def ours() -> Contender:
    """Our attention as it is by default: linear maps shared by the heads."""
    return Contender(name=OURS, build=build_ours, ours=True)


def our_variants() -> list[Contender]:
    """The other ways of sharing, and the other maps to slots."""
    sharings: tuple[Sharing, ...] = ("none", "kv")
    projections: tuple[Projection, ...] = ("random", "conv", "mean", "max")
    builds: dict[str, Callable[[Case], Workload]] = {
        **{f"{OURS}, sharing {sharing}": partial(build_ours, sharing=sharing) for sharing in sharings},
        **{f"{OURS}, {projection}": partial(build_ours, projection=projection) for projection in projections},
    }
    return [Contender(name=name, build=build, ours=True) for name, build in builds.items()]


def full_attention() -> list[Contender]:
    """Ordinary attention with the same parameters: torch's fused kernel, and the formula step by step."""
    return [
        Contender(name=SDPA, build=partial(_build_full, eager=False), has_slots=False),
        Contender(name=EAGER, build=partial(_build_full, eager=True), has_slots=False),
    ]


def peers() -> list[Contender]:
    """The packages that are installed."""
    known: dict[str, tuple[str, Callable[[Case], Workload], bool]] = {
        "linformer": ("linformer", _build_linformer, True),
        "linformer-pytorch": ("linformer_pytorch", _build_linformer_pytorch, True),
        "nystrom-attention": ("nystrom_attention", _build_nystrom, True),
        "performer-pytorch": ("performer_pytorch", _build_performer, True),
        "reformer-pytorch": ("reformer_pytorch", _build_reformer, False),
    }
    return [
        Contender(name=versioned(distribution), build=build, has_slots=has_slots)
        for distribution, (module, build, has_slots) in known.items()
        if installed(module)
    ]


def matrix_product() -> Contender:
    """Not an attention: what the machine can do at best, as the product of two matrices."""
    return Contender(name=MATRIX_PRODUCT, build=_build_matrix_product, has_slots=False)


def build_ours(case: Case, sharing: Sharing = "headwise", projection: Projection = "linear") -> Workload:
    """Our attention for a case."""
    made = LinformerAttention(
        case.width, case.heads, max_len=case.length, k=case.k, sharing=sharing, projection=projection
    )
    module = placed(made, case)
    return sequence_workload(module, case, lambda x: module(x, x, x)[0], lambda x: plain_linformer_attention(module, x))


def _build_full(case: Case, eager: bool) -> Workload:
    module = placed(FullAttention(case.width, case.heads), case)
    return sequence_workload(
        module,
        case,
        lambda x: module(x, x, x, need_weights=eager, average_attn_weights=False)[0],
        lambda x: plain_full_attention(module, x),
    )


def _build_matrix_product(case: Case) -> Workload:
    return _called(nn.Linear(case.width, case.width, bias=False), case)


def _called(module: nn.Module, case: Case) -> Workload:
    module = placed(module, case)
    return sequence_workload(module, case, module)


def _build_linformer(case: Case) -> Workload:
    from linformer import LinformerSelfAttention

    return _called(LinformerSelfAttention(case.width, case.length, k=case.k, heads=case.heads), case)


def _build_linformer_pytorch(case: Case) -> Workload:
    return _called(linformer_pytorch_attention(case, None), case)


def _build_nystrom(case: Case) -> Workload:
    from nystrom_attention import NystromAttention

    if case.dtype != "float32":
        raise ValueError(f"nystrom-attention multiplies by a float32 identity: it cannot compute in {case.dtype}")
    head_dim = case.width // case.heads
    return _called(NystromAttention(case.width, dim_head=head_dim, heads=case.heads, num_landmarks=case.k), case)


def _build_performer(case: Case) -> Workload:
    from performer_pytorch import SelfAttention

    head_dim = case.width // case.heads
    return _called(SelfAttention(case.width, heads=case.heads, dim_head=head_dim, nb_features=case.k), case)


def _build_reformer(case: Case) -> Workload:
    from reformer_pytorch import LSHSelfAttention

    if case.length % (2 * _BUCKET):
        raise ValueError(f"reformer-pytorch takes multiples of {2 * _BUCKET} tokens, got {case.length}")
    return _called(LSHSelfAttention(case.width, heads=case.heads, bucket_size=_BUCKET), case)
