"""Contenders of one attention: ours in every form, ordinary attention, and other packages' attention."""

from collections.abc import Callable
from functools import partial
from typing import Unpack, get_args

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
from torch_linformer.nn.options import DEFAULTS, AttentionOptions, Projection, Sharing

OURS = "torch-linformer"
SDPA = f"full attention, SDPA (torch {torch.__version__})"
EAGER = f"full attention, eager (torch {torch.__version__})"
MATRIX_PRODUCT = f"matrix product (torch {torch.__version__})"

_BUCKET = 64  # reformer-pytorch's own choice


def ours() -> Contender:
    """Our attention with default options."""
    return Contender(name=OURS, build=build_ours, ours=True)


def our_variants() -> list[Contender]:
    """The other ways of sharing that one attention has, and the other maps to slots."""
    sharings = [each for each in get_args(Sharing) if each not in (DEFAULTS["sharing"], "layerwise")]
    projections = [each for each in get_args(Projection) if each != DEFAULTS["projection"]]
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
    known: dict[str, tuple[Callable[[Case], nn.Module], bool]] = {
        "linformer": (_linformer, True),
        "linformer-pytorch": (linformer_pytorch_attention, True),
        "nystrom-attention": (_nystrom, True),
        "performer-pytorch": (_performer, True),
        "reformer-pytorch": (_reformer, False),
    }
    return [
        Contender(name=versioned(distribution), build=partial(_build, make=make), has_slots=has_slots)
        for distribution, (make, has_slots) in known.items()
        if installed(distribution)
    ]


def matrix_product() -> Contender:
    """No attention: the product of two matrices, the best rate that the machine reaches."""
    make = partial(_build, make=lambda case: nn.Linear(case.width, case.width, bias=False))
    return Contender(name=MATRIX_PRODUCT, build=make, has_slots=False)


def build_ours(case: Case, **options: Unpack[AttentionOptions]) -> Workload:
    """Our attention for a case."""
    module = placed(LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options), case)
    return sequence_workload(module, case, lambda x: module(x, x, x)[0], lambda x: plain_linformer_attention(module, x))


def _build_full(case: Case, eager: bool) -> Workload:
    module = placed(FullAttention(case.width, case.heads), case)
    return sequence_workload(
        module,
        case,
        lambda x: module(x, x, x, need_weights=eager, average_attn_weights=False)[0],
        lambda x: plain_full_attention(module, x),
    )


def _build(case: Case, make: Callable[[Case], nn.Module]) -> Workload:
    """A module of one sequence for a case."""
    module = placed(make(case), case)
    return sequence_workload(module, case, module)


def _linformer(case: Case) -> nn.Module:
    from linformer import LinformerSelfAttention

    attention: nn.Module = LinformerSelfAttention(case.width, case.length, k=case.k, heads=case.heads)
    return attention


def _nystrom(case: Case) -> nn.Module:
    from nystrom_attention import NystromAttention

    if case.dtype != "float32":
        raise ValueError(f"nystrom-attention multiplies by a float32 identity: it cannot compute in {case.dtype}")
    head_dim = case.width // case.heads
    attention: nn.Module = NystromAttention(case.width, dim_head=head_dim, heads=case.heads, num_landmarks=case.k)
    return attention


def _performer(case: Case) -> nn.Module:
    from performer_pytorch import SelfAttention

    head_dim = case.width // case.heads
    attention: nn.Module = SelfAttention(case.width, heads=case.heads, dim_head=head_dim, nb_features=case.k)
    return attention


def _reformer(case: Case) -> nn.Module:
    from reformer_pytorch import LSHSelfAttention

    if case.length % (2 * _BUCKET):
        raise ValueError(f"reformer-pytorch takes multiples of {2 * _BUCKET} tokens, got {case.length}")
    attention: nn.Module = LSHSelfAttention(case.width, heads=case.heads, bucket_size=_BUCKET)
    return attention
