"""What the sources share: files read without running code, tables of names, models filled with weights."""

import argparse
import logging
import pickle
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel

State = Mapping[str, Tensor]

_logger = logging.getLogger("torch_linformer.models.convert")
_LISTED = 12  # names an error spells out
_WRAPPERS = ("model", "state_dict", "model_state_dict")
_OPTIONS = ("args", "cfg", "config", "hparams", "hyper_parameters")
# Modules around a model: parallel ones, those of training loops, torch.compile, the Padder of linformer-pytorch. That
# package and fairseq begin no name so; of lucidrains those that begin with "net.layers." or "net.blocks." are its own.
_AROUND = re.compile(r"(module|model|_orig_mod|net)\.(?!(layers|blocks)\.)")

# What the models of other packages have in common: sums without length factor, embeddings without norm, no padding.
PLAIN = {
    "length_scaling": False,
    "embedding_norm": False,
    "type_vocab_size": 0,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# A model trained on embeddings has no vocabulary; it is called with inputs_embeds.
NO_VOCABULARY = {"vocab_size": 1, "position_embedding": "none"}


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """What a checkpoint file holds: ``.safetensors``, or what ``torch.save`` wrote, read with ``weights_only=True``.

    Besides tensors and plain values only ``argparse.Namespace`` is allowed, in which fairseq keeps its options.

    Raises:
        ValueError: the file would run code, is damaged, or holds something other than a mapping.
        OSError: it cannot be opened.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name the checkpoint file in it")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: is not a complete safetensors file ({error})") from None
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise refusal(path, error) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).partition(".")[0] or type(error).__name__
        raise ValueError(f"{path}: is not a complete checkpoint of torch.save ({reason})") from None
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path}: holds a {type(checkpoint).__name__}, not a state dict")
    return checkpoint


def refusal(path: str | PathLike[str], error: pickle.UnpicklingError) -> ValueError:
    """Why a pickle was not loaded."""
    match = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"it holds {match[1]}" if match else "it holds more than tensors"
    return ValueError(
        f"{path}: refused, because {what}, and loading that would run code from that file; "
        "save model.state_dict() instead, preferably as safetensors"
    )


def tensors_in(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict in a checkpoint: the mapping itself, or its entry "model", "state_dict" or "model_state_dict".

    The names of modules around the model are taken off.
    """
    inside = next((checkpoint[name] for name in _WRAPPERS if isinstance(checkpoint.get(name), Mapping)), checkpoint)
    others = [name for name, value in inside.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"the checkpoint is not a state dict: {_listed(others)} are not tensors")
    while around := _AROUND.match(next(iter(inside), "")):
        if not all(name.startswith(around[0]) for name in inside):
            break
        inside = {name.removeprefix(around[0]): tensor for name, tensor in inside.items()}
    return dict(inside)


def options_in(checkpoint: Mapping[str, Any]) -> Mapping[str, Any]:
    """The options that a model was made with, where its checkpoint holds them; fairseq keeps them under "model"."""
    for name in _OPTIONS:
        options = checkpoint.get(name)
        if isinstance(options, Mapping) and isinstance(options.get("model"), Mapping | argparse.Namespace):
            options = options["model"]
        if isinstance(options, argparse.Namespace):
            options = vars(options)
        if isinstance(options, Mapping):
            return options
    return {}


def expanded(table: Mapping[str, str], theirs: str = "", ours: str = "") -> dict[str, str]:
    """A table of names with a prefix before theirs and one before ours; ``.*`` stands for ``.weight`` and ``.bias``."""
    return {
        theirs + their_name.replace("*", what): ours + our_name.replace("*", what)
        for their_name, our_name in table.items()
        for what in ("weight", "bias")
    }


def count(names: Iterable[str], pattern: str) -> int:
    """One more than the largest number that ``pattern`` captures; 1 if none, so that an error lists what is missing."""
    numbers = [int(match[1]) for match in (re.match(pattern, name) for name in names) if match]
    return max(numbers, default=0) + 1


def renamed(source: str, state: State, names: Mapping[str, str]) -> dict[str, Tensor]:
    """The tensors of a state dict by our names; each name must be in the table, and all of the table must be there."""
    check_names(source, state, names)
    return {ours: state[theirs] for theirs, ours in names.items()}


def check_names(source: str, present: Collection[str], expected: Collection[str]) -> None:
    """Raise ``ValueError`` that lists which expected names are missing and which of those found are unknown."""
    missing, unknown = sorted(set(expected) - set(present)), sorted(set(present) - set(expected))
    parts = [f"{kind} {_listed(names)}" for kind, names in (("missing", missing), ("unknown", unknown)) if names]
    if parts:
        raise ValueError(f"these are not the weights of a {source} model: {'; '.join(parts)}")


def report_left_out(names: Collection[str], why: str) -> None:
    """Log which tensors of the source the model does not have."""
    if names:
        _logger.warning("left out, %s: %s", why, _listed(sorted(names)))


def report_taken(options: Sequence[str]) -> None:
    """Log which options of the source are taken to be off, because nothing tells them."""
    if options:
        _logger.warning("taken to be off, as the file does not tell: %s (outputs differ if not so)", _listed(options))


def heads_for(width: int, num_heads: int | None) -> int:
    """``num_heads``, which weights do not tell, checked against the width of all heads together."""
    if num_heads is None:
        raise ValueError("the weights do not tell the number of heads: give num_heads (--heads)")
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"num_heads (--heads) must divide the {width} channels of the queries, got {num_heads}")
    return num_heads


def head_dim_field(hidden_size: int, heads: int, head_dim: int) -> dict[str, int]:
    """The configuration's ``head_dim``, where it is not hidden_size / heads."""
    return {} if heads * head_dim == hidden_size else {"head_dim": head_dim}


def pop_projections(tensors: dict[str, Tensor], backbone: str, layers: int) -> tuple[list[Tensor], list[Tensor]]:
    """Take E and F of each layer out of renamed tensors; F is E where there is none."""
    attentions = [f"{backbone}encoder.layers.{layer}.self_attn." for layer in range(layers)]
    keys = [tensors.pop(f"{attention}context.proj_k.weight") for attention in attentions]
    return keys, [tensors.pop(f"{attention}context.proj_v.weight", keys[i]) for i, attention in enumerate(attentions)]


def sharing_of(keys: Sequence[Tensor], values: Sequence[Tensor]) -> str:
    """How layers share E and F, told by the values: a state dict holds a copy for each use."""
    if not all(map(torch.equal, keys, values)):
        return "headwise"
    return "layerwise" if len(keys) > 1 and all(torch.equal(keys[0], other) for other in keys) else "kv"


def projections(sharing: str, keys: Sequence[Tensor], values: Sequence[Tensor], backbone: str) -> dict[str, Tensor]:
    """E and F of each layer, ``(..., k, max_len)``, as the tensors that our model has under this sharing."""
    if sharing == "layerwise":
        return {f"{backbone}encoder.shared_projection.weight": keys[0].mT}
    return {
        f"{backbone}encoder.layers.{layer}.self_attn.context.{name}.weight": matrix.mT
        for name, matrices in (("proj_k", keys), ("proj_v", values))[: 1 if sharing == "kv" else 2]
        for layer, matrix in enumerate(matrices)
    }


def add_zero_biases(tensors: dict[str, Tensor], attention: str) -> None:
    """Add the biases of queries, keys and values that the original does not have."""
    for name in ("q_proj", "k_proj", "v_proj"):
        weight = tensors[f"{attention}{name}.weight"]
        tensors.setdefault(f"{attention}{name}.bias", weight.new_zeros(len(weight)))


def build(
    model_class: type[LinformerPreTrainedModel], config: LinformerConfig, tensors: State
) -> LinformerPreTrainedModel:
    """A model in eval mode with a copy of these tensors, in their dtype; each of its own must be among them."""
    dtype = next(tensor.dtype for name, tensor in tensors.items() if name.endswith("q_proj.weight"))
    model = model_class(config)
    nn.Module.to(model, dtype)  # the method of transformers has no types
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"the shapes of the weights do not fit together: {' '.join(str(error).split())}") from None
    model.train(False)
    return model


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
