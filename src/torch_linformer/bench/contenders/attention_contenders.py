"""Contenders of one attention: ours in every form, ordinary attention, and other packages' attention."""

from collections.abc import Callable
from functools import partial
from typing import Unpack, get_args

import torch
from torch import nn

from torch_linformer.bench.contenders.building import (
    call,
    linformer_pytorch_attention,
    self_attention,
    sequence_workload,
)
from torch_linformer.bench.contenders.plain import plain_full_attention, plain_linformer_attention
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.measuring.machine import package_versions
from torch_linformer.nn.attention import FullAttention, LinformerAttention
from torch_linformer.nn.options import DEFAULTS, AttentionOptions, FixedProjection, Sharing

OURS = "torch-linformer"
SDPA = f"full attention, SDPA (torch {torch.__version__})"
EAGER = f"full attention, eager (torch {torch.__version__})"
MATRIX_PRODUCT = f"matrix product (torch {torch.__version__})"
MEMORY_COPY = f"copy in memory (torch {torch.__version__})"
COPIED = 8  # times the elements of the matrix product's input: more than the caches of a GPU hold

# Slots chosen by the input, by one P a layer and by one a head.
DYNAMIC: dict[str, AttentionOptions] = {
    f"{OURS}, dynamic, sharing kv": {"projection": "dynamic", "sharing": "kv"},
    f"{OURS}, dynamic, sharing kv_per_head": {"projection": "dynamic", "sharing": "kv_per_head"},
}

_BUCKET = 64  # reformer-pytorch's own choice


def ours() -> list[Contender]:
    """Our attention with default options, the other ways of sharing that one attention has, and the other maps."""
    options: dict[str, AttentionOptions] = {OURS: {}}
    for sharing in get_args(Sharing):
        if sharing not in (DEFAULTS["sharing"], "layerwise"):
            options[f"{OURS}, sharing {sharing}"] = {"sharing": sharing}
    for projection in get_args(FixedProjection):
        if projection != DEFAULTS["projection"]:
            options[f"{OURS}, {projection}"] = {"projection": projection}
    options |= DYNAMIC
    return [Contender(name=name, build=partial(build_ours, **chosen)) for name, chosen in options.items()]


def full_attention() -> list[Contender]:
    """Ordinary attention with the same parameters: torch's fused kernel, and the formula step by step."""
    return [
        Contender(name=SDPA, build=build_full, has_slots=False),
        Contender(name=EAGER, build=partial(build_full, eager=True), has_slots=False),
    ]


def peers() -> list[Contender]:
    """The packages that are installed, named with their versions."""
    return [
        Contender(
            name=f"{name} {version}", build=partial(_build, make=PEERS[name]), has_slots=name != "reformer-pytorch"
        )
        for name, version in package_versions(PEERS).items()
    ]


def matrix_product() -> Contender:
    """No attention: the product of two matrices, the best rate that the machine reaches."""
    make = partial(_build, make=lambda case: nn.Linear(case.width, case.width, bias=False))
    return Contender(name=MATRIX_PRODUCT, build=make, has_slots=False)


def memory_copy() -> Contender:
    """No attention: a copy of ``COPIED`` matrices, the best rate at which memory is read and written."""
    return Contender(name=MEMORY_COPY, build=_build_copy, has_slots=False)


def copied_bytes(case: Case) -> int:
    """Bytes that the copy reads and writes."""
    return 2 * COPIED * case.length * case.width * case.torch_dtype.itemsize


def _build_copy(case: Case) -> Workload:
    source = torch.ones(COPIED, case.length, case.width, device=case.device, dtype=case.torch_dtype)
    target = torch.empty_like(source)
    return Workload(module=nn.Identity(), inputs=(source,), run=target.copy_, output_shape=tuple(source.shape))


def build_ours(case: Case, **options: Unpack[AttentionOptions]) -> Workload:
    """Our attention for a case."""
    module = LinformerAttention(case.width, case.heads, max_len=case.length, k=case.k, **options)
    return sequence_workload(module, case, self_attention, plain_linformer_attention)


def build_full(case: Case, eager: bool = False, causal: bool = False) -> Workload:
    """Ordinary attention for a case."""
    run = partial(self_attention, need_weights=eager, average_attn_weights=False)
    return sequence_workload(FullAttention(case.width, case.heads, causal=causal), case, run, plain_full_attention)


def _build(case: Case, make: Callable[[Case], nn.Module]) -> Workload:
    return sequence_workload(make(case), case, call)


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


# By their names on PyPI.
PEERS: dict[str, Callable[[Case], nn.Module]] = {
    "linformer": _linformer,
    "linformer-pytorch": linformer_pytorch_attention,
    "nystrom-attention": _nystrom,
    "performer-pytorch": _performer,
    "reformer-pytorch": _reformer,
}
