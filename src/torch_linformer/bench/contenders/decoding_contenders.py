"""Contenders of decoding: language models that have read a long text and are given one more token."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor

from torch_linformer.bench.contenders.building import placed
from torch_linformer.bench.contenders.causal_contenders import WINDOW
from torch_linformer.bench.contenders.encoder_contenders import VOCABULARY, drawn_ids, our_config
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.models import LinformerCache, LinformerForCausalLM

OURS = f"LinformerForCausalLM, window of {WINDOW}"
TWIN = "LinformerForCausalLM, full attention"

TIME_SCALE = 4096  # tokens, of the slowest slot: the same for all lengths, so that every case has the same model
PIECE = 1024  # tokens read at a time: ordinary attention writes a mask of that many rows over the whole past
LONGEST_PASS = 16384  # tokens up to which logits are compared with those of one pass without a cache


def contenders() -> list[Contender]:
    """A ``LinformerForCausalLM``, whose past has one size, and the same model with ordinary attention."""
    return [
        Contender(name=OURS, build=partial(_build, options={"window": WINDOW})),
        Contender(name=TWIN, build=partial(_build, options={"attention": "full"}), has_slots=False),
    ]


def _build(case: Case, options: Mapping[str, Any]) -> Workload:
    """A model that has read ``case.length`` tokens; every step gives it one more after those."""
    config = our_config(
        case, max_position_embeddings=TIME_SCALE, position_embedding="rotary", norm_first=True, causal=True, **options
    )
    model = placed(LinformerForCausalLM(config), case)
    model.train(False)
    ids = drawn_ids(case, case.length + 1)
    past = _read(model, ids[:, :-1])

    def run(input_ids: Tensor) -> Tensor:
        logits: Tensor = model(input_ids, past_key_values=_copy(past)).logits
        return logits

    def expected(input_ids: Tensor) -> Tensor:
        whole = torch.cat([ids[:, :-1], input_ids], dim=1)
        logits: Tensor = model(whole, use_cache=False, logits_to_keep=1).logits
        return logits

    return Workload(
        module=model,
        inputs=(ids[:, -1:],),
        run=run,
        expected=expected if case.length <= LONGEST_PASS else None,
        output_shape=(case.batch, 1, VOCABULARY),
        cache=past.nbytes,
    )


def _read(model: LinformerForCausalLM, ids: Tensor) -> LinformerCache:
    """The past that ``ids`` leave, read piece by piece without logits."""
    past = LinformerCache(model.config.num_hidden_layers)
    with torch.inference_mode():
        for piece in torch.split(ids, PIECE, dim=1):
            model.linformer(piece, past_key_values=past)
    return past


def _copy(past: LinformerCache) -> LinformerCache:
    """Another cache of the same tensors, which a step replaces and does not change."""
    copy = LinformerCache(len(past.pasts))
    for here, there in zip(copy.pasts, past.pasts, strict=True):
        here.state = there.state
    copy.add_columns(past.get_seq_length())
    return copy
