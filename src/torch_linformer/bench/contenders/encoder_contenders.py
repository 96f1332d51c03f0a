"""Contenders of whole layers and whole encoders: ours, its twin, and the long-document models of transformers."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from torch_linformer.bench.contenders.building import placed, sequence_workload
from torch_linformer.bench.suite import Case, Contender, Workload
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.nn.attention import FullAttention
from torch_linformer.nn.encoder_layer import EncoderLayer, LinformerEncoderLayer

VOCABULARY = 1000
FIRST_WORD = 5  # the ids below it are special to one model or another

OURS = "torch-linformer"
TWIN = "torch-linformer, full attention (SDPA)"
LAYER = f"standard Transformer, SDPA (torch {torch.__version__})"
EAGER_LAYER = f"standard Transformer, eager (torch {torch.__version__})"

_BIGBIRD_BLOCK = 64
_BIGBIRD_FULL = 11 * _BIGBIRD_BLOCK  # up to here its sparse pattern covers everything, and it attends fully


def our_encoder(name: str = OURS, **options: Any) -> Contender:
    """A ``LinformerModel``; ``options`` go into its configuration."""
    return Contender(name=name, build=partial(_build_linformer, options=options), ours=True)


def twin_encoder() -> Contender:
    """The same model with ordinary attention."""
    build = partial(_build_linformer, options={"attention": "full"})
    return Contender(name=TWIN, build=build, ours=True, has_slots=False)


def peer_encoders() -> list[Contender]:
    """Encoders of transformers with the same width, depth and positions, from random weights."""
    known: dict[str, tuple[Callable[[Case], PreTrainedModel], bool]] = {
        "BERT, SDPA": (_bert, False),
        "ModernBERT, SDPA": (_modernbert, False),
        "Longformer": (_longformer, False),
        "BigBird": (_bigbird, False),
        "Nyströmformer": (_nystromformer, True),
        "FNet": (_fnet, False),
    }
    return [
        Contender(
            name=f"{name} (transformers {transformers.__version__})",
            build=partial(_build_peer, make=make),
            has_slots=has_slots,
        )
        for name, (make, has_slots) in known.items()
    ]


def our_layer() -> Contender:
    """One encoder layer with E = F: what a layer costs where all layers share one projection."""
    return Contender(name=OURS, build=_build_layer, ours=True)


def full_layers() -> list[Contender]:
    """The same layer with ordinary attention: torch's fused kernel, and the formula step by step."""
    return [
        Contender(name=LAYER, build=partial(_build_full_layer, eager=False), has_slots=False),
        Contender(name=EAGER_LAYER, build=partial(_build_full_layer, eager=True), has_slots=False),
    ]


def _build_linformer(case: Case, options: Mapping[str, Any]) -> Workload:
    config = LinformerConfig(
        **sizes_of(case),
        **NO_DROPOUT,
        max_position_embeddings=case.length,
        pad_token_id=None,
        k=case.k or 1,  # the twin has a configuration too, and leaves k unread
        **options,
    )
    return _token_workload(LinformerModel(config), case)


def _build_peer(case: Case, make: Callable[[Case], PreTrainedModel]) -> Workload:
    with _quiet():
        return _token_workload(make(case), case)


def _token_workload(model: PreTrainedModel, case: Case) -> Workload:
    model = placed(model, case)
    shape = (case.batch, case.length)
    ids = torch.randint(FIRST_WORD, VOCABULARY, shape, generator=torch.Generator().manual_seed(0))

    def run(input_ids: Tensor) -> Tensor:
        with _quiet():
            output: Tensor = model(input_ids).last_hidden_state
        return output

    return Workload(module=model, inputs=(ids.to(case.device),), run=run, output_shape=(*shape, case.width))


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of transformers: on padding to a window, and on ids of a larger vocabulary."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


_SDPA: dict[str, Any] = {"attn_implementation": "sdpa"}
NO_DROPOUT: dict[str, Any] = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def sizes_of(case: Case) -> dict[str, Any]:
    """Vocabulary, width, depth, heads and feed-forward, as the configurations of transformers name them."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": case.width,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "intermediate_size": case.feedforward,
    }


def _bert(case: Case) -> PreTrainedModel:
    config = transformers.BertConfig(**sizes_of(case), **NO_DROPOUT, max_position_embeddings=case.length, **_SDPA)
    return transformers.BertModel(config, add_pooling_layer=False)


def _modernbert(case: Case) -> PreTrainedModel:
    # A gated feed-forward has three matrices: two thirds of the width make it cost what the others' two do.
    sizes = {**sizes_of(case), "intermediate_size": 2 * case.feedforward // 3}
    ids: dict[str, Any] = {f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")}
    config = transformers.ModernBertConfig(**sizes, **ids, max_position_embeddings=case.length, **_SDPA)
    return transformers.ModernBertModel(config)


def _longformer(case: Case) -> PreTrainedModel:
    # Its positions begin after the padding's id, 1.
    config = transformers.LongformerConfig(**sizes_of(case), **NO_DROPOUT, max_position_embeddings=case.length + 2)
    return transformers.LongformerModel(config, add_pooling_layer=False)


def _bigbird(case: Case) -> PreTrainedModel:
    sparse = case.length > _BIGBIRD_FULL
    config = transformers.BigBirdConfig(
        **sizes_of(case),
        **NO_DROPOUT,
        max_position_embeddings=case.length,
        attention_type="block_sparse" if sparse else "original_full",
        block_size=_BIGBIRD_BLOCK,
    )
    return transformers.BigBirdModel(config, add_pooling_layer=False)


def _nystromformer(case: Case) -> PreTrainedModel:
    _require_float32(case, "Nyströmformer multiplies by a float32 identity")
    if case.length % case.k:
        raise ValueError(f"Nyströmformer takes multiples of its {case.k} landmarks, got {case.length} tokens")
    config = transformers.NystromformerConfig(
        **sizes_of(case),
        **NO_DROPOUT,
        max_position_embeddings=case.length,
        segment_means_seq_len=case.length,
        num_landmarks=case.k,
    )
    return transformers.NystromformerModel(config)


def _fnet(case: Case) -> PreTrainedModel:
    _require_float32(case, "FNet's Fourier transform takes no other")
    sizes = {name: size for name, size in sizes_of(case).items() if name != "num_attention_heads"}
    config = transformers.FNetConfig(**sizes, hidden_dropout_prob=0.0, max_position_embeddings=case.length)
    return transformers.FNetModel(config, add_pooling_layer=False)


def _require_float32(case: Case, reason: str) -> None:
    if case.dtype != "float32":
        raise ValueError(f"it computes in float32 alone, not in {case.dtype}: {reason}")


def _build_layer(case: Case) -> Workload:
    made = LinformerEncoderLayer(
        case.width, case.heads, case.feedforward, 0.0, "gelu", max_len=case.length, k=case.k, sharing="kv"
    )
    return _layer_workload(made, case)


def _build_full_layer(case: Case, eager: bool) -> Workload:
    made = EncoderLayer(FullAttention(case.width, case.heads), case.feedforward, 0.0, "gelu")
    return _layer_workload(made, case, need_weights=eager)


def _layer_workload(made: EncoderLayer, case: Case, need_weights: bool = False) -> Workload:
    module = placed(made, case)
    return sequence_workload(module, case, lambda x: module(x, need_weights=need_weights))
