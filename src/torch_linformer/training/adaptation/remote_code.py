"""Encoders with code of their own, as the models of transformers that this code extends."""

import copy
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from torch_linformer.training.errors import InputError
from torch_linformer.training.pretrained import first_line

OF_OWN_CODE = ("model_type", "auto_map", "architectures")  # of a configuration


def is_own_code(cls: type) -> bool:
    """Whether a class is neither of transformers nor of this package."""
    return cls.__module__.partition(".")[0] not in ("transformers", "torch_linformer")


def names_own_code(config: PreTrainedConfig) -> bool:
    """Whether a configuration has a model opened by code in its folder."""
    auto_map = getattr(config, "auto_map", None) or {}
    return is_own_code(type(config)) or any(name.startswith("AutoModel") for name in auto_map)


def run_own_code(path: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The model that the code beside a configuration makes of the weights.

    Raises:
        InputError: it cannot, or the weights are not all there.
    """
    architecture = (config.architectures or [""])[0]
    names = {str(reference).rpartition(".")[2]: name for name, reference in getattr(config, "auto_map", {}).items()}
    auto: Any = getattr(transformers, names.get(architecture, "AutoModel"), AutoModel)
    try:
        model, report = auto.from_pretrained(path, config=config, trust_remote_code=True, output_loading_info=True)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: its own code cannot open it: {first_line(error)}") from None
    # An encoder saved from below another head has no pooler, and needs none.
    missing = sorted(name for name in report["missing_keys"] if not name.startswith("pooler."))
    if missing:
        raise InputError(f"{path}: the weights lack {missing[0]}, which its own code wants; copy the folder again")
    return model


def without_own_code(model: PreTrainedModel, path: str, task: str | None = None) -> PreTrainedModel:
    """The model of transformers that a model's class extends, with its weights: one that gives the same output.

    Raises:
        InputError: it extends none, has other weights, or computes something else.
    """
    if task == "embed":
        model = cast(PreTrainedModel, model.base_model)
    classes = (cls for cls in type(model).__mro__ if issubclass(cls, PreTrainedModel) and not is_own_code(cls))
    name, known = type(model).__name__, cast(Any, next(classes))
    if known.__name__.endswith("PreTrainedModel"):
        remedy = "" if task == "embed" else "; --task embed adapts the encoder below its head, where that is one"
        raise InputError(f"{path}: {name} extends no model of transformers, only {known.__name__}{remedy}")
    fields = {name: value for name, value in model.config.to_dict().items() if name not in OF_OWN_CODE}
    try:
        twin: PreTrainedModel = known(known.config_class.from_dict(fields))
    except Exception as error:  # of sizes that do not fit one another, say
        raise InputError(f"{path}: its configuration makes no {known.__name__}: {first_line(error)}") from None
    theirs, ours = (cast(nn.Module, each).state_dict() for each in (model, twin))
    others = [name for name, tensor in theirs.items() if name not in ours or ours[name].shape != tensor.shape]
    if others:
        raise InputError(f"{path}: {name} cannot be adapted: {known.__name__} has no counterpart of its {others[0]}")
    cast(nn.Module, twin).load_state_dict(theirs, strict=False)  # a pooler, perhaps, is ours alone
    try:
        same = _same_output(model, twin)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: {name} cannot read a text: {first_line(error)}") from None
    if not same:
        raise InputError(f"{path}: {name} computes something else than {known.__name__}, and cannot be adapted")
    return twin


@torch.no_grad()
def _same_output(model: PreTrainedModel, twin: PreTrainedModel) -> bool:
    """Whether both give the same for two texts of random tokens, one as long as can be and one of half the length."""
    padding = twin.config.pad_token_id or 0
    length = twin.config.max_position_embeddings - padding - 1  # RoBERTa has no positions before its padding's
    token_ids = torch.randint(twin.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(token_ids)
    mask[1, length // 2 :] = 0
    token_ids[mask == 0] = padding

    def read(each: PreTrainedModel) -> Tensor:
        output = copy.deepcopy(cast(nn.Module, each)).cpu().float().eval()(input_ids=token_ids, attention_mask=mask)
        first = next(iter(output.values())) if isinstance(output, dict) else output[0]
        return first[mask == 1] if first.ndim == 3 else first  # what stands at padding is nobody's

    theirs, ours = read(model), read(twin)
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-4, atol=1e-4)
