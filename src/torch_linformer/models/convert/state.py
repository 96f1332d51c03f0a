"""What the sources share: files read without running code, names checked against a table, models filled."""

import argparse
import logging
import pickle
import re
from collections.abc import Collection, Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from torch_linformer.models.backbone import LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig

State = Mapping[str, Tensor]

_logger = logging.getLogger("torch_linformer.models.convert")
_LISTED = 12  # names an error spells out
_WRAPPERS = ("model", "state_dict", "model_state_dict")

# What the plain models of other packages have in common: sums without length factor, embeddings without norm.
PLAIN = {
    "length_scaling": False,
    "embedding_norm": False,
    "type_vocab_size": 0,
    "pad_token_id": None,
    "tie_word_embeddings": False,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}
# A model that was trained on embeddings has no vocabulary; read it with inputs_embeds.
NO_VOCABULARY = {"vocab_size": 1, "position_embedding": "none"}


def read_checkpoint(path: str | PathLike[str]) -> dict[str, Any]:
    """What a checkpoint file holds: ``.safetensors``, or what ``torch.save`` wrote, read with ``weights_only=True``.

    Beside tensors and plain values only ``argparse.Namespace`` is allowed, in which fairseq keeps its options.

    Raises:
        ValueError: the file would run code, is damaged, or holds something else than a mapping.
        OSError: it cannot be opened.
    """
    path = Path(path)
    if path.is_dir():
        raise ValueError(f"{path}: is a folder; name the checkpoint file in it")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except SafetensorError as error:
            raise ValueError(f"{path}: is no whole safetensors file ({error})") from None
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise refusal(path, error) from None
    except (RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).partition(".")[0] or type(error).__name__
        raise ValueError(f"{path}: is no whole checkpoint of torch.save ({reason})") from None
    if not isinstance(checkpoint, dict):
        raise ValueError(f"{path}: holds a {type(checkpoint).__name__}, not a state dict")
    return checkpoint


def refusal(path: str | PathLike[str], error: pickle.UnpicklingError) -> ValueError:
    """Why a pickle was not loaded."""
    found = re.search(r"GLOBAL ([\w.]+)", str(error))
    what = f"it holds {found[1]}" if found else "it holds more than tensors"
    return ValueError(
        f"{path}: refused, because {what}, and loading that would run code of the file's own; "
        "save model.state_dict() instead, best as safetensors"
    )


def tensors_in(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict in a checkpoint: the mapping itself, or its entry "model" or "state_dict"."""
    inside = next((checkpoint[name] for name in _WRAPPERS if isinstance(checkpoint.get(name), Mapping)), checkpoint)
    others = [name for name, value in inside.items() if not isinstance(value, Tensor)]
    if others:
        raise ValueError(f"the checkpoint is no state dict: {_listed(others)} are no tensors")
    return dict(inside)


def fill(table: Mapping[str, str], prefix: str = "", to: str = "", **numbers: int) -> dict[str, str]:
    """Names of a table with their numbers put in: theirs, behind ``prefix``, to ours, behind ``to``."""
    return {prefix + theirs.format(**numbers): to + ours.format(**numbers) for theirs, ours in table.items()}


def count(names: Iterable[str], pattern: str) -> int:
    """How many there are of what ``pattern`` captures the number of; at least 1, for an error to say what lacks."""
    numbers = [int(found[1]) for found in (re.match(pattern, name) for name in names) if found]
    return max(numbers, default=0) + 1


def check_names(source: str, found: Collection[str], expected: Collection[str]) -> None:
    """Raise ``ValueError`` that lists what of the expected is missing and what of the found is unknown."""
    missing, unknown = sorted(set(expected) - set(found)), sorted(set(found) - set(expected))
    parts = [f"{kind} {_listed(names)}" for kind, names in (("missing", missing), ("unknown", unknown)) if names]
    if parts:
        raise ValueError(f"these are not the weights of a {source} model: {'; '.join(parts)}")


def report_left_out(names: Collection[str], why: str) -> None:
    """Say which tensors of the source the model does not have."""
    if names:
        _logger.warning("left out, %s: %s", why, _listed(sorted(names)))


def heads_for(width: int, num_heads: int | None) -> int:
    """``num_heads``, checked against the width of all heads together; the weights do not tell it."""
    if num_heads is None:
        raise ValueError("the weights do not tell the number of heads: give num_heads (--heads)")
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"num_heads (--heads) must divide the {width} channels of the queries, got {num_heads}")
    return num_heads


def head_dim_field(hidden_size: int, heads: int, head_dim: int) -> dict[str, int]:
    """The configuration's ``head_dim``, where it is not what the width makes it."""
    return {} if heads * head_dim == hidden_size else {"head_dim": head_dim}


def build(
    model_class: type[LinformerPreTrainedModel], config: LinformerConfig, tensors: State
) -> LinformerPreTrainedModel:
    """A model in eval mode with a copy of these tensors, in their dtype; each of its own must be among them."""
    dtype = next(tensor.dtype for name, tensor in tensors.items() if name.endswith("q_proj.weight"))
    model: Any = model_class(config)
    model.to(dtype)
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise ValueError(f"the shapes of the weights do not fit together: {' '.join(str(error).split())}") from None
    model.eval()
    return model


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:_LISTED])
    return shown if len(names) <= _LISTED else f"{shown} and {len(names) - _LISTED} more"
