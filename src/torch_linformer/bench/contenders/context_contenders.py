"""Encoders of which each process computes a piece of every row."""

from functools import partial
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from torch_linformer.bench.contenders.building import placed
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.distributed import SequencePiece
from torch_linformer.nn import LinformerEncoder

WINDOW = 64
MEANS, DYNAMIC, CAUSAL = "means", "dynamic", "causal"
OPTIONS: dict[str, dict[str, Any]] = {
    MEANS: {"projection": "mean"},
    DYNAMIC: {"projection": "dynamic", "sharing": "kv_per_head"},
    CAUSAL: {"causal": True},
}


def encoders() -> list[Contender]:
    """One for each kind of slots that processes put together in another way, all with a window."""
    return [Contender(name=name, build=partial(_build, options=options)) for name, options in OPTIONS.items()]


def _build(case: Case, options: dict[str, Any]) -> Workload:
    sizes = case.width, case.heads, case.layers, case.feedforward, 0.0
    encoder = placed(LinformerEncoder(*sizes, max_len=case.length, k=case.k, window=WINDOW, **options), case)
    pieces: list[SequencePiece] = []

    def run(states: Tensor) -> Tensor:
        pieces[:] = [new_piece()]  # one serves one pass, as in training
        output: Tensor = encoder(states, src_key_padding_mask=pieces[0], is_causal=bool(options.get("causal")))
        return output

    def new_piece() -> SequencePiece:
        return SequencePiece(dist.group.WORLD, case.batch, case.length, device=case.device)

    here = new_piece()
    shape = case.batch, here.stop - here.start, case.width
    states = torch.randn(shape, generator=torch.Generator().manual_seed(here.start))
    return Workload(
        module=encoder,
        inputs=(states.to(case.device, case.torch_dtype).requires_grad_(case.step == "training"),),
        run=run,
        output_shape=shape,
        sent=lambda: (pieces[0].peers.sent, pieces[0].peers.messages),
    )
