"""Models of tatp22/linformer-pytorch (PyPI ``linformer-pytorch``)."""

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.convert.state import (
    NO_VOCABULARY,
    PLAIN,
    build,
    check_names,
    count,
    fill,
    head_dim_field,
    tensors_in,
)
from torch_linformer.models.heads import LinformerForMaskedLM

# Entries 2i and 2i + 1 of `seq` are attention and feed-forward of layer i.
HEAD = {  # the heads' tensors are put together, in this order
    "fn.to_q.{head}.weight": "self_attn.q_proj.weight",
    "fn.to_k.{head}.weight": "self_attn.k_proj.weight",
    "fn.to_v.{head}.weight": "self_attn.v_proj.weight",
    "fn.heads.{head}.E.weight": "self_attn.proj_k.weight",
    "fn.heads.{head}.E.bias": "self_attn.slot_bias_k",
    "fn.heads.{head}.F.weight": "self_attn.proj_v.weight",
    "fn.heads.{head}.F.bias": "self_attn.slot_bias_v",
}
ATTENTION = {"norm.weight": "norm1.weight", "norm.bias": "norm1.bias"}
OUTPUT = {"fn.w_o.weight": "self_attn.out_proj.weight", "fn.w_o.bias": "self_attn.out_proj.bias"}
FACTORED_OUTPUT = {  # w_o_2 after w_o_1 is one linear map
    "fn.w_o_1.weight": "self_attn.out_proj.weight",
    "fn.w_o_1.bias": "self_attn.out_proj.bias",
    "fn.w_o_2.weight": "self_attn.out_proj.weight",
    "fn.w_o_2.bias": "self_attn.out_proj.bias",
}
FEED_FORWARD = {
    "fn.w_1.weight": "linear1.weight",
    "fn.w_1.bias": "linear1.bias",
    "fn.w_2.weight": "linear2.weight",
    "fn.w_2.bias": "linear2.bias",
    "norm.weight": "norm2.weight",
    "norm.bias": "norm2.bias",
}
LANGUAGE_MODEL = {
    "to_token_emb.weight": "linformer.embeddings.word_embeddings.weight",
    "pos_emb.inv_freq": "linformer.embeddings.position_embeddings.weight",
}
LOGITS = {"to_logits.weight": "lm_head.decoder.weight", "to_logits.bias": "lm_head.decoder.bias"}
PROJECTED = {  # with emb_dim: linear maps beside the embeddings and the logits, which take them in
    "linformer.project_in.weight": "linformer.embeddings.word_embeddings.weight",
    "linformer.project_in.bias": "linformer.embeddings.position_embeddings.weight",
    "linformer.project_out.weight": "lm_head.decoder.weight",
    "linformer.project_out.bias": "lm_head.decoder.bias",
}


def from_linformer_pytorch(
    source: Mapping[str, Any] | nn.Module, *, activation: str | None = None
) -> LinformerPreTrainedModel:
    """A ``Linformer`` or ``LinformerLM`` of the package ``linformer-pytorch`` 0.19.

    Outputs are the original's for inputs of its ``input_size``, the only length it takes. The bias of its
    projections becomes a slot bias, the factored output projection (``w_o_intermediate_dim``) one matrix, the maps
    that ``emb_dim`` puts beside the layers part of the embeddings and of the head, the fixed positions learned ones.

    Args:
        source: a state dict of either class, a checkpoint that holds one, or the module itself. Weights do not tell
            ``causal``, ``full_attention``, ``decoder_mode`` or ``activation``: the module does, so that what cannot
            be expressed is refused. With a state dict they are taken to be off.
        activation: ``gelu`` or ``relu``; by default the module's, or with a state dict ``gelu``.

    Returns:
        A ``LinformerForMaskedLM`` for a language model; a ``LinformerModel`` for one without logits (``return_emb``),
        and for a bare ``Linformer``, which is to be read with ``inputs_embeds``.

    Raises:
        ValueError: for an option that cannot be expressed, by its name; names or shapes of something else.
    """
    if isinstance(source, nn.Module):
        _refuse_module(source)
        activation = activation or _activation_of(source)
        source = source.state_dict()
    state = tensors_in(source)
    language_model = "to_token_emb.weight" in state
    projected = any(name.startswith("linformer.project_") for name in state)
    stem = ("linformer.fn.seq." if projected else "linformer.seq.") if language_model else "seq."
    _refuse_state(state, stem)
    layers = count(state, rf"{stem}(\d+)\.") // 2 or 1
    heads = count(state, rf"{stem}0\.fn\.to_q\.(\d+)\.")
    check_names("linformer-pytorch", state, _names(state, stem, layers, heads, language_model, projected))

    stacks = [_stacked(state, f"{stem}{2 * layer}.", heads) for layer in range(layers)]
    sharing = _sharing(stacks)
    tensors = _layers(state, stem, stacks, sharing)
    fields = _dimensions(state, stem, stacks) | {"hidden_act": activation or "gelu", "sharing": sharing}
    fields |= PLAIN
    if not language_model:
        config = LinformerConfig(**{**fields, **NO_VOCABULARY})
        tensors["embeddings.word_embeddings.weight"] = torch.zeros(1, config.hidden_size)
        return build(LinformerModel, config, tensors)
    embeddings, logits = _language_model(state, fields["max_position_embeddings"], projected)
    config = LinformerConfig(**fields, vocab_size=len(state["to_token_emb.weight"]), lm_head_transform=False)
    if not logits:
        return build(LinformerModel, config, tensors | embeddings)
    backbone = {f"linformer.{name}": tensor for name, tensor in (tensors | embeddings).items()}
    return build(LinformerForMaskedLM, config, backbone | logits)


def _refuse(option: str, why: str) -> None:
    raise ValueError(f"{option} cannot be expressed: {why}")


def _refuse_module(module: nn.Module) -> None:
    """Refuse the options that a module knows and its weights do not tell."""
    for part in module.modules():
        if getattr(part, "decoder_mode", False):
            _refuse("decoder_mode=True", "its layers read a memory, as a decoder of another kind does here")
        if getattr(part, "causal_mask", None) is not None:
            _refuse("causal=True", "its mask on slots lets every position see the future")
        if getattr(part, "full_attention", False):
            _refuse("full_attention=True", "its attention has no projections to import")


def _activation_of(module: nn.Module) -> str | None:
    functions: Iterator[Any] = (part.activation for part in module.modules() if hasattr(part, "activation"))
    return next((function.__name__ for function in functions), None)


def _refuse_state(state: Mapping[str, Tensor], stem: str) -> None:
    """Refuse the options that the weights tell."""
    if any(name.startswith(("encoder.", "decoder.")) for name in state):
        _refuse("LinformerEncDec", "the attention of its decoder is another one here")
    if any(".resample." in name for name in state):
        _refuse("ff_intermediate", "layers of different widths do not stack here")
    if any(name.endswith(".E.weight") and tensor.dim() == 3 for name, tensor in state.items()):
        _refuse("method='convolution'", "it mixes channels as well as positions")
    if f"{stem}0.fn.to_q.0.weight" not in state:
        return  # something else, whose names will be listed
    if not any(name.endswith(".E.weight") for name in state):
        _refuse("method='no_params'", "its projections are not among its weights, so they are lost")
    if not any(name.endswith(".fn.w_1.weight") for name in state):
        _refuse("include_ff=False", "every layer has a feed-forward here")
    if any(name.startswith("linformer.project_out") for name in state) and "to_logits.weight" not in state:
        _refuse("return_emb=True with emb_dim", "the hidden states here are as wide as the layers")


def _names(
    state: Mapping[str, Tensor], stem: str, layers: int, heads: int, language_model: bool, projected: bool
) -> set[str]:
    """Every name the model's tensors must have."""
    names: set[str] = set()
    if language_model:
        names |= {*LANGUAGE_MODEL, *(LOGITS if "to_logits.weight" in state else ()), *(PROJECTED if projected else ())}
    output = FACTORED_OUTPUT if f"{stem}0.fn.w_o_1.weight" in state else OUTPUT
    for layer in range(layers):
        attention, feed_forward = f"{stem}{2 * layer}.", f"{stem}{2 * layer + 1}."
        names |= {*fill(ATTENTION | output, attention), *fill(FEED_FORWARD, feed_forward)}
        for head in range(heads):
            names |= set(fill(HEAD, attention, head=head))
    return names


def _stacked(state: Mapping[str, Tensor], attention: str, heads: int) -> dict[str, Tensor]:
    """The tensors of all heads of a layer, by our names: a leading dimension counts the heads."""
    return {
        ours: torch.stack([state[attention + theirs.format(head=head)] for head in range(heads)])
        for theirs, ours in HEAD.items()
    }


def _sharing(stacks: list[dict[str, Tensor]]) -> str:
    """Which projections are the same matrix: a state dict holds one copy for each of its users."""
    pairs = [(stack["self_attn.proj_k.weight"], stack["self_attn.proj_v.weight"]) for stack in stacks]
    if not all((each == each[0]).all() for pair in pairs for each in pair):
        return "none"
    if not all(torch.equal(keys, values) for keys, values in pairs):
        return "headwise"
    first = pairs[0][0]
    return "layerwise" if len(pairs) > 1 and all(torch.equal(first, keys) for keys, _ in pairs) else "kv"


def _layers(state: Mapping[str, Tensor], stem: str, stacks: list[dict[str, Tensor]], sharing: str) -> dict[str, Tensor]:
    """The encoder's tensors by our names."""
    tensors: dict[str, Tensor] = {}
    head_dim = stacks[0]["self_attn.q_proj.weight"].shape[1]
    for layer, stack in enumerate(stacks):
        ours = f"encoder.layers.{layer}."
        attention, feed_forward = f"{stem}{2 * layer}.", f"{stem}{2 * layer + 1}."
        for name in ("q_proj", "k_proj", "v_proj"):
            weight = stack[f"self_attn.{name}.weight"].flatten(0, 1)
            tensors[f"{ours}self_attn.{name}.weight"] = weight
            tensors[f"{ours}self_attn.{name}.bias"] = weight.new_zeros(len(weight))
        for name in ("slot_bias_k", "slot_bias_v"):
            # One number a slot there, added to each of its channels.
            tensors[f"{ours}self_attn.{name}"] = stack[f"self_attn.{name}"].unsqueeze(-1).expand(-1, -1, head_dim)
        for name in () if sharing == "layerwise" else ("proj_k", "proj_v")[: 1 if sharing == "kv" else 2]:
            matrices = stack[f"self_attn.{name}.weight"].mT
            tensors[f"{ours}self_attn.{name}.weight"] = matrices if sharing == "none" else matrices[0]
        weight, bias = _output(state, attention)
        tensors |= {f"{ours}self_attn.out_proj.weight": weight, f"{ours}self_attn.out_proj.bias": bias}
        moved = fill(ATTENTION, attention, ours) | fill(FEED_FORWARD, feed_forward, ours)
        tensors |= {our_name: state[their_name] for their_name, our_name in moved.items()}
    if sharing == "layerwise":
        tensors["encoder.shared_projection.weight"] = stacks[0]["self_attn.proj_k.weight"][0].mT
    return tensors


def _output(state: Mapping[str, Tensor], attention: str) -> tuple[Tensor, Tensor]:
    """Weight and bias of the output projection, multiplied out where it is factored."""
    if f"{attention}fn.w_o.weight" in state:
        return state[f"{attention}fn.w_o.weight"], state[f"{attention}fn.w_o.bias"]
    inner, outer = state[f"{attention}fn.w_o_1.weight"], state[f"{attention}fn.w_o_2.weight"]
    return outer @ inner, outer @ state[f"{attention}fn.w_o_1.bias"] + state[f"{attention}fn.w_o_2.bias"]


def _dimensions(state: Mapping[str, Tensor], stem: str, stacks: list[dict[str, Tensor]]) -> dict[str, Any]:
    heads, head_dim, hidden_size = stacks[0]["self_attn.q_proj.weight"].shape
    ks = [stack["self_attn.proj_k.weight"].shape[1] for stack in stacks]
    return {
        "hidden_size": hidden_size,
        "num_hidden_layers": len(stacks),
        "num_attention_heads": heads,
        "intermediate_size": len(state[f"{stem}1.fn.w_1.weight"]),
        "max_position_embeddings": stacks[0]["self_attn.proj_k.weight"].shape[2],
        "k": ks[0] if len(set(ks)) == 1 else ks,
        "slot_bias": True,
        **head_dim_field(hidden_size, heads, head_dim),
    }


def _language_model(
    state: Mapping[str, Tensor], max_len: int, projected: bool
) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Embeddings and head by our names, with the maps beside the layers multiplied in."""
    words, frequencies = state["to_token_emb.weight"], state["pos_emb.inv_freq"]
    angles = torch.arange(max_len, dtype=frequencies.dtype).outer(frequencies)
    positions = torch.cat([angles.sin(), angles.cos()], dim=-1).to(words.dtype)
    logits = {ours: state[theirs] for theirs, ours in LOGITS.items() if theirs in state}
    if projected:
        into, out_of = state["linformer.project_in.weight"], state["linformer.project_out.weight"]
        words, positions = words @ into.mT, positions @ into.mT + state["linformer.project_in.bias"]
        weight = logits["lm_head.decoder.weight"]
        logits = {
            "lm_head.decoder.weight": weight @ out_of,
            "lm_head.decoder.bias": logits["lm_head.decoder.bias"] + weight @ state["linformer.project_out.bias"],
        }
    embeddings = {
        "embeddings.word_embeddings.weight": words,
        "embeddings.position_embeddings.weight": positions,
    }
    return embeddings, logits
