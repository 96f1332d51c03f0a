"""A model in pieces: of every weight, its gradient and its optimizer state each process keeps a part (FSDP2)."""

import copy
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer
from transformers import PretrainedConfig, PreTrainedModel
from transformers.utils.output_capturing import _CAN_RECORD_REGISTRY

from torch_linformer.encoders.encoder_context import EncoderContext


@torch.no_grad()
def shard(model: PreTrainedModel, device: torch.device) -> nn.Module:
    """A copy of the main process's ``model`` on ``device``, in pieces; the model itself is left whole on the CPU.

    A layer is a unit: its weights are whole only while it computes. What several layers share, embeddings and heads are
    a unit of their own, that of the model.
    """
    # Nothing here writes into what a layer returns.
    warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view tensor", UserWarning)
    for tensor in (*model.parameters(), *model.buffers()):
        dist.broadcast(tensor, src=0)
    pieces = copy.deepcopy(model.cpu())
    for module in pieces.modules():
        if isinstance(config := getattr(module, "config", None), PretrainedConfig):
            config.use_cache = False  # which a decoder fills before its layers run: their weights are in pieces then
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for context in [module for module in pieces.modules() if isinstance(module, EncoderContext)]:
        context.register_forward_hook(_use_all_weights)
    for layer in layers_of(pieces):
        fully_shard(layer, mesh=mesh)
    fully_shard(pieces, mesh=mesh)
    # Which makes a class of its own, and by its class transformers knows what `output_hidden_states` records.
    dict.__setitem__(_CAN_RECORD_REGISTRY, str(type(pieces)), model._can_record_outputs)
    return pieces


def layers_of(model: nn.Module) -> list[nn.Module]:
    """The layers of a model: what its outermost lists of modules hold.

    The names that transformers does not split have embeddings among them, whose weights a head may share.
    """
    if isinstance(model, nn.ModuleList):
        return list(model)
    return [layer for child in model.children() for layer in layers_of(child)]


def _use_all_weights(context: nn.Module, inputs: Any, attended: Any) -> Any:
    """Give a gradient, if only zeros, to slots that no row of this process needed, but perhaps those of others."""
    # Gradients are put together in one piece, which must be equally long in all processes.
    output, weights = attended
    return output + 0.0 * sum(weight.sum() for weight in context.parameters()), weights


@torch.no_grad()
def gather(pieces: nn.Module, whole: nn.Module) -> None:
    """Copy the weights of what :func:`shard` made into the model that it was made of; every process takes part."""
    for piece, target in zip(pieces.parameters(), whole.parameters(), strict=True):
        target.copy_(of_all(piece))
    for own, buffer in zip(pieces.buffers(), whole.buffers(), strict=True):
        buffer.copy_(own)


def of_all(piece: Tensor) -> Tensor:
    """The whole tensor that processes have in pieces."""
    return piece.full_tensor() if isinstance(piece, DTensor) else piece


def whole_state(state: dict[str, Any]) -> dict[str, Any]:
    """The state of an optimizer of pieces as that of an optimizer of whole weights, on the CPU."""
    states = {
        number: {name: of_all(x).cpu() if isinstance(x, Tensor) else x for name, x in moments.items()}
        for number, moments in state["state"].items()
    }
    return {**state, "state": states}


def share_state(optimizer: Optimizer, state: dict[str, Any]) -> dict[str, Any]:
    """The opposite of :func:`whole_state`: a hook of an optimizer of pieces for what it is about to load."""
    weights: list[Any] = [weight for group in optimizer.param_groups for weight in group["params"]]
    states = {number: dict(moments) for number, moments in state["state"].items()}
    for number, moments in states.items():
        weight = weights[number]
        for name, value in moments.items():
            if isinstance(value, Tensor) and value.shape == weight.shape:  # and no count of steps
                moments[name] = distribute_tensor(value.to(weight.device), weight.device_mesh, weight.placements)
    return {**state, "state": states}
