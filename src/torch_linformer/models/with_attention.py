"""The same encoder with other attention."""

from typing import Any, TypeVar

import torch
from torch import Tensor

from torch_linformer.models.configuration import LinformerConfig, with_changes
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel
from torch_linformer.nn.attention.slot_context import SlotTerms
from torch_linformer.nn.maps import SequenceMap
from torch_linformer.nn.projection import SequenceProjection

Model = TypeVar("Model", bound=LinformerPreTrainedModel)

POSITIONS = "embeddings.position_embeddings.weight"


def with_attention(model: Model, **changes: Any) -> Model:
    """A copy of an encoder with its head, in which only the attention differs.

    Learned maps to slots begin as means of segments of ⌈max_len / k⌉ tokens, and K is lowered to the segments there
    are; those chosen by the input stay as they are where K does. ``k=0`` takes the slots out.
    Positions beyond those of the model repeat them.

    Args:
        model: an encoder whose positions are learned, or which has none.
        changes: fields of its configuration: ``attention``, ``k``, ``sharing``, ``projection``, ``window``,
            ``max_position_embeddings``, and dropouts.

    Raises:
        ValueError: a causal model, or a configuration that no model can be built from.
    """
    if model.config.causal:
        raise ValueError("a causal model has no slots of a whole sequence: only encoders can change their attention")
    config = LinformerConfig(**with_changes(model.config.to_diff_dict(), changes))
    if config.attention == "linformer" and config.projection != "dynamic":
        config.k = [segments(config.max_position_embeddings, k) for k in _each(config)]
        if len(set(config.k)) == 1:
            config.k = config.k[0]
        config.length_scaling = config.projection != "linear"
    copy: Any = type(model)(config)
    copy.to(device=model.device, dtype=model.dtype)
    maps = {name: module for name, module in copy.named_modules() if isinstance(module, SequenceMap)}
    slots = {*maps, *(name for name, module in copy.named_modules() if isinstance(module, SlotTerms))}
    weights = model.state_dict()
    with torch.no_grad():
        for name, tensor in copy.state_dict().items():
            is_new = name.rpartition(".")[0] in slots
            if name.endswith(POSITIONS):
                tensor.copy_(weights[name][torch.arange(len(tensor)) % len(weights[name])])
            elif not is_new or (name in weights and weights[name].shape == tensor.shape):
                tensor.copy_(weights[name])  # others are new: they have their first values
        for module in maps.values():
            if isinstance(module, SequenceProjection) and module.projection == "linear" and module.weight is not None:
                module.weight.copy_(segment_means(module.max_len, module.window))
    trained: Model = copy.train(model.training)
    return trained


def segments(max_len: int, k: int) -> int:
    """Segments of ⌈max_len / k⌉ tokens that there are in ``max_len`` tokens, k at most."""
    return k and -(-max_len // -(-max_len // k))


def _each(config: LinformerConfig) -> list[int]:
    return [config.k] * config.num_hidden_layers if isinstance(config.k, int) else config.k


def segment_means(max_len: int, window: int) -> Tensor:
    """E ``(max_len, ⌈max_len / window⌉)`` whose slot j is the mean of segment j."""
    segment = torch.arange(max_len) // window
    members = torch.nn.functional.one_hot(segment).double()
    return members / members.sum(dim=0)
