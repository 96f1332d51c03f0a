"""Models whose processes each hold a piece of every row."""

import inspect
from functools import partial
from typing import Any, TypeVar, cast

import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from torch_linformer.distributed.sequence_piece import SequencePiece, group_of
from torch_linformer.functional.padding import Padding

Model = TypeVar("Model", bound=nn.Module)
OF_TOKENS = ("input_ids", "token_type_ids", "inputs_embeds")  # arguments with a number, or a vector, a token

NO_TOKEN = -1  # at padding, whatever the vocabulary: pad_token_id may be None, or count as a word


def context_parallel(model: Model, mesh: DeviceMesh | dist.ProcessGroup | None) -> Model:
    """Let each rank of ``mesh`` compute a piece of every row that ``model`` is given.

    The model is called as before, with the same whole rows in every rank; ids are small, and nothing else is ever held
    whole. Losses and the logits of rows are the same in every rank; hidden states and the logits of tokens are those of
    the rank's own :class:`SequencePiece`. Gradients are means over the ranks: wrap the model in
    ``DistributedDataParallel`` or ``fully_shard`` over them. In training ranks should draw different dropout: seed each
    by its number.

    Args:
        model: ``LinformerModel``, or a head for masked words, tokens, or whole rows, on it or on a linear encoder of
            transformers.
        mesh: the ranks: a mesh of one dimension (``mesh["cp"]``) or a process group.

    Returns:
        The same model.

    Raises:
        ValueError: for a model whose head needs whole rows, one with full attention, or one that is parallel already.

    Example:
        >>> import torch
        >>> import torch.distributed as dist
        >>> from torch_linformer import LinformerConfig, LinformerForMaskedLM
        >>> from torch_linformer.distributed import context_parallel
        >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)  # torchrun: no arguments
        >>> config = LinformerConfig(vocab_size=50, hidden_size=32, num_attention_heads=4, num_hidden_layers=2)
        >>> model = context_parallel(LinformerForMaskedLM(config), dist.group.WORLD)
        >>> ids = torch.randint(5, 50, (2, 400))
        >>> model(ids, labels=ids).loss.backward()
        >>> dist.destroy_process_group()
    """
    check_takes_pieces(model)
    name = type(model).__name__
    if any(getattr(hook, "func", None) is _cut for hook in model._forward_pre_hooks.values()):
        raise ValueError(f"{name} is computed in pieces already")
    model.register_forward_pre_hook(partial(_cut, group=group_of(mesh)), with_kwargs=True)
    return model


def check_takes_pieces(model: nn.Module) -> None:
    """Raise ``ValueError`` for a model that cannot compute a piece of the rows."""
    name, config = type(model).__name__, cast(Any, model.config)
    if not hasattr(config, "attention"):  # a class of transformers
        raise ValueError(
            f"{name} cannot be computed in pieces: only LinformerModel and models with its heads can; give each "
            "process rows of its own, and spread the weights by torch.distributed.fsdp.fully_shard"
        )
    if not getattr(model, "takes_pieces", False):
        raise ValueError(f"{name} cannot be computed in pieces: its head, or its decoder, needs whole rows")
    if config.attention == "full":
        raise ValueError(f"{name} with full attention cannot be computed in pieces: take attention='linformer'")
    if not getattr(cast(Any, model).base_model, "takes_pieces", False):
        raise ValueError(
            f"{name} cannot be computed in pieces: its encoder counts positions itself, or has an attention of its own"
        )


def arguments_of_piece(
    model: nn.Module, arguments: dict[str, Any], mesh: DeviceMesh | dist.ProcessGroup | None
) -> dict[str, Any]:
    """The arguments of this rank's piece, of those that ``forward`` is given for whole rows.

    Raises:
        ValueError: for ``position_ids``.
    """
    mask, rows, ids = arguments.get("attention_mask"), arguments.get("inputs_embeds"), arguments.get("input_ids")
    rows = ids if rows is None else rows
    if rows is None or isinstance(mask, Padding):  # refused by the model, or cut already
        return arguments
    if arguments.get("position_ids") is not None:
        raise ValueError(
            "position_ids cannot be given with context_parallel: it counts the real tokens of each row itself, and "
            "each row holds one document"
        )
    padding, whole = None if mask is None else mask == 0, dict[str, Any]()
    if getattr(model, "lexical", None) is not None and arguments.get("whole_ids") is None and ids is not None:
        whole["whole_ids"] = ids if padding is None else ids.masked_fill(padding, NO_TOKEN)
    piece = SequencePiece(mesh, *rows.shape[:2], key_padding_mask=padding, device=rows.device)
    of_tokens = [*OF_TOKENS, *(["labels"] if getattr(model, "scores_tokens", False) else [])]
    cut = {name: piece.cut(arguments[name]) for name in of_tokens if arguments.get(name) is not None}
    return {**arguments, **whole, **cut, "attention_mask": piece}


def _cut(
    model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], *, group: dist.ProcessGroup
) -> tuple[tuple[()], dict[str, Any]]:
    arguments = dict(inspect.signature(model.forward).bind(*args, **kwargs).arguments)
    arguments |= arguments.pop("kwargs", {})
    return (), arguments_of_piece(model, arguments, group)
