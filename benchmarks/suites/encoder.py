"""Encoders and single layers: ours, the same with full attention, and long-document models of transformers."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from logging import ERROR
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.utils import logging

from runner.suite import Case, Contender, Grid, Measurement, Suite, Summary, Workload
from suites.contenders import MODES, call, compiled, placed, sequence_workload
from suites.grids import grid_cases, require_cases
from suites.measurements import (
    Measurements,
    compare_lengths,
    ratio_headlines,
    ratio_records,
)
from torch_linformer.encoders import linearize
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.nn.attention import FullAttention
from torch_linformer.nn.encoder import EncoderLayer, LinformerEncoderLayer
from torch_linformer.nn.options import DEFAULT_K

VOCABULARY = 1000
_FIRST_WORD = 5  # the ids below it are special in one model or another

OURS = "torch-linformer"
TWIN = "torch-linformer, full attention (SDPA)"
LAYER = f"standard Transformer, SDPA (torch {torch.__version__})"
EAGER_LAYER = f"standard Transformer, eager (torch {torch.__version__})"

BERT = "BERT, SDPA"
LINEAR_WINDOW = 128

_BIGBIRD_BLOCK = 64
_BIGBIRD_FULL = 11 * _BIGBIRD_BLOCK  # tokens up to which its sparse pattern covers everything, and it attends fully


def our_encoder(name: str = OURS, **options: Any) -> Contender:
    """A ``LinformerModel``; ``options`` go into its configuration."""
    return Contender(name=name, build=partial(_build_linformer, options=options))


def encoders() -> list[Contender]:
    """Ours, the same model with ordinary attention, and encoders of transformers of the same width and depth."""
    twin = partial(_build_linformer, options={"attention": "full"})
    return [
        our_encoder(),
        Contender(name=TWIN, build=twin, has_slots=False),
        *(
            Contender(
                name=f"{name} (transformers {transformers.__version__})",
                build=partial(_build_peer, peer=peer),
                has_slots=peer.has_slots,
            )
            for name, peer in _PEERS.items()
        ),
    ]


def layers() -> list[Contender]:
    """One encoder layer with E = F, as where all layers share one map, and with ordinary attention, fused and eager."""
    return [
        Contender(name=OURS, build=_build_layer),
        Contender(name=LAYER, build=partial(_build_full_layer, eager=False), has_slots=False),
        Contender(name=EAGER_LAYER, build=partial(_build_full_layer, eager=True), has_slots=False),
    ]


def our_config(case: Case, **options: Any) -> LinformerConfig:
    """The configuration of a model for a case; full attention does not use its K."""
    return LinformerConfig(**_sizes(case), pad_token_id=None, k=case.k or DEFAULT_K, **options)


def drawn_ids(case: Case, length: int) -> Tensor:
    """Token ids ``(B, length)``, the same for every contender; none of them is special."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(_FIRST_WORD, VOCABULARY, (case.batch, length), generator=generator).to(case.device)


def _sizes(case: Case) -> dict[str, Any]:
    """Width, depth and no dropout, as the configurations of transformers name them."""
    return {
        "vocab_size": VOCABULARY,
        "hidden_size": case.width,
        "num_hidden_layers": case.layers,
        "num_attention_heads": case.heads,
        "intermediate_size": case.feedforward,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }


def _build_linformer(case: Case, options: Mapping[str, Any]) -> Workload:
    return _token_workload(LinformerModel(our_config(case, max_position_embeddings=case.length, **options)), case)


def _build_peer(case: Case, peer: "Peer") -> Workload:
    config = getattr(transformers, f"{peer.model}Config")
    model = getattr(transformers, f"{peer.model}Model")
    with _quiet():
        sizes = {**_sizes(case), "max_position_embeddings": case.length, **peer.options(case)}
        built = model(config(**sizes), **({"add_pooling_layer": False} if peer.pools else {}))
        return _token_workload(peer.change(built, case), case)


def _token_workload(model: PreTrainedModel, case: Case) -> Workload:
    model, ids = placed(model, case), drawn_ids(case, case.length)

    def run(input_ids: Tensor) -> Tensor:
        with _quiet():
            output: Tensor = model(input_ids).last_hidden_state
        return output

    return Workload(module=model, inputs=(ids,), run=run, output_shape=(*ids.shape, case.width))


@contextmanager
def _quiet() -> Iterator[None]:
    """No warnings of transformers: on padding to a window, and on ids of a larger vocabulary."""
    before = logging.get_verbosity()
    logging.set_verbosity(ERROR)
    try:
        yield
    finally:
        logging.set_verbosity(before)


class Peer(NamedTuple):
    """An encoder of transformers.

    Attributes:
        model: its name in transformers, without ``Config`` or ``Model``.
        options: of its configuration, beside width and depth; raises where it cannot compute a case.
        pools: whether its pooling layer must be left out.
        has_slots: whether it depends on K.
        change: what is done to the model for a case.
    """

    model: str
    options: Callable[[Case], dict[str, Any]]
    pools: bool = True
    has_slots: bool = False
    change: Callable[[PreTrainedModel, Case], PreTrainedModel] = lambda model, case: model


def _linear(model: PreTrainedModel, case: Case) -> PreTrainedModel:
    return linearize(model, case.k, LINEAR_WINDOW, max_length=case.length)


def _values(module: nn.Module, query: Tensor, key: Tensor, value: Tensor, mask: None, **kwargs: Any) -> Any:
    """In place of attention: each position's own value."""
    return value.transpose(1, 2), None


AttentionInterface.register("values", _values)
AttentionMaskInterface.register("values", lambda *args, **kwargs: None)


def _modernbert(case: Case) -> dict[str, Any]:
    # A gated feed-forward has three matrices: two thirds of the width make it cost what the others' two do.
    ids = {f"{name}_token_id": 0 for name in ("pad", "eos", "bos", "cls", "sep")}
    return {**_SDPA, **ids, "intermediate_size": 2 * case.feedforward // 3}


def _bigbird(case: Case) -> dict[str, Any]:
    sparse = case.length > _BIGBIRD_FULL
    return {"attention_type": "block_sparse" if sparse else "original_full", "block_size": _BIGBIRD_BLOCK}


def _nystromformer(case: Case) -> dict[str, Any]:
    _require_float32(case, "Nyströmformer multiplies by a float32 identity")
    if case.length % case.k:
        raise ValueError(f"Nyströmformer takes multiples of its {case.k} landmarks, got {case.length} tokens")
    return {"segment_means_seq_len": case.length, "num_landmarks": case.k}


def _fnet(case: Case) -> dict[str, Any]:
    _require_float32(case, "FNet's Fourier transform takes no other")
    return {}


def _require_float32(case: Case, reason: str) -> None:
    if case.dtype != "float32":
        raise ValueError(f"it computes only in float32, not in {case.dtype}: {reason}")


_SDPA: dict[str, Any] = {"attn_implementation": "sdpa"}
_PEERS = {
    BERT: Peer("Bert", lambda case: _SDPA),
    "BERT made linear": Peer("Bert", lambda case: _SDPA, has_slots=True, change=_linear),
    "BERT without attention": Peer("Bert", lambda case: {"attn_implementation": "values"}),
    "ModernBERT, SDPA": Peer("ModernBert", _modernbert, pools=False),
    # Its positions begin after the padding's id, 1.
    "Longformer": Peer("Longformer", lambda case: {"max_position_embeddings": case.length + 2}),
    "BigBird": Peer("BigBird", _bigbird),
    "Nyströmformer": Peer("Nystromformer", _nystromformer, pools=False, has_slots=True),
    "FNet": Peer("FNet", _fnet),
}


def _build_layer(case: Case) -> Workload:
    sizes = case.width, case.heads, case.feedforward
    layer = LinformerEncoderLayer(*sizes, 0.0, "gelu", max_len=case.length, k=case.k, sharing="kv")
    return sequence_workload(layer, case, call)


def _build_full_layer(case: Case, eager: bool) -> Workload:
    layer = EncoderLayer(FullAttention(case.width, case.heads), case.feedforward, 0.0, "gelu")
    return sequence_workload(layer, case, partial(EncoderLayer.__call__, need_weights=eager))


SIZES = {"width": 384, "heads": 12, "layers": 6, "feedforward": 1536}
LENGTHS, KS = (512, 2048, 8192), (128,)
QUICK_LENGTHS = (512, 1024)
TRAINING_LENGTH, QUICK_TRAINING_LENGTH = 2048, 512  # the longest, unless the user chooses

_TEXT = (
    "6 layers of width 384, 12 heads, feed-forward 1,536, random weights, no dropout, from token ids to the last "
    "hidden state; each value is followed by its ratio to the first row's. ModernBERT's gated feed-forward has two "
    "thirds of the width, which costs the same. BigBird attends fully up to 704 tokens, and sparsely "
    f"beyond. BERT made linear has a window of {LINEAR_WINDOW} and slots chosen by the input, and reads short texts "
    "as BERT does; without attention each position gets its own value: only linear maps are left."
)


class EncoderSuite(Suite):
    """Forward and training of encoders over lengths."""

    name = "encoder"
    title = "Whole encoders"
    several_batches = True

    def cases(self, grid: Grid) -> list[Case]:
        lengths = grid.lengths or (QUICK_LENGTHS if grid.quick else LENGTHS)
        ks = grid.ks or KS
        longest = QUICK_TRAINING_LENGTH if grid.quick else TRAINING_LENGTH
        trained = grid.lengths or [length for length in lengths if length <= longest]
        cases = [
            *grid_cases(grid, lengths, ks, step="forward", **SIZES),
            *grid_cases(grid, trained, ks, step="training", **SIZES),
        ]
        return require_cases(cases, lengths, ks)

    def contenders(self) -> list[Contender]:
        everyone = encoders()
        picked = [each for each in everyone if each.name == OURS or each.name.startswith(BERT)]
        return [*everyone, *(form for each in picked for form in compiled(each))]

    def summarize(self, rows: Sequence[Measurement]) -> Summary:
        results, ours, twin = Measurements(rows), OURS, TWIN
        sections, figures = compare_lengths(
            results, ours=ours, rival=twin, text=_TEXT, title="Encoders", file="encoder"
        )
        eager = [name for name in results.contenders if not name.endswith(tuple(MODES))]
        rivals = [name for name in eager if name.startswith((BERT, "ModernBERT")) or name == twin]
        return Summary(
            headlines=ratio_headlines(results, ours, rivals),
            sections=sections,
            figures=figures,
            derived={"ratios": ratio_records(results, ours)},
        )
