"""Weights trained elsewhere, as models of this package: for each source a table of names and what is changed."""

import argparse
import logging
import pickle
import re
from collections.abc import Collection, Mapping
from itertools import product
from os import PathLike
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from torch_linformer.models.backbone import LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.heads import LinformerForMaskedLM

__all__ = ["from_fairseq", "from_linformer_pytorch", "from_lucidrains", "read_checkpoint"]

_logger = logging.getLogger(__name__)
# Modules around a model: parallel ones, those of training loops, torch.compile, the Padder of linformer-pytorch. That
# package and fairseq begin no name so; of lucidrains those that begin with "net.layers." or "net.blocks." are its own.
_AROUND = re.compile(r"(module|model|_orig_mod|net)\.(?!(layers|blocks)\.)")

# Tables: "*" is weight and bias; {stem} begins the names of layers, {even} and {odd} are 2 · layer and 2 · layer + 1.
WORDS, POSITIONS = "embeddings.word_embeddings.weight", "embeddings.position_embeddings.weight"
ATTENTION = "encoder.layers.{layer}.self_attn."
KEYS, VALUES = f"{ATTENTION}context.proj_k.weight", f"{ATTENTION}context.proj_v.weight"
LUCIDRAINS = {
    "{stem}.{layer}.0.fn.to_q.weight": f"{ATTENTION}q_proj.weight",
    "{stem}.{layer}.0.fn.to_k.weight": f"{ATTENTION}k_proj.weight",
    "{stem}.{layer}.0.fn.to_out.*": f"{ATTENTION}out_proj.*",
    "{stem}.{layer}.0.fn.proj_k": KEYS,
    "{stem}.{layer}.0.norm.*": "encoder.layers.{layer}.norm1.*",
    "{stem}.{layer}.1.norm.*": "encoder.layers.{layer}.norm2.*",
    "{stem}.{layer}.1.fn.w1.*": "encoder.layers.{layer}.linear1.*",
    "{stem}.{layer}.1.fn.w2.*": "encoder.layers.{layer}.linear2.*",
}
LUCIDRAINS_VALUES = {  # absent with share_kv
    "{stem}.{layer}.0.fn.to_v.weight": f"{ATTENTION}v_proj.weight",
    "{stem}.{layer}.0.fn.proj_v": VALUES,
}
LUCIDRAINS_LM = {"token_emb.weight": WORDS, "pos_emb.weight": POSITIONS, "to_logits.*": "lm_head.decoder.*"}
HEADS = {  # of linformer-pytorch: the tensors of all heads are stacked
    "{stem}.{even}.fn.to_q.{head}.weight": f"{ATTENTION}q_proj.weight",
    "{stem}.{even}.fn.to_k.{head}.weight": f"{ATTENTION}k_proj.weight",
    "{stem}.{even}.fn.to_v.{head}.weight": f"{ATTENTION}v_proj.weight",
    "{stem}.{even}.fn.heads.{head}.E.weight": KEYS,
    "{stem}.{even}.fn.heads.{head}.E.bias": f"{ATTENTION}context.slot_terms.bias_k",
    "{stem}.{even}.fn.heads.{head}.F.weight": VALUES,
    "{stem}.{even}.fn.heads.{head}.F.bias": f"{ATTENTION}context.slot_terms.bias_v",
}
LINFORMER_PYTORCH = {
    **{theirs: f"{ours}.{{head}}" for theirs, ours in HEADS.items()},
    "{stem}.{even}.norm.*": "encoder.layers.{layer}.norm1.*",
    "{stem}.{odd}.fn.w_1.*": "encoder.layers.{layer}.linear1.*",
    "{stem}.{odd}.fn.w_2.*": "encoder.layers.{layer}.linear2.*",
    "{stem}.{odd}.norm.*": "encoder.layers.{layer}.norm2.*",
}
OUTPUT = {"{stem}.{even}.fn.w_o.*": f"{ATTENTION}out_proj.*"}
FACTORED_OUTPUT = {
    "{stem}.{even}.fn.w_o_1.*": f"{ATTENTION}out_proj.*",
    "{stem}.{even}.fn.w_o_2.*": f"{ATTENTION}w_o_2.*",
}
EMBEDDED = {"to_token_emb.weight": WORDS, "pos_emb.inv_freq": POSITIONS}
LOGITS = {"to_logits.*": "lm_head.decoder.*"}
PROJECTED = {"linformer.project_in.*": "project_in.*", "linformer.project_out.*": "project_out.*"}  # with emb_dim
FAIRSEQ = {
    "{stem}.embed_tokens.weight": WORDS,
    "{stem}.embed_positions.weight": POSITIONS,
    "{stem}.layernorm_embedding.*": "embeddings.norm.*",
    "{stem}.layers.{layer}.self_attn.q_proj.*": f"{ATTENTION}q_proj.*",
    "{stem}.layers.{layer}.self_attn.k_proj.weight": f"{ATTENTION}k_proj.weight",
    "{stem}.layers.{layer}.self_attn.k_proj.bias": f"{ATTENTION}context.slot_terms.bias_k",
    "{stem}.layers.{layer}.self_attn.v_proj.weight": f"{ATTENTION}v_proj.weight",
    "{stem}.layers.{layer}.self_attn.v_proj.bias": f"{ATTENTION}context.slot_terms.bias_v",
    "{stem}.layers.{layer}.self_attn.out_proj.*": f"{ATTENTION}out_proj.*",
    "{stem}.layers.{layer}.self_attn.compress_k.weight": KEYS,
    "{stem}.layers.{layer}.self_attn_layer_norm.*": "encoder.layers.{layer}.norm1.*",
    "{stem}.layers.{layer}.fc1.*": "encoder.layers.{layer}.linear1.*",
    "{stem}.layers.{layer}.fc2.*": "encoder.layers.{layer}.linear2.*",
    "{stem}.layers.{layer}.final_layer_norm.*": "encoder.layers.{layer}.norm2.*",
}
FAIRSEQ_VALUES = {"{stem}.layers.{layer}.self_attn.compress_v.weight": VALUES}  # absent with shared_kv_compressed
FAIRSEQ_LM = {
    "encoder.lm_head.dense.*": "lm_head.dense.*",
    "encoder.lm_head.layer_norm.*": "lm_head.norm.*",
    "encoder.lm_head.*": "lm_head.decoder.*",
}
# Numbers of versions, tensors stored twice, and the bias of the shared layer, which is never used there.
FAIRSEQ_REPEATED = re.compile(
    r"(.+\.)?version$"
    r"|encoder\.sentence_encoder\.(layers\.\d+\.shared_)?compress_layer\.(weight|bias)$"
    r"|encoder\.sentence_encoder\.layers\.\d+\.self_attn\.compress_[kv]\.bias$"
)
FAIRSEQ_ACTIVATIONS = {"gelu": "gelu", "gelu_accurate": "gelu_new", "relu": "relu"}
UNTOLD = {  # options of linformer-pytorch that weights do not tell, and why they cannot be expressed
    "decoder_mode": "its layers read a memory, as only a decoder of another kind does here",
    "causal": "its mask on slots lets every position see the future",
    "full_attention": "its attention uses no projections, so those among its weights are not trained",
}


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
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        with torch.serialization.safe_globals([argparse.Namespace]):
            checkpoint = torch.load(path, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise refusal(path, error) from None
    except (SafetensorError, RuntimeError, EOFError, KeyError, ValueError) as error:
        reason = str(error).partition(".")[0] or type(error).__name__
        raise ValueError(f"{path}: is not a complete checkpoint ({reason})") from None
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


def from_lucidrains(state_dict: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``Linformer`` or ``LinformerLM`` of the package ``linformer`` 0.2.

    Outputs are the original's, at every length. ``one_kv_head`` becomes ``num_key_value_heads=1``. With ``share_kv``
    the linear map of the values is a copy of that of the keys, so further training moves them apart.

    Args:
        state_dict: of either class, or a checkpoint that holds one.
        num_heads: the original's ``heads``; weights tell it only with ``one_kv_head``.

    Returns:
        A ``LinformerForMaskedLM`` for a language model (its head scores every position), else a ``LinformerModel``
        to be called with ``inputs_embeds``.

    Raises:
        ValueError: for ``reversible`` models, a missing or wrong ``num_heads``, or names or shapes that do not fit.
    """
    state = tensors_in(state_dict)
    if any(".blocks." in name for name in state):
        raise ValueError("reversible=True cannot be expressed: its two streams are not one sequence of layers")
    language_model = "token_emb.weight" in state
    stem = "linformer.net.layers" if language_model else "net.layers"
    layers = _count(state, rf"{stem}\.(\d+)\.")
    share_kv = not any(name.endswith(("fn.to_v.weight", "fn.proj_v")) for name in state)
    table = LUCIDRAINS | ({} if share_kv else LUCIDRAINS_VALUES) | (LUCIDRAINS_LM if language_model else {})
    tensors = _renamed("lucidrains/linformer", state, table, layers, stem=stem)
    for layer in range(layers):
        if share_kv:
            attention = ATTENTION.format(layer=layer)
            tensors[f"{attention}v_proj.weight"] = tensors[f"{attention}k_proj.weight"]
        for name in (KEYS, VALUES):
            if name.format(layer=layer) in tensors:
                tensors[name.format(layer=layer)] = tensors[name.format(layer=layer)].mT
    query_width, key_width = (len(tensors[ATTENTION.format(layer=0) + f"{x}_proj.weight"]) for x in "qk")
    told = query_width // key_width if key_width < query_width else None  # with one_kv_head
    heads = _check_heads(query_width, told if num_heads is None else num_heads)
    if told not in (None, heads):
        raise ValueError(f"num_heads (--heads) is {told} by the weights, got {heads}")
    fields = {"num_key_value_heads": 1 if told else None, "norm_first": True, "final_norm": False}
    return _build(LinformerForMaskedLM if language_model else LinformerModel, tensors, layers, heads, **fields)


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
            does, and a checkpoint with its options. With a state dict alone they are taken to be off, and a log line
            says so.
        activation: ``gelu`` or ``relu``; by default the module's or the checkpoint's, else ``gelu``.

    Returns:
        A ``LinformerForMaskedLM`` for a language model; a ``LinformerModel`` for one without logits (``return_emb``),
        and for a bare ``Linformer``, which is to be called with ``inputs_embeds``.

    Raises:
        ValueError: for an option that cannot be expressed, by its name, or names or shapes that do not fit.
    """
    options: dict[str, Any]
    if isinstance(source, nn.Module):
        parts: list[Any] = list(source.modules())
        options = {name: any(getattr(part, name, False) for part in parts) for name in UNTOLD}
        options["causal"] = any(getattr(part, "causal_mask", None) is not None for part in parts)
        options["activation"] = next((x.activation.__name__ for x in parts if hasattr(x, "activation")), None)
        source = source.state_dict()
    else:
        options = dict(options_in(source))
    state = tensors_in(source)
    language_model, logits = "to_token_emb.weight" in state, "to_logits.weight" in state
    projected = any(name.startswith("linformer.project_") for name in state)
    stem = ("linformer.fn.seq" if projected else "linformer.seq") if language_model else "seq"
    _refuse_inexpressible(options, state, is_one=f"{stem}.0.fn.to_q.0.weight" in state)
    layers, heads = _count(state, rf"{stem}\.(\d+)\.") // 2 or 1, _count(state, rf"{stem}\.0\.fn\.to_q\.(\d+)\.")
    factored = f"{stem}.0.fn.w_o_1.weight" in state
    table = LINFORMER_PYTORCH | (FACTORED_OUTPUT if factored else OUTPUT)
    if language_model:
        table |= EMBEDDED | (LOGITS if logits else {}) | (PROJECTED if projected else {})
    tensors = _renamed("linformer-pytorch", state, table, layers, heads, stem=stem)
    untold = [name for name in UNTOLD if name not in options]
    if untold:
        _logger.warning("taken to be off, as the file does not tell: %s (outputs differ if not so)", _listed(untold))

    for layer in range(layers):
        for name in (name.format(layer=layer) for name in HEADS.values()):
            stacked = torch.stack([tensors.pop(f"{name}.{head}") for head in range(heads)])
            if "slot_terms" in name:  # there it is one number a slot, for all channels
                head_dim = len(state[f"{stem}.0.fn.to_q.0.weight"])
                stacked = stacked.unsqueeze(-1).expand(-1, -1, head_dim)
            tensors[name] = stacked.flatten(0, 1) if name.endswith("_proj.weight") else stacked
        attention = ATTENTION.format(layer=layer)
        if factored:
            outer, outer_bias = (tensors.pop(f"{attention}w_o_2.{part}") for part in ("weight", "bias"))
            weight, bias = f"{attention}out_proj.weight", f"{attention}out_proj.bias"
            tensors[weight], tensors[bias] = outer @ tensors[weight], outer @ tensors[bias] + outer_bias
    if language_model:
        max_len, frequencies = tensors[KEYS.format(layer=0)].shape[-1], tensors[POSITIONS]
        angles = torch.arange(max_len, dtype=frequencies.dtype).outer(frequencies)
        tensors[POSITIONS] = torch.cat([angles.sin(), angles.cos()], dim=-1).to(tensors[WORDS].dtype)
    if projected:  # the linear maps around the layers are multiplied into both ends
        before, after = (tensors.pop(f"project_{x}.weight") for x in ("in", "out"))
        score = tensors["lm_head.decoder.weight"]
        tensors[WORDS] = tensors[WORDS] @ before.mT
        tensors[POSITIONS] = tensors[POSITIONS] @ before.mT + tensors.pop("project_in.bias")
        tensors["lm_head.decoder.weight"] = score @ after
        tensors["lm_head.decoder.bias"] = tensors["lm_head.decoder.bias"] + score @ tensors.pop("project_out.bias")
    fields = {"hidden_act": activation or options.get("activation") or "gelu", "slot_bias": True}
    return _build(LinformerForMaskedLM if logits else LinformerModel, tensors, layers, heads, **fields)


def _refuse_inexpressible(options: Mapping[str, Any], state: Mapping[str, Tensor], *, is_one: bool) -> None:
    """Refuse options of linformer-pytorch; those that only absent names tell where ``is_one`` says it is of them."""

    def has(pattern: str) -> bool:
        return any(re.search(pattern, name) for name in state)

    is_convolution = any(name.endswith(".E.weight") and tensor.dim() == 3 for name, tensor in state.items())
    is_projected = has(r"^linformer\.project_out") and not has(r"^to_logits\.weight$")
    for is_on, option, why in (
        *((options.get(name), f"{name}=True", why) for name, why in UNTOLD.items()),
        (has(r"^(encoder|decoder)\."), "LinformerEncDec", "the attention of its decoder differs from the one here"),
        (has(r"\.resample\."), "ff_intermediate", "here all layers have the same width"),
        (is_convolution, "method='convolution'", "it mixes channels as well as positions"),
        (
            is_one and not has(r"\.E\.weight$"),
            "method='no_params'",
            "its projections are not among its weights, so they are lost",
        ),
        (is_one and not has(r"\.fn\.w_1\."), "include_ff=False", "here every layer has a feed-forward network"),
        (is_projected, "return_emb=True with emb_dim", "here the hidden states are as wide as the layers"),
    ):
        if is_on:
            raise ValueError(f"{option} cannot be expressed: {why}")


def from_fairseq(checkpoint: Mapping[str, Any], *, num_heads: int | None = None) -> LinformerPreTrainedModel:
    """A ``linformer_roberta`` of fairseq: its weights, and from its options the heads, the activation and the dropout.

    fairseq compresses the sequence first and adds the biases of keys and values afterwards: here they are slot biases,
    and the inner bias is 0. Without padding the outputs are the original's; its attention ignores the padding mask,
    that of this model does not. The position table loses the rows that fairseq keeps for padding.

    Args:
        checkpoint: what ``read_checkpoint`` returns, or only a state dict.
        num_heads: ``encoder_attention_heads``, where the checkpoint does not hold its options.

    Returns:
        A ``LinformerForMaskedLM``, or a ``LinformerModel`` where there is no ``lm_head``. Classification heads are
        left out, and a log line lists their tensors.

    Raises:
        ValueError: no number of heads, an unknown activation, or names or shapes that do not fit.
    """
    state = {  # by the names of the last version of fairseq
        re.sub(r"^decoder\.", "encoder.", name).replace(".emb_layer_norm.", ".layernorm_embedding."): tensor
        for name, tensor in tensors_in(checkpoint).items()
    }
    classifiers = {name for name in state if name.startswith("classification_heads.")}
    if classifiers:
        _logger.warning("left out, classification heads: %s", _listed(sorted(classifiers)))
    state = {name: state[name] for name in state if name not in classifiers and not FAIRSEQ_REPEATED.match(name)}
    language_model = any(name.startswith("encoder.lm_head.") for name in state)
    has_values = any(name.endswith(".compress_v.weight") for name in state)
    table = FAIRSEQ | (FAIRSEQ_VALUES if has_values else {}) | (FAIRSEQ_LM if language_model else {})
    layers = _count(state, r"encoder\.sentence_encoder\.layers\.(\d+)\.")
    tensors = _renamed("fairseq linformer_roberta", state, table, layers, stem="encoder.sentence_encoder")

    options, words = options_in(checkpoint), tensors[WORDS]
    activation = options.get("activation_fn", "gelu")
    if activation not in FAIRSEQ_ACTIVATIONS:
        raise ValueError(
            f"activation_fn must be one of {', '.join(FAIRSEQ_ACTIVATIONS)}, the checkpoint has {activation!r}"
        )
    stated = options.get("encoder_attention_heads")
    if num_heads is not None and stated not in (None, num_heads):
        raise ValueError(f"num_heads (--heads) is {stated} by the checkpoint's own options, got {num_heads}")
    heads = _check_heads(words.shape[1], num_heads if stated is None else stated)
    k, max_len = tensors[KEYS.format(layer=0)].shape
    padding = len(tensors[POSITIONS]) - max_len - 1  # positions begin after the padding token's own row
    tensors[POSITIONS] = tensors[POSITIONS][-max_len:]
    for name in [name for name in tensors if ".slot_terms." in name]:
        tensors[name] = tensors[name].view(heads, 1, -1).expand(-1, k, -1)  # the same in every slot
    fields = {
        "hidden_act": FAIRSEQ_ACTIVATIONS[activation],
        "hidden_dropout_prob": float(options.get("dropout", 0.0)),
        "attention_probs_dropout_prob": float(options.get("attention_dropout", 0.0)),
        "pad_token_id": padding,
        "tie_word_embeddings": not language_model or torch.equal(tensors["lm_head.decoder.weight"], words),
        "embedding_norm": True,
        "lm_head_transform": True,
        "slot_bias": True,
    }
    return _build(LinformerForMaskedLM if language_model else LinformerModel, tensors, layers, heads, **fields)


def tensors_in(checkpoint: Mapping[str, Any]) -> dict[str, Tensor]:
    """The state dict in a checkpoint, or the mapping itself, without the names of modules around the model."""
    wrappers = ("model", "state_dict", "model_state_dict")
    inside = next((checkpoint[name] for name in wrappers if isinstance(checkpoint.get(name), Mapping)), checkpoint)
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
    for name in ("args", "cfg", "config", "hparams", "hyper_parameters"):
        options = checkpoint.get(name)
        if isinstance(options, Mapping) and isinstance(options.get("model"), Mapping | argparse.Namespace):
            options = options["model"]
        if isinstance(options, argparse.Namespace):
            options = vars(options)
        if isinstance(options, Mapping):
            return options
    return {}


def _count(names: Collection[str], pattern: str) -> int:
    """One more than the largest number that ``pattern`` captures; 1 if none, so that an error lists what is missing."""
    return max((int(match[1]) for name in names if (match := re.match(pattern, name))), default=0) + 1


def _renamed(
    source: str, state: Mapping[str, Tensor], table: Mapping[str, str], layers: int, heads: int = 1, *, stem: str
) -> dict[str, Tensor]:
    """The tensors by our names; every name must be in the table, and all of the table must be there."""
    names = {}
    for layer, head, part in product(range(layers), range(heads), ("weight", "bias")):
        numbers = {"stem": stem, "layer": layer, "even": 2 * layer, "odd": 2 * layer + 1, "head": head}
        for theirs, ours in table.items():
            names[theirs.format(**numbers).replace("*", part)] = ours.format(**numbers).replace("*", part)
    differences = {"missing": sorted(names.keys() - state.keys()), "unknown": sorted(state.keys() - names.keys())}
    if any(differences.values()):
        listed = "; ".join(f"{kind} {_listed(found)}" for kind, found in differences.items() if found)
        raise ValueError(f"these are not the weights of a {source} model: {listed}")
    return {ours: state[theirs] for theirs, ours in names.items()}


def _check_heads(width: int, num_heads: int | None) -> int:
    if num_heads is None:
        raise ValueError("the weights do not tell the number of heads: give num_heads (--heads)")
    if num_heads < 1 or width % num_heads:
        raise ValueError(f"num_heads (--heads) must divide the {width} channels of the queries, got {num_heads}")
    return num_heads


def _build(
    model_class: type[LinformerPreTrainedModel], tensors: dict[str, Tensor], layers: int, heads: int, **fields: Any
) -> LinformerPreTrainedModel:
    """A model in eval mode with a copy of these tensors, in their dtype.

    Their E and F are ``(…, K, max_len)``, and F is E where there is none. Their values tell how they are shared: a
    state dict holds a copy for each use. Shapes tell the sizes in the configuration.
    """
    attentions = [ATTENTION.format(layer=layer) for layer in range(layers)]
    keys = [tensors.pop(KEYS.format(layer=layer)) for layer in range(layers)]
    values = [tensors.pop(VALUES.format(layer=layer), keys[layer]) for layer in range(layers)]
    if keys[0].dim() == 3 and all((matrices == matrices[0]).all() for matrices in keys + values):
        keys, values = [matrices[0] for matrices in keys], [matrices[0] for matrices in values]
    sharing = "none" if keys[0].dim() == 3 else "headwise"
    if sharing == "headwise" and all(map(torch.equal, keys, values)):
        sharing = "layerwise" if layers > 1 and all(torch.equal(keys[0], other) for other in keys) else "kv"
    if sharing == "layerwise":
        tensors["encoder.shared_projection.weight"] = keys[0].mT
    for layer, attention in enumerate(attentions):
        if sharing != "layerwise":
            tensors[KEYS.format(layer=layer)] = keys[layer].mT
        if sharing in ("none", "headwise"):
            tensors[VALUES.format(layer=layer)] = values[layer].mT
        for name in ("q_proj", "k_proj", "v_proj"):  # the originals have none, or add them to slots
            weight = tensors[f"{attention}{name}.weight"]
            tensors.setdefault(f"{attention}{name}.bias", weight.new_zeros(len(weight)))
    query = tensors[f"{attentions[0]}q_proj.weight"]
    ks = [matrix.shape[-2] for matrix in keys]
    sizes: dict[str, Any] = {
        "hidden_size": query.shape[1],
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "head_dim": None if len(query) == query.shape[1] else len(query) // heads,
        "intermediate_size": len(tensors["encoder.layers.0.linear1.weight"]),
        "max_position_embeddings": keys[0].shape[-1],
        "k": ks[0] if len(set(ks)) == 1 else ks,
        "sharing": sharing,
    }
    if WORDS not in tensors:  # a model trained on embeddings, which is called with inputs_embeds
        tensors[WORDS], sizes["position_embedding"] = torch.zeros(1, query.shape[1]), "none"
    common = {  # sums without length factor, embeddings without norm, no padding
        "vocab_size": len(tensors[WORDS]),
        "length_scaling": False,
        "embedding_norm": False,
        "lm_head_transform": False,
        "type_vocab_size": 0,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
    }
    model = model_class(LinformerConfig(**{**common, **sizes, **fields}))
    nn.Module.to(model, query.dtype)  # the method of transformers has no types
    backbone = "linformer." if model_class is LinformerForMaskedLM else ""
    try:
        model.load_state_dict(
            {name if name.startswith("lm_head.") else backbone + name: tensor for name, tensor in tensors.items()}
        )
    except RuntimeError as error:
        raise ValueError(f"the shapes of the weights do not fit together: {' '.join(str(error).split())}") from None
    model.train(False)
    return model


def _listed(names: Collection[str]) -> str:
    shown = ", ".join(list(names)[:12])
    return shown if len(names) <= 12 else f"{shown} and {len(names) - 12} more"
