"""Computes each case in pieces, in 1, 2, 3 and 4 processes on gloo, and writes the largest errors into FILE.

Usage: pieces_of.py FILE

An error is that of a number, or of a gradient, beside one process in float64, relative to the largest.
"""

import json
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterable
from datetime import timedelta
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
import transformers
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.spawn import start_processes
from torch.nn.parallel import DistributedDataParallel

from torch_linformer import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
from torch_linformer.distributed import SequencePiece, context_parallel
from torch_linformer.encoders import linearize
from torch_linformer.models.lexical_head import KINDS, WORD
from torch_linformer.nn import LinformerAttention, LinformerEncoder

COUNTS = (1, 2, 3, 4)
BATCH, LENGTH, WIDTH = 3, 53, 16
PATIENCE = timedelta(seconds=30)  # with a process that has failed
LAST_EMPTY = [0, LENGTH, LENGTH]
UNEVEN = {3: [0, 2, 2, LENGTH], 4: [0, 5, 6, 40, LENGTH]}  # the last window of 6 reaches over 5, 6
ENCODERS = {
    "linear, a map a head": {"sharing": "none"},
    "linear, with a bias": {"slot_bias": True, "num_kv_heads": 2},
    "linear, one map for all layers": {"sharing": "layerwise", "exact_last": 2},
    "random": {"projection": "random"},
    "conv": {"projection": "conv", "sharing": "kv_per_head"},
    "conv, window": {"projection": "conv", "window": 6, "slot_mass": "fixed"},
    "mean": {"projection": "mean", "slot_mass": "learned"},
    "mean, window, exact tokens": {"projection": "mean", "window": 4, "exact_first": 2, "exact_last": 3},
    "max": {"projection": "max"},
    "max, window": {"projection": "max", "window": 6},
    "dynamic, a map a head": {"projection": "dynamic", "sharing": "none"},
    "dynamic, everything": {
        "projection": "dynamic",
        "sharing": "kv_per_head",
        "window": 6,
        "exact_first": 2,
        "exact_last": 1,
        "slot_mass": "learned",
    },
    "dynamic, one map a layer": {"projection": "dynamic", "sharing": "kv", "window": 2},
    "dynamic, one map for all layers": {"projection": "dynamic", "sharing": "layerwise"},
    "only a window": {"k": 0, "window": 8},
    "checkpoint": {"projection": "dynamic", "sharing": "kv", "window": 6, "activation_memory": "checkpoint"},
    "reversible": {"projection": "mean", "window": 6, "activation_memory": "reversible", "norm_first": True},
    "chunks of the feed-forward": {"projection": "mean", "chunk_size": 10},
    "causal": {"causal": True, "rotary_dim": 4},
    "causal, window, exact tokens": {"causal": True, "window": 6, "exact_first": 2},
    "causal, checkpoint": {"causal": True, "window": 3, "exact_first": 2, "activation_memory": "checkpoint"},
    "causal, reversible": {"causal": True, "window": 3, "activation_memory": "reversible", "norm_first": True},
}
MODELS = {
    "classes by the first token": (LinformerForSequenceClassification, {"pooling": "cls"}),
    "classes by the last token": (LinformerForSequenceClassification, {"pooling": "last", "causal": True, "window": 5}),
    "classes by mean and maximum": (
        LinformerForSequenceClassification,
        {"pooling": "mean_max", "projection": "dynamic", "sharing": "kv_per_head", "exact_first": 1},
    ),
    "classes with a lexical head": (LinformerForSequenceClassification, {"pooling": "mean", "lexical_features": 64}),
    "classes with a lexical head, without a token for padding": (
        LinformerForSequenceClassification,
        {"pooling": "max", "lexical_features": 45, "lexical_letters": 1, "pad_token_id": None},
    ),
    "masked words": (LinformerForMaskedLM, {"projection": "mean", "window": 4, "position_embedding": "sinusoidal"}),
    "masked words, reversible": (
        LinformerForMaskedLM,
        {"sharing": "layerwise", "norm_first": True, "activation_memory": "reversible"},
    ),
    "tags": (LinformerForTokenClassification, {"type_vocab_size": 2}),
    # Of the padded rows one has 18 tokens, the others 44 and 53.
    "classes, on a BERT, some rows exactly": (LinformerForSequenceClassification, {"on": "Bert", "exact_below": 20}),
    "classes, on a RoBERTa, all rows exactly": (
        LinformerForSequenceClassification,
        {"on": "Roberta", "exact_below": 53, "pad_token_id": 1},
    ),
    "classes, on a Nomic-BERT, no row exactly": (
        LinformerForSequenceClassification,
        {"on": "NomicBert", "exact_below": 0},
    ),
    "tags, on a ModernBERT": (LinformerForTokenClassification, {"on": "ModernBert", "exact_below": 20}),
}
FAR = ("conv, window", "max, window", "dynamic, everything", "only a window", "causal, window, exact tokens")
UNPADDED = (  # the last two also with an empty piece
    "linear, with a bias",
    "linear, one map for all layers",
    "conv, window",
    "mean",
    "max, window",
    "reversible",
    "classes by the last token",
    "classes by mean and maximum",
    "classes with a lexical head, without a token for padding",
    "masked words",
    "tags",
    "classes, on a BERT, some rows exactly",
    "classes, on a RoBERTa, all rows exactly",
    "dynamic, everything",
    "causal, window, exact tokens",
)
OF_FAMILY = {
    "ModernBert": {
        **dict.fromkeys(("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 2),
        **{"local_attention": 6, "global_attn_every_n_layers": 2},
    }
}


def padding_mask() -> Tensor:
    """Padding before the tokens of a row, after those of another, and between."""
    mask = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    mask[0, :9] = mask[1, 20:] = mask[1, 3] = True
    return mask


def worst(pairs: Iterable[tuple[Tensor | None, Tensor | None]]) -> float:
    """The largest error among tensors that were computed in both ways; None is a gradient of zeros."""
    errors = [0.0]
    for wanted, found in pairs:
        if wanted is not None or found is not None:
            one = wanted if wanted is not None else torch.zeros_like(found)
            other = found if found is not None else torch.zeros_like(wanted)
            errors.append(((one - other).abs().amax() / one.abs().amax().clamp(min=1)).item())
    return max(errors)


def mean_over_ranks(gradient: Tensor | None, like: Tensor) -> Tensor:
    total = torch.zeros_like(like) if gradient is None else gradient.clone()
    dist.all_reduce(total)
    return total / dist.get_world_size()


def of_encoder(options: dict, padded: bool, bounds: list[int] | None) -> float:
    torch.manual_seed(0)
    encoder = LinformerEncoder(WIDTH, 4, 2, 32, 0.0, max_len=60, **{"k": 7, **options}).double()
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    mask = padding_mask() if padded else None
    src = torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.float64, requires_grad=True)
    weights = torch.randn_like(src) if mask is None else torch.randn_like(src).masked_fill(mask.unsqueeze(-1), 0.0)
    causal = bool(options.get("causal"))
    whole = encoder(src, src_key_padding_mask=mask, is_causal=causal) * weights.sign().abs()
    asked = [src, *encoder.parameters()]
    wanted = torch.autograd.grad((whole * weights).sum(), asked, allow_unused=True)

    piece = SequencePiece(dist.group.WORLD, BATCH, LENGTH, key_padding_mask=mask, bounds=bounds)
    hidden = encoder(piece.cut(src), src_key_padding_mask=piece, is_causal=causal)
    with torch.no_grad():
        inferred = piece.gather(encoder(piece.cut(src), src_key_padding_mask=piece, is_causal=causal))
    gathered = piece.gather(hidden)
    found = torch.autograd.grad((gathered * weights).sum(), asked, allow_unused=True)
    found = [mean_over_ranks(x, like) for x, like in zip(found, asked, strict=True)]
    outputs = [(whole, gathered * weights.sign().abs()), (gathered, inferred)]
    return worst([*outputs, *zip(wanted, found, strict=True)])


def on_encoder(family: str, options: dict) -> LinformerConfig:
    """The configuration of a head on a linear encoder of transformers."""
    sizes = {"hidden_size": WIDTH, "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 32}
    dropouts = ("hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "embedding_dropout")
    kind = getattr(transformers, f"{family}Config")
    config = kind(
        vocab_size=50,
        max_position_embeddings=66,
        pad_token_id=options.get("pad_token_id", 0),
        **sizes,
        **{name: 0.0 for name in (*dropouts, "mlp_dropout") if hasattr(kind(), name)},
        **OF_FAMILY.get(family, {}),
    )
    encoder = linearize(
        getattr(transformers, f"{family}Model")(config), k=5, window=6, exact_below=options["exact_below"]
    )
    return LinformerConfig(backbone_config=encoder.config, num_labels=3, pooling="mean", classifier_dropout=0.0)


def config_of(options: dict) -> LinformerConfig:
    if "on" in options:
        return on_encoder(options["on"], options)
    return LinformerConfig(
        vocab_size=50,
        hidden_size=WIDTH,
        num_attention_heads=4,
        num_hidden_layers=2,
        intermediate_size=32,
        max_position_embeddings=64,
        k=5,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=3,
        **{"pad_token_id": 0, **options},
    )


def twins(model_class: type, options: dict) -> tuple[nn.Module, nn.Module]:
    """A model, and a copy of it."""
    torch.manual_seed(0)
    first, second = (model_class(config_of(options)).double() for _ in range(2))
    if getattr(first, "lexical", None) is not None:
        head = first.lexical
        head.spelling.copy_(torch.arange(50))  # each token is a word
        head.sizes.fill_(1)
        head.codes.copy_(KINDS * torch.arange(len(head.codes)) + WORD)
        head.idf.fill_(1.0)
        nn.init.normal_(head.weight)
    second.load_state_dict(first.state_dict())
    return first, second


def batch_of(model_class: type, padded: bool) -> dict:
    ids = torch.randint(5, 50, (BATCH, LENGTH))
    real = ~padding_mask() if padded else torch.ones_like(ids, dtype=torch.bool)
    labels = torch.tensor([0, 1, 2])
    if model_class is not LinformerForSequenceClassification:
        labels = torch.randint(0, 3, (BATCH, LENGTH)).masked_fill((torch.rand(BATCH, LENGTH) < 0.7) | ~real, -100)
    batch = {"input_ids": ids.masked_fill(~real, 0), "attention_mask": real.long() if padded else None}
    if model_class is LinformerForMaskedLM and padded:
        batch["sparse_prediction"] = True
    return {**batch, "labels": labels}


def of_model(model_class: type, options: dict, padded: bool) -> float:
    whole, model = twins(model_class, options)
    batch = batch_of(model_class, padded)
    wanted = whole(**batch)
    wanted.loss.backward()
    slots_are_unused = options.get("exact_below") == LENGTH
    pieces = context_parallel(model, dist.group.WORLD)
    parallel = DistributedDataParallel(pieces, find_unused_parameters=slots_are_unused)
    found = parallel(**batch)
    found.loss.backward()
    of_rows = model_class is LinformerForSequenceClassification
    outputs = [(wanted.loss, found.loss), *([(wanted.logits, found.logits)] if of_rows else [])]
    gradients = [(x.grad, y.grad) for x, y in zip(whole.parameters(), model.parameters(), strict=True)]
    return worst([*outputs, *gradients])


def of_mesh() -> float:
    """FSDP2 over two dimensions: pieces over one, rows over the other; weights after a step."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("cp", "dp"))
    whole, model = twins(LinformerForSequenceClassification, {"projection": "dynamic", "window": 6})
    ids, labels = torch.randint(5, 50, (4, LENGTH)), torch.tensor([0, 1, 2, 1])
    rows = slice(2 * mesh.get_local_rank("dp"), 2 * mesh.get_local_rank("dp") + 2)
    context_parallel(model, mesh["cp"])
    for layer in model.linformer.encoder.layers:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for each, part in ((whole, slice(None)), (model, rows)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        each(ids[part], labels=labels[part]).loss.backward()
        optimizer.step()
    return worst((x, y.full_tensor()) for x, y in zip(whole.parameters(), model.parameters(), strict=True))


def of_bytes() -> float:
    """0 where what a rank gives to others for one layer is what the formula says, whatever N."""
    given, slots = [], 7
    for length in (100, 200):
        attention = LinformerAttention(WIDTH, 4, max_len=200, k=slots, bias=False).double()
        src = torch.randn(1, length, WIDTH, dtype=torch.float64, requires_grad=True)
        piece = SequencePiece(dist.group.WORLD, 1, length)
        attention(piece.cut(src), key_padding_mask=piece)[0].sum().backward()
        given.append(piece.peers.sent)
    # Slots of keys and values in the forward pass, and their gradients: numbers of 8 bytes.
    expected = 0 if dist.get_world_size() == 1 else 2 * 2 * slots * WIDTH * 8
    return float(max(abs(x - expected) for x in given))


def cases(count: int) -> dict[str, Callable[[], float]]:
    """Cases by name: all of them in three processes, and in others those that pieces of that number may break.

    One process has nobody to ask; two have even pieces and rows without padding; a window over four reaches more than
    one neighbor.
    """
    by_name: dict[str, Callable[[], float]] = {"bytes": of_bytes}
    for name, options in ENCODERS.items():
        if count == 2 and name in UNPADDED:
            by_name[name] = partial(of_encoder, options, False, None)
        if count == 2 and name in UNPADDED[-2:]:
            by_name[f"{name}; the last piece empty"] = partial(of_encoder, options, False, LAST_EMPTY)
        if count == 3 or (count == 4 and name in FAR):
            by_name[f"{name}; padded, uneven"] = partial(of_encoder, options, True, UNEVEN[count])
    for name, (model_class, options) in MODELS.items():
        if count == 2 and name in UNPADDED:
            by_name[name] = partial(of_model, model_class, options, False)
        if count in (1, 3):
            by_name[f"{name}; padded"] = partial(of_model, model_class, options, True)
    if count == 4:
        by_name["FSDP2"] = of_mesh
    return by_name


def run(rank: int, count: int, store: str, file: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=count, timeout=PATIENCE)
    answers: dict[str, float] = {}
    for name, case in cases(count).items():
        try:
            answers[name] = case()
        except Exception:
            print(f"{name}, process {rank}:", traceback.format_exc(), file=sys.stderr)
            break  # the others wait in vain for what this process does not say
    if rank == 0:
        Path(file).write_text(json.dumps(answers), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in COUNTS:
            place = Path(folder, str(number))
            # Forked, as each would take seconds to import what is here already; nothing has started a thread yet.
            start_processes(run, (number, f"{place}.store", f"{place}.json"), nprocs=number, start_method="fork")
            found[number] = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
    Path(sys.argv[1]).write_text(json.dumps(found), encoding="utf-8")
