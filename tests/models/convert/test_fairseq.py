"""fairseq's `linformer_roberta`, against its formula written out: compress, then project, then add the bias."""

import argparse
import math

import pytest
import torch
from budgets import IMPORTED
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import LinformerForMaskedLM, LinformerModel
from torch_linformer.models.convert import from_fairseq, read_checkpoint

VOCABULARY, WIDTH, INNER, HEADS, LENGTH, SLOTS, LAYERS, PADDING = 37, 15, 23, 3, 29, 7, 2, 1
SHARINGS = ["headwise", "kv", "layerwise", "layerwise without kv", "a shared layer for each"]
EXPECTED = {"layerwise without kv": "layerwise", "a shared layer for each": "kv"}


def checkpoint_of(sharing, lm_head=True, prefix="encoder", norm="layernorm_embedding"):
    """A state dict with fairseq's names and shapes, in float64. Shared layers have a bias, stored and never used."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)

    def draw(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64) * 0.5

    def linear(name, out, into):
        return {f"{name}.weight": draw(out, into), f"{name}.bias": draw(out)}

    state = {"embed_tokens.weight": draw(VOCABULARY, WIDTH)}
    state["embed_positions.weight"] = draw(LENGTH + PADDING + 1, WIDTH)
    state |= {f"{norm}.weight": draw(WIDTH), f"{norm}.bias": draw(WIDTH)}
    shared = linear("", SLOTS, LENGTH)
    for layer in range(LAYERS):
        here, attention = f"layers.{layer}", f"layers.{layer}.self_attn"
        for part in ("q", "k", "v", "out"):
            state |= linear(f"{attention}.{part}_proj", WIDTH, WIDTH)
        if sharing in ("headwise", "kv"):
            for part in ("k", "v")[: 2 if sharing == "headwise" else 1]:
                state[f"{attention}.compress_{part}.weight"] = draw(SLOTS, LENGTH)
        else:
            shared = linear("", SLOTS, LENGTH) if sharing == "a shared layer for each" else shared
            users = [f"{here}.shared_compress_layer", f"{attention}.compress_k", "compress_layer"]
            users += [f"{attention}.compress_v"] if sharing == "layerwise without kv" else []
            state |= {f"{user}{name}": tensor for user in users for name, tensor in shared.items()}
        state |= linear(f"{here}.fc1", INNER, WIDTH) | linear(f"{here}.fc2", WIDTH, INNER)
        for name in ("self_attn_layer_norm", "final_layer_norm"):
            state |= {f"{here}.{name}.weight": draw(WIDTH), f"{here}.{name}.bias": draw(WIDTH)}
    state = {f"{prefix}.sentence_encoder.{name}": tensor for name, tensor in state.items()}
    if lm_head:
        head = linear("dense", WIDTH, WIDTH)
        head |= {"layer_norm.weight": draw(WIDTH), "layer_norm.bias": draw(WIDTH), "bias": draw(VOCABULARY)}
        head["weight"] = state[f"{prefix}.sentence_encoder.embed_tokens.weight"]
        state |= {f"{prefix}.lm_head.{name}": tensor for name, tensor in head.items()}
    versions = [f"{prefix}.version", f"{prefix}.sentence_encoder.version"]
    versions += [f"{prefix}.sentence_encoder.layers.{layer}.version" for layer in range(LAYERS)]
    return {**state, **{name: torch.tensor(2) for name in versions}}


def scores_by_the_formula(state, ids, sharing, activation=F.gelu):
    """Hidden states and scores of one row of ids, one head at a time."""

    def at(name):
        return state[f"encoder.sentence_encoder.{name}"]

    def normed(x, name, where=at):
        return F.layer_norm(x, (WIDTH,), where(f"{name}.weight"), where(f"{name}.bias"))

    positions = at("embed_positions.weight")[PADDING + 1 : PADDING + 1 + len(ids)]
    x = normed(at("embed_tokens.weight")[ids] + positions, "layernorm_embedding")
    for layer in range(LAYERS):
        attention, here = f"layers.{layer}.self_attn", f"layers.{layer}"
        compress = at(f"{attention}.compress_k.weight")[:, : len(ids)]
        compress_values = at(f"{attention}.compress_v.weight")[:, : len(ids)] if sharing == "headwise" else compress
        inputs = {"q": x, "k": compress @ x, "v": compress_values @ x}
        q, k, v = (
            inputs[part] @ at(f"{attention}.{part}_proj.weight").T + at(f"{attention}.{part}_proj.bias")
            for part in "qkv"
        )
        heads = []
        for head in range(HEADS):
            own = slice(head * WIDTH // HEADS, (head + 1) * WIDTH // HEADS)
            weights = torch.softmax(q[:, own] @ k[:, own].T / math.sqrt(WIDTH // HEADS), dim=-1)
            heads.append(weights @ v[:, own])
        mixed = torch.cat(heads, dim=-1) @ at(f"{attention}.out_proj.weight").T + at(f"{attention}.out_proj.bias")
        x = normed(x + mixed, f"{here}.self_attn_layer_norm")
        inner = activation(x @ at(f"{here}.fc1.weight").T + at(f"{here}.fc1.bias"))
        x = normed(x + inner @ at(f"{here}.fc2.weight").T + at(f"{here}.fc2.bias"), f"{here}.final_layer_norm")
    if "encoder.lm_head.weight" not in state:
        return x, None
    head = {name.removeprefix("encoder.lm_head."): tensor for name, tensor in state.items() if ".lm_head." in name}
    dense = activation(x @ head["dense.weight"].T + head["dense.bias"])
    return x, normed(dense, "layer_norm", head.__getitem__) @ head["weight"].T + head["bias"]


@pytest.mark.parametrize("length", [LENGTH, 11, 1])
@pytest.mark.parametrize("sharing", SHARINGS)
def test_the_scores_are_those_of_the_formula(token_ids, sharing, length):
    state = checkpoint_of(sharing)
    model = from_fairseq(state, num_heads=HEADS)
    assert type(model) is LinformerForMaskedLM
    assert model.config.sharing == EXPECTED.get(sharing, sharing)
    (ids,) = token_ids(1, length)
    hidden, scores = scores_by_the_formula(state, ids, sharing)
    found = model(ids[None], output_hidden_states=True)
    assert_close(found.logits[0], scores, rtol=0, atol=IMPORTED)
    assert_close(found.hidden_states[-1][0], hidden, rtol=0, atol=IMPORTED)


def test_the_keys_own_bias_is_moved_after_the_compression():
    state = checkpoint_of("headwise")
    attention = from_fairseq(state, num_heads=HEADS).linformer.encoder.layers[1].self_attn
    assert not attention.k_proj.bias.any() and not attention.v_proj.bias.any()
    bias = state["encoder.sentence_encoder.layers.1.self_attn.k_proj.bias"]
    assert all(torch.equal(attention.context.slot_terms.bias_k[:, slot].flatten(), bias) for slot in range(SLOTS))


def test_padding_is_exact_here_which_it_is_not_there(token_ids):
    model = from_fairseq(checkpoint_of("headwise"), num_heads=HEADS)
    assert model.config.pad_token_id == PADDING
    ids = token_ids(1, 11)
    padded = torch.cat([ids, torch.full((1, 5), PADDING)], dim=1)
    mask = torch.cat([torch.ones_like(ids), torch.zeros(1, 5, dtype=torch.long)], dim=1)
    assert_close(model(padded, attention_mask=mask).logits[:, :11], model(ids).logits)


OPTIONS = {"encoder_attention_heads": HEADS, "activation_fn": "relu", "dropout": 0.25, "attention_dropout": 0.5}


@pytest.mark.parametrize(
    "options", [{"args": argparse.Namespace(**OPTIONS)}, {"cfg": {"model": argparse.Namespace(**OPTIONS)}}], ids=str
)
def test_options_are_read_from_the_checkpoint(token_ids, tmp_path, options):
    state = checkpoint_of("kv")
    torch.save({"model": state, "extra_state": {"epoch": 3}, **options}, tmp_path / "checkpoint.pt")
    model = from_fairseq(read_checkpoint(tmp_path / "checkpoint.pt"))
    config = model.config
    assert (config.num_attention_heads, config.hidden_act) == (HEADS, "relu")
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.5)
    (ids,) = token_ids(1, 11)
    _, scores = scores_by_the_formula(state, ids, "kv", activation=F.relu)
    assert_close(model(ids[None]).logits[0], scores, rtol=0, atol=IMPORTED)


def test_the_accurate_gelu_is_the_one_with_tanh(token_ids):
    state = checkpoint_of("kv")
    model = from_fairseq({"model": state, "args": argparse.Namespace(**{**OPTIONS, "activation_fn": "gelu_accurate"})})
    (ids,) = token_ids(1, 11)
    _, scores = scores_by_the_formula(state, ids, "kv", activation=lambda x: F.gelu(x, approximate="tanh"))
    assert_close(model(ids[None]).logits[0], scores, rtol=0, atol=IMPORTED)


def test_names_of_older_versions():
    newer = from_fairseq(checkpoint_of("headwise"), num_heads=HEADS)
    older = from_fairseq(checkpoint_of("headwise", prefix="decoder", norm="emb_layer_norm"), num_heads=HEADS)
    assert_close(dict(older.state_dict()), dict(newer.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("around", ["module.", "model.", "model.module."])
def test_a_model_in_others(around):
    state = checkpoint_of("headwise") | {"encoder.sentence_encoder.layers.0.self_attn.version": torch.tensor(1)}
    bare = from_fairseq(state, num_heads=HEADS)
    wrapped = from_fairseq({"model": {f"{around}{name}": state[name] for name in state}}, num_heads=HEADS)
    assert_close(dict(wrapped.state_dict()), dict(bare.state_dict()), rtol=0, atol=0)


def test_without_a_head_only_the_backbone_is_imported(token_ids):
    state = checkpoint_of("headwise", lm_head=False)
    model = from_fairseq(state, num_heads=HEADS)
    assert type(model) is LinformerModel
    (ids,) = token_ids(1, 11)
    hidden, _ = scores_by_the_formula(state, ids, "headwise")
    assert_close(model(ids[None]).last_hidden_state[0], hidden, rtol=0, atol=IMPORTED)


def test_an_untied_head_stays_untied():
    state = checkpoint_of("headwise")
    assert from_fairseq(state, num_heads=HEADS).config.tie_word_embeddings
    state["encoder.lm_head.weight"] = state["encoder.lm_head.weight"] + 1
    model = from_fairseq(state, num_heads=HEADS)
    assert not model.config.tie_word_embeddings
    assert torch.equal(model.lm_head.decoder.weight, state["encoder.lm_head.weight"])


def test_classifiers_are_left_out_and_reported(caplog):
    extra = {"classification_heads.mnli.dense.weight": torch.ones(2, 2)}
    assert type(from_fairseq(checkpoint_of("kv") | extra, num_heads=HEADS)) is LinformerForMaskedLM
    assert caplog.messages == ["left out, classification heads: classification_heads.mnli.dense.weight"]


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({}, {}, r"the weights do not tell the number of heads: give num_heads \(--heads\)"),
        ({}, {"num_heads": 4}, r"num_heads \(--heads\) must divide the 15 channels of the queries, got 4"),
        ({"encoder.layer_norm.weight": torch.ones(2)}, {"num_heads": 3}, "unknown encoder.layer_norm.weight$"),
        ({"encoder.lm_head.bias": None}, {"num_heads": 3}, "linformer_roberta model: missing encoder.lm_head.bias$"),
        ({"encoder.lm_head.bias": torch.ones(2)}, {"num_heads": 3}, "the shapes of the weights do not fit together"),
    ],
)
def test_what_does_not_fit_is_refused(change, options, message):
    state = {name: tensor for name, tensor in (checkpoint_of("headwise") | change).items() if tensor is not None}
    with pytest.raises(ValueError, match=message):
        from_fairseq(state, **options)


def test_options_that_do_not_fit_are_refused():
    checkpoint = {"model": checkpoint_of("kv"), "args": argparse.Namespace(**{**OPTIONS, "activation_fn": "linear"})}
    with pytest.raises(ValueError, match=r"activation_fn must be one of gelu, gelu_accurate, relu, .* 'linear'"):
        from_fairseq(checkpoint)
    checkpoint["args"] = argparse.Namespace(**OPTIONS)
    with pytest.raises(ValueError, match=r"num_heads \(--heads\) is 3 by the checkpoint's own options, got 5"):
        from_fairseq(checkpoint, num_heads=5)
