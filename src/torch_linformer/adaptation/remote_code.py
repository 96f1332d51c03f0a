"""Encoders with code of their own, opened as the models of transformers that this code extends."""

import copy
from collections.abc import Collection
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedConfig, PreTrainedModel

from torch_linformer.errors import InputError, first_line
from torch_linformer.models.base_configuration import BaseConfig
from torch_linformer.opening.load import UNUSED, longest_input

OF_OWN_CODE = ("model_type", "auto_map", "architectures")  # of a configuration
KEPT_HEADS = ("ForMaskedLM", "ForPreTraining", "ForSequenceClassification")  # ends of the names of their classes
POSITIONS = "embeddings.position_ids"  # 0, 1, 2, …, which older versions of transformers saved


def is_own_code(cls: type) -> bool:
    """Whether a class belongs neither to transformers nor to this package."""
    return cls.__module__.partition(".")[0] not in ("transformers", "torch_linformer")


def names_own_code(config: PreTrainedConfig) -> bool:
    """Whether a configuration names code in its folder that opens the model."""
    auto_map = {} if isinstance(config, BaseConfig) else getattr(config, "auto_map", None) or {}
    return is_own_code(type(config)) or any(name.startswith("AutoModel") for name in auto_map)


def run_own_code(path: str, config: PreTrainedConfig, task: str | None = None) -> PreTrainedModel:
    """Open a model by the code in its folder, and return what :func:`without_own_code` makes of it.

    Raises:
        InputError: the code cannot open it, or :func:`without_own_code` refuses it.
    """
    architecture = (config.architectures or [""])[0]
    names = {str(reference).rpartition(".")[2]: name for name, reference in getattr(config, "auto_map", {}).items()}
    auto: Any = getattr(transformers, names.get(architecture, "AutoModel"), AutoModel)
    try:
        model, report = auto.from_pretrained(path, config=config, trust_remote_code=True, output_loading_info=True)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: its own code cannot open it: {first_line(error)}") from None
    return without_own_code(model, path, task, missing=report["missing_keys"])


def without_own_code(
    model: PreTrainedModel, path: str, task: str | None = None, missing: Collection[str] = ()
) -> PreTrainedModel:
    """The model of transformers that the class of ``model`` extends, with its weights, checked to give the same output.

    Args:
        model: of any class.
        path: its name, for messages.
        task: a name of ``OBJECTIVES``; ``embed``, or None without a head that is kept, takes the encoder below it.
        missing: names of tensors that its file lacks.

    Raises:
        InputError: it extends no model, has other weights or lacks some, or computes something else.
    """
    known = _extended(model)
    below = task == "embed" or (task is None and not known.__name__.endswith(KEPT_HEADS))
    part = cast(PreTrainedModel, model.base_model) if below else model
    known, name = _extended(part), type(part).__name__
    if known.__name__.endswith("PreTrainedModel"):
        remedy = "" if below else "; --task embed adapts the encoder below its head"
        raise InputError(f"{path}: {name} extends no model of transformers, only {known.__name__}{remedy}")
    prefix = "" if part is model else f"{model.base_model_prefix}."
    lacking = sorted(name.removeprefix(prefix) for name in missing if name.startswith(prefix))
    if part.base_model is part:
        lacking = [name for name in lacking if not name.startswith(UNUSED)]
    if lacking:
        raise InputError(f"{path}: the weights lack {lacking[0]}, which its own code wants; copy the folder again")
    fields = {name: value for name, value in part.config.to_dict().items() if name not in OF_OWN_CODE}
    try:
        twin: PreTrainedModel = known(known.config_class.from_dict(fields))
    except Exception as error:  # such as sizes that do not fit one another
        raise InputError(f"{path}: its configuration makes no {known.__name__}: {first_line(error)}") from None
    theirs, ours = (cast(nn.Module, side).state_dict() for side in (part, twin))
    others = [name for name, tensor in theirs.items() if name not in ours or ours[name].shape != tensor.shape]
    others = [name for name in others if not name.endswith(POSITIONS)]
    if others:
        raise InputError(f"{path}: {name} cannot be adapted: {known.__name__} has no counterpart of its {others[0]}")
    cast(nn.Module, twin).load_state_dict(theirs, strict=False)
    try:
        same = _same_output(part, twin)
    except Exception as error:  # the code may raise anything
        raise InputError(f"{path}: {name} cannot read a text: {first_line(error)}") from None
    if not same:
        raise InputError(f"{path}: {name} computes something else than {known.__name__}, and cannot be adapted")
    return twin


def _extended(model: PreTrainedModel) -> Any:
    """The nearest base class of a model in transformers or in this package."""
    classes = type(model).__mro__
    return next(cls for cls in classes if issubclass(cls, PreTrainedModel) and not is_own_code(cls))


@torch.no_grad()
def _same_output(model: PreTrainedModel, twin: PreTrainedModel) -> bool:
    """Whether both give the same for two texts of random tokens, one of the greatest length and one half as long."""
    padding, vocab_size = max(twin.config.pad_token_id or 0, 0), twin.config.vocab_size
    length = cast(int, longest_input(twin))
    token_ids = torch.randint(vocab_size, (2, length), generator=torch.Generator().manual_seed(0))
    token_ids[token_ids == padding] = (padding + 1) % vocab_size  # no real token is padding
    mask = torch.ones_like(token_ids)
    mask[1, length // 2 :] = 0
    token_ids[mask == 0] = padding

    def read(side: PreTrainedModel) -> Tensor:
        output = copy.deepcopy(cast(nn.Module, side)).cpu().float().eval()(input_ids=token_ids, attention_mask=mask)
        first: Tensor = next(iter(output.values())) if isinstance(output, dict) else output[0]
        return first[mask == 1] if first.ndim == 3 else first  # padding is not compared

    theirs, ours = read(model), read(twin)
    return theirs.shape == ours.shape and torch.allclose(theirs, ours, rtol=1e-4, atol=1e-4)
