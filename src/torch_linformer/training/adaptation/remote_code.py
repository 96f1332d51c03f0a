"""Encoders with code of their own, as the models of transformers that this code extends."""

import copy
from typing import Any, cast

import torch
import transformers
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel

from torch_linformer.training.errors import InputError
from torch_linformer.training.pretrained import first_line

OF_OWN_CODE = ("model_type", "auto_map", "architectures")  # of a configuration


def has_own_code(model_or_config: PreTrainedModel | PreTrainedConfig) -> bool:
    """Whether its class is neither of transformers nor of this package."""
    return not _is_known(type(model_or_config))


def _is_known(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in ("transformers", "torch_linformer")


def run_own_code(path: str, config: PreTrainedConfig) -> PreTrainedModel:
    """The model that the code beside a configuration makes of the weights.

    Raises:
        InputError: it cannot, or the weights are not all there.
    """
    architecture = (config.architectures or [""])[0]
    names = {str(reference).rpartition(".")[2]: name for name, reference in getattr(config, "auto_map", {}).items()}
    auto = getattr(transformers, names.get(architecture, "AutoModel"))
    try:
        model, report = auto.from_pretrained(path, config=config, trust_remote_code=True, output_loading_info=True)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: its own code cannot open it: {first_line(error)}") from None
    if report["missing_keys"]:
        raise InputError(f"{path}: the weights lack {min(report['missing_keys'])}; copy the folder again")
    return model


def without_own_code(model: PreTrainedModel, path: str, task: str | None = None) -> PreTrainedModel:
    """The model of transformers that a model's class extends, with its weights: one that gives the same output.

    Raises:
        InputError: it extends none, has other weights, or computes something else.
    """
    if task == "embed":
        model = cast(PreTrainedModel, model.base_model)
    known: Any = next(filter(_is_known, type(model).__mro__))
    name = type(model).__name__
    if known.__name__.endswith("PreTrainedModel"):
        raise InputError(
            f"{path}: {name} extends no model of transformers, only {known.__name__}; --task embed adapts the encoder "
            "below its head, where that is one"
        )
    fields = {name: value for name, value in model.config.to_dict().items() if name not in OF_OWN_CODE}
    twin: PreTrainedModel = known(known.config_class.from_dict(fields))
    unexpected = (
        cast(nn.Module, twin).load_state_dict(cast(nn.Module, model).state_dict(), strict=False).unexpected_keys
    )
    if unexpected:
        raise InputError(f"{path}: {name} has {unexpected[0]}, which {known.__name__} has not; it cannot be adapted")
    try:
        same = _same_output(model, twin)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: {name} cannot read a text: {first_line(error)}") from None
    if not same:
        raise InputError(f"{path}: {name} computes something else than {known.__name__}, and cannot be adapted")
    return twin


@torch.no_grad()
def _same_output(model: PreTrainedModel, twin: PreTrainedModel) -> bool:
    """Whether both give the same for two texts of random tokens, one of them padded."""
    length = min(12, twin.config.max_position_embeddings // 2)  # RoBERTa has fewer positions than rows for them
    token_ids = torch.randint(twin.config.vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(token_ids)
    mask[1, length // 2 :] = 0
    copies = (copy.deepcopy(cast(nn.Module, each)).cpu().float().eval() for each in (model, twin))
    theirs, ours = (each(input_ids=token_ids, attention_mask=mask)[0] for each in copies)
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-4, atol=1e-4)
