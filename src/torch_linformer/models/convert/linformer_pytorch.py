"""Models of tatp22/linformer-pytorch (PyPI ``linformer-pytorch``)."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.models.backbone import LinformerModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    NO_VOCABULARY,
    PLAIN,
    State,
    add_zero_biases,
    build,
    count,
    expanded,
    head_dim_field,
    options_in,
    pop_projections,
    projections,
    renamed,
    report_taken,
    sharing_of,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel

# Entries 2i and 2i + 1 of `seq` are attention and feed-forward of layer i.
HEAD = {  # the tensors of all heads are stacked
    "fn.to_q.{head}.weight": "q_proj.weight",
    "fn.to_k.{head}.weight": "k_proj.weight",
    "fn.to_v.{head}.weight": "v_proj.weight",
    "fn.heads.{head}.E.weight": "context.proj_k.weight",
    "fn.heads.{head}.E.bias": "context.slot_terms.bias_k",
    "fn.heads.{head}.F.weight": "context.proj_v.weight",
    "fn.heads.{head}.F.bias": "context.slot_terms.bias_v",
}
ATTENTION = {"norm.*": "norm1.*", "fn.w_o.*": "self_attn.out_proj.*"}
FACTORED = {"norm.*": "norm1.*", "fn.w_o_1.*": "self_attn.out_proj.*", "fn.w_o_2.*": "w_o_2.*"}
FEED_FORWARD = {"fn.w_1.*": "linear1.*", "fn.w_2.*": "linear2.*", "norm.*": "norm2.*"}
EMBEDDINGS = {
    "to_token_emb.weight": "embeddings.word_embeddings.weight",
    "pos_emb.inv_freq": "embeddings.position_embeddings.weight",
}
LOGITS = {"to_logits.*": "lm_head.decoder.*"}
# Options that weights do not tell, and why they cannot be expressed.
UNTOLD = {
    "decoder_mode": "its layers read a memory, as only a decoder of another kind does here",
    "causal": "its mask on slots lets every position see the future",
    "full_attention": "its attention uses no projections, so those among its weights are not trained",
}
# With emb_dim: linear maps around the layers, multiplied into the embeddings and the logits.
PROJECTED = {"linformer.project_in.*": "project_in.*", "linformer.project_out.*": "project_out.*"}


def from_linformer_pytorch(
    source: Mapping[str, Any] | nn.Module, *, activation: str | None = None
) -> LinformerPreTrainedModel:
    """A ``Linformer`` or ``LinformerLM`` of the package ``linformer-pytorch`` 0.19.

    Outputs are the original's for inputs of its ``input_size``, the only length it takes. The bias of its
    projections becomes a slot bias, the factored output projection (``w_o_intermediate_dim``) one matrix, the linear
    maps that ``emb_dim`` adds around the layers part of the embeddings and of the head, the fixed positions learned.

    Args:
        source: a state dict of either class, a checkpoint that holds one, or the module itself; in a ``Padder`` or
            not. Weights do not tell ``causal``, ``full_attention``, ``decoder_mode`` or ``activation``: the module
            does, and a checkpoint with its options ("args", "config", "hyper_parameters"), so that what cannot be
            expressed is refused. With a state dict alone they are taken to be off, and a log line says so.
        activation: ``gelu`` or ``relu``; by default the module's or the checkpoint's, else ``gelu``.

    Returns:
        A ``LinformerForMaskedLM`` for a language model; a ``LinformerModel`` for one without logits (``return_emb``),
        and for a bare ``Linformer``, which is to be called with ``inputs_embeds``.

    Raises:
        ValueError: for an option that cannot be expressed, by its name, or names or shapes that do not fit.
    """
    options: Mapping[str, Any] = dict.fromkeys(UNTOLD, False)
    if isinstance(source, nn.Module):
        _refuse_module(source)
        functions: list[Any] = [part.activation for part in source.modules() if hasattr(part, "activation")]
        activation = activation or next((function.__name__ for function in functions), None)
        source = source.state_dict()
    else:
        options = options_in(source)
        _refuse_options(options)
        activation = activation or options.get("activation")
    state = tensors_in(source)
    language_model, logits = "to_token_emb.weight" in state, "to_logits.weight" in state
    projected = any(name.startswith("linformer.project_") for name in state)
    stem = ("linformer.fn.seq." if projected else "linformer.seq.") if language_model else "seq."
    _refuse_state(state, stem)
    layers = count(state, rf"{stem}(\d+)\.") // 2 or 1
    heads = count(state, rf"{stem}0\.fn\.to_q\.(\d+)\.")
    backbone = "linformer." if logits else ""
    names = _layer_names(state, stem, backbone, layers, heads)
    if language_model:
        names |= expanded(EMBEDDINGS, ours=backbone)
        names |= expanded((LOGITS if logits else {}) | (PROJECTED if projected else {}))
    tensors = renamed("linformer-pytorch", state, names)
    report_taken([name for name in UNTOLD if name not in options])

    for layer in range(layers):
        _convert_layer(tensors, f"{backbone}encoder.layers.{layer}.", heads)
    keys, values = pop_projections(tensors, backbone, layers)
    sharing = "none"
    if all((matrices == matrices[0]).all() for matrices in keys + values):  # every head has the same
        keys, values = [matrices[0] for matrices in keys], [matrices[0] for matrices in values]
        sharing = sharing_of(keys, values)
    tensors |= projections(sharing, keys, values, backbone)
    fields = _fields(tensors, backbone, heads, keys) | {"hidden_act": activation or "gelu", "sharing": sharing}
    if not language_model:
        tensors["embeddings.word_embeddings.weight"] = torch.zeros(1, fields["hidden_size"])
        return build(LinformerModel, LinformerConfig(**{**fields, **NO_VOCABULARY}), tensors)
    _convert_vocabulary(tensors, backbone, fields["max_position_embeddings"])
    config = LinformerConfig(**fields, vocab_size=len(state["to_token_emb.weight"]), lm_head_transform=False)
    return build(LinformerForMaskedLM if logits else LinformerModel, config, tensors)


def _refuse(option: str, why: str) -> None:
    raise ValueError(f"{option} cannot be expressed: {why}")


def _refuse_module(module: nn.Module) -> None:
    """Refuse the options that a module has and its weights do not tell."""
    for part in module.modules():
        told = {name: getattr(part, name, False) for name in UNTOLD}
        _refuse_options({**told, "causal": getattr(part, "causal_mask", None) is not None})


def _refuse_options(options: Mapping[str, Any]) -> None:
    """Refuse those of :data:`UNTOLD` that are on."""
    for name, why in UNTOLD.items():
        if options.get(name):
            _refuse(f"{name}=True", why)


def _refuse_state(state: State, stem: str) -> None:
    """Refuse the options that the weights tell."""
    if any(name.startswith(("encoder.", "decoder.")) for name in state):
        _refuse("LinformerEncDec", "the attention of its decoder differs from the one here")
    if any(".resample." in name for name in state):
        _refuse("ff_intermediate", "here all layers have the same width")
    if any(name.endswith(".E.weight") and tensor.dim() == 3 for name, tensor in state.items()):
        _refuse("method='convolution'", "it mixes channels as well as positions")
    if f"{stem}0.fn.to_q.0.weight" not in state:
        return  # another kind of model: check_names will list its names
    if not any(name.endswith(".E.weight") for name in state):
        _refuse("method='no_params'", "its projections are not among its weights, so they are lost")
    if not any(name.endswith(".fn.w_1.weight") for name in state):
        _refuse("include_ff=False", "here every layer has a feed-forward network")
    if any(name.startswith("linformer.project_out") for name in state) and "to_logits.weight" not in state:
        _refuse("return_emb=True with emb_dim", "here the hidden states are as wide as the layers")


def _layer_names(state: State, stem: str, backbone: str, layers: int, heads: int) -> dict[str, str]:
    """Every name that the tensors of the layers must have, to ours; those of a head end in its number."""
    names: dict[str, str] = {}
    attention = FACTORED if f"{stem}0.fn.w_o_1.weight" in state else ATTENTION
    for layer in range(layers):
        theirs, ours = f"{stem}{2 * layer}.", f"{backbone}encoder.layers.{layer}."
        names |= expanded(attention, theirs, ours) | expanded(FEED_FORWARD, f"{stem}{2 * layer + 1}.", ours)
        for head in range(heads):
            own = {their_name.format(head=head): f"{our_name}.{head}" for their_name, our_name in HEAD.items()}
            names |= expanded(own, theirs, f"{ours}self_attn.")
    return names


def _convert_layer(tensors: dict[str, Tensor], layer: str, heads: int) -> None:
    """Put the heads of a renamed layer together, and the factors of its output projection."""
    attention = f"{layer}self_attn."
    for name in HEAD.values():
        tensors[attention + name] = torch.stack([tensors.pop(f"{attention}{name}.{head}") for head in range(heads)])
    head_dim = tensors[f"{attention}q_proj.weight"].shape[1]
    for name in (f"{attention}context.slot_terms.bias_k", f"{attention}context.slot_terms.bias_v"):
        # There it is one number a slot, for all channels.
        tensors[name] = tensors[name].unsqueeze(-1).expand(-1, -1, head_dim)
    for name in ("q_proj", "k_proj", "v_proj"):
        tensors[f"{attention}{name}.weight"] = tensors[f"{attention}{name}.weight"].flatten(0, 1)
    add_zero_biases(tensors, attention)
    if f"{layer}w_o_2.weight" in tensors:
        outer, outer_bias = tensors.pop(f"{layer}w_o_2.weight"), tensors.pop(f"{layer}w_o_2.bias")
        weight, bias = f"{attention}out_proj.weight", f"{attention}out_proj.bias"
        tensors[weight], tensors[bias] = outer @ tensors[weight], outer @ tensors[bias] + outer_bias


def _convert_vocabulary(tensors: dict[str, Tensor], backbone: str, max_len: int) -> None:
    """Make a table of the positions' frequencies, and multiply the linear maps around the layers into both ends."""
    words, positions = (f"{backbone}{name}" for name in EMBEDDINGS.values())
    angles = torch.arange(max_len, dtype=tensors[positions].dtype).outer(tensors[positions])
    tensors[positions] = torch.cat([angles.sin(), angles.cos()], dim=-1).to(tensors[words].dtype)
    if "project_in.weight" not in tensors:
        return
    before, after = tensors.pop("project_in.weight"), tensors.pop("project_out.weight")
    tensors[words] = tensors[words] @ before.mT
    tensors[positions] = tensors[positions] @ before.mT + tensors.pop("project_in.bias")
    weight = tensors["lm_head.decoder.weight"]
    tensors["lm_head.decoder.weight"] = weight @ after
    tensors["lm_head.decoder.bias"] = tensors["lm_head.decoder.bias"] + weight @ tensors.pop("project_out.bias")


def _fields(tensors: State, backbone: str, heads: int, keys: list[Tensor]) -> dict[str, Any]:
    """The configuration's fields that the shapes of the tensors tell."""
    query_width, hidden_size = tensors[f"{backbone}encoder.layers.0.self_attn.q_proj.weight"].shape
    ks = [matrix.shape[-2] for matrix in keys]
    return {
        **PLAIN,
        "hidden_size": hidden_size,
        "num_hidden_layers": len(keys),
        "num_attention_heads": heads,
        "intermediate_size": len(tensors[f"{backbone}encoder.layers.0.linear1.weight"]),
        "max_position_embeddings": keys[0].shape[-1],
        "k": ks[0] if len(set(ks)) == 1 else ks,
        "slot_bias": True,
        **head_dim_field(hidden_size, heads, query_width // heads),
    }
