"""The backbone: equal to the plain definition, its recorded outputs, its twin, its errors."""

import copy

import pytest
import torch
from budgets import EXACT
from torch import Tensor
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.functional import reference, use_implementation
from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerModel,
)

ACTIVATIONS = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


def encode_plainly(model: LinformerModel, ids: Tensor) -> list[Tensor]:
    """Every hidden state of unpadded rows, from the configuration and the state dict alone."""
    config, weights = model.config, model.state_dict()
    kv_heads = config.num_key_value_heads or config.num_attention_heads

    def linear(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def norm(x, name):
        parameters = weights[f"{name}.weight"], weights[f"{name}.bias"]
        return F.layer_norm(x, x.shape[-1:], *parameters, eps=config.layer_norm_eps)

    def heads(x, count):
        return x.unflatten(-1, (count, 5)).transpose(1, 2)

    def attend(x, layer):
        name = f"{layer}.self_attn"
        output = reference.linformer_attention(
            heads(linear(x, f"{name}.q_proj"), config.num_attention_heads),
            heads(linear(x, f"{name}.k_proj"), kv_heads),
            heads(linear(x, f"{name}.v_proj"), kv_heads),
            weights[f"{name}.context.proj_k.weight"],
            weights[f"{name}.context.proj_v.weight"],
            length_scaling=config.length_scaling,
        )
        return linear(output.transpose(1, 2).flatten(2), f"{name}.out_proj")

    def feed_forward(x, layer):
        inner = ACTIVATIONS[config.hidden_act](linear(x, f"{layer}.linear1"))
        if config.gated:
            inner = inner * linear(x, f"{layer}.linear_gate")
        return linear(inner, f"{layer}.linear2")

    x = weights["embeddings.word_embeddings.weight"][ids]
    x = x + weights["embeddings.position_embeddings.weight"][: ids.shape[1]]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.norm")
    states = [x]
    for i in range(config.num_hidden_layers):
        layer = f"encoder.layers.{i}"
        if config.norm_first:
            x = x + attend(norm(x, f"{layer}.norm1"), layer)
            x = x + feed_forward(norm(x, f"{layer}.norm2"), layer)
        else:
            x = norm(x + attend(x, layer), f"{layer}.norm1")
            x = norm(x + feed_forward(x, layer), f"{layer}.norm2")
        states.append(x)
    if config.norm_first:
        states[-1] = norm(x, "encoder.norm")
    return states


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"num_hidden_layers": 3, "hidden_act": "relu", "layer_norm_eps": 0.125},
        {"norm_first": True, "gated": True, "hidden_act": "silu", "layer_norm_eps": 0.125},
        {"num_key_value_heads": 1, "sharing": "none", "length_scaling": False},
        {"sharing": "none", "gated": True, "projection": "random"},
        {"num_attention_heads": 3, "k": 29, "intermediate_size": 7},
    ],
    ids=lambda fields: "-".join(fields) or "default",
)
@torch.no_grad()
def test_equals_the_plain_definition(build, token_ids, fields):
    model = build(LinformerModel, **fields)
    for length in (29, 11, 1):
        ids = token_ids(2, length)
        outputs = model(ids, output_hidden_states=True)
        expected = encode_plainly(model, ids)
        assert len(outputs.hidden_states) == len(expected)
        for ours, plain in zip(outputs.hidden_states, expected, strict=True):
            assert_close(ours, plain, rtol=0, atol=EXACT)
        assert_close(outputs.last_hidden_state, expected[-1], rtol=0, atol=EXACT)


@pytest.mark.cpu("elsewhere the library of the device has no such product")
@pytest.mark.parametrize("attention", ["linformer", "full"])
@pytest.mark.parametrize("activation", ["gelu", "relu", "silu"])
@torch.no_grad()
def test_an_activation_is_asked_for_together_with_its_product(build, token_ids, activation, attention):
    """Which computes both in bfloat16 (tests/functional/test_matmul.py), but knows functions, and no modules."""
    with use_implementation("auto") as ran:
        build(LinformerModel, hidden_act=activation, attention=attention).eval()(token_ids(2, 11))
    assert "linear with activation" in ran


@torch.no_grad()
def test_the_configuration_may_ask_for_outputs(build, token_ids):
    model = build(LinformerModel, output_hidden_states=True, output_attentions=True)
    outputs = model(token_ids(2, 11))
    assert (len(outputs.hidden_states), len(outputs.attentions)) == (3, 2)
    assert model(token_ids(2, 11), output_attentions=False).attentions is None
    assert list(build(LinformerModel)(token_ids(2, 11))) == ["last_hidden_state"]


@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_single_hidden_states_may_be_selected(build, token_ids, masked):
    model = build(LinformerModel)
    inputs = {"input_ids": token_ids(2, 11), "attention_mask": torch.ones(2, 11) if masked else None}
    selected = model(**inputs, output_hidden_states=[1]).hidden_states
    every = model(**inputs, output_hidden_states=True).hidden_states
    if len(selected) < len(every):
        pytest.skip("this version of transformers counts them from the first layer, without the embeddings")
    assert selected[0] is None and selected[2] is None
    assert torch.equal(selected[1], every[1])


twins = pytest.mark.parametrize(
    ("sharing", "fields"),
    [
        *((sharing, {}) for sharing in ("none", "headwise", "kv", "layerwise")),
        ("headwise", {"norm_first": True, "gated": True, "num_key_value_heads": 1}),
    ],
)


@twins
def test_the_full_twin_differs_in_the_projections_alone(tiny, sharing, fields):
    linformer = LinformerForSequenceClassification(tiny(sharing=sharing, **fields))
    full = LinformerForSequenceClassification(tiny(attention="full", **fields))
    ours = {name: p.shape for name, p in linformer.named_parameters()}
    theirs = {name: p.shape for name, p in full.named_parameters()}
    projections = {name for name, shape in ours.items() if shape[-2:] == (29, 7)}
    assert projections == {name for name in ours if ".proj_" in name or "shared_projection" in name} != set()
    assert theirs == {name: shape for name, shape in ours.items() if name not in projections}


@twins
@torch.no_grad()
def test_identity_projections_give_the_full_twin(build, token_ids, sharing, fields):
    linformer = build(LinformerModel, sharing=sharing, k=29, **fields)
    full = build(LinformerModel, attention="full", **fields)
    for parameter in linformer.parameters():
        if parameter.shape[-2:] == (29, 29):
            parameter.copy_(torch.eye(29, dtype=torch.float64))
    missing = linformer.load_state_dict(full.state_dict(), strict=False).missing_keys
    assert missing and all("proj_" in name or "shared_projection" in name for name in missing)
    ids = token_ids(2, 29)
    recorded = {"output_hidden_states": True, "output_attentions": True}
    assert_close(linformer(ids, **recorded), full(ids, **recorded), rtol=0, atol=EXACT)


@pytest.mark.parametrize("attention", ["linformer", "full"])
@pytest.mark.parametrize("masked", [False, True])
def test_an_input_over_max_len_is_refused(build, token_ids, attention, masked):
    model = build(LinformerModel, attention=attention, position_embedding="none")
    assert model(token_ids(1, 29)).last_hidden_state.shape == (1, 29, 15)
    ids = token_ids(1, 30)
    with pytest.raises(ValueError, match="30 positions but max_len is 29"):
        model(ids, attention_mask=torch.ones(1, 30) if masked else None)
    with pytest.raises(ValueError, match="30 positions but max_len is 29"):
        model(inputs_embeds=torch.zeros(1, 30, 15, dtype=torch.float64))


def test_ids_and_embeddings_exclude_each_other(build, token_ids):
    model = build(LinformerModel)
    ids = token_ids(2, 11)
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(ids, inputs_embeds=model.get_input_embeddings()(ids))
    with pytest.raises(ValueError, match="exactly one of input_ids and inputs_embeds"):
        model(attention_mask=torch.ones(2, 11))


NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout": 0.0}


@pytest.mark.parametrize("attention", ["linformer", "full"])
@pytest.mark.parametrize("dropout", [None, *NO_DROPOUT])
@torch.no_grad()
def test_each_dropout_acts_in_training_alone(build, token_ids, dropout, attention):
    fields = {**NO_DROPOUT, dropout: 0.5} if dropout else NO_DROPOUT
    model = build(LinformerForSequenceClassification, attention=attention, **fields)
    ids = token_ids(3, 11)
    assert torch.equal(model(ids).logits, model(ids).logits)
    model.train()
    assert torch.equal(model(ids).logits, model(ids).logits) == (dropout is None)


@torch.no_grad()
def test_the_classifier_drops_what_the_rest_drops_unless_told_otherwise(tiny):
    probabilities = {
        given: LinformerForSequenceClassification(tiny(hidden_dropout_prob=0.25, classifier_dropout=given)).dropout.p
        for given in (None, 0.0, 0.5)
    }
    assert probabilities == {None: 0.25, 0.0: 0.0, 0.5: 0.5}


@pytest.mark.parametrize("fields", [{}, {"sharing": "layerwise", "norm_first": True}, {"attention": "full"}])
@pytest.mark.parametrize("model_class", [LinformerForSequenceClassification, LinformerForMaskedLM])
def test_gradient_checkpointing_changes_memory_alone(enable_checkpointing, build, token_ids, model_class, fields):
    model = build(model_class, hidden_dropout_prob=0.25, attention_probs_dropout_prob=0.25, **fields).train()
    ids = token_ids(3, 11)
    labels = ids if model_class is LinformerForMaskedLM else ids[:, 0] % 2
    mask = torch.tensor([[0] * 4 + [1] * 7, [1] * 11, [1] * 5 + [0] * 6])
    calls = []
    for layer in model.linformer.encoder.layers:
        layer.linear1.register_forward_hook(lambda *_: calls.append(1))
    results = []
    for checkpoint in (False, True):
        if checkpoint:
            enable_checkpointing(model)
        model.zero_grad()
        calls.clear()
        torch.manual_seed(3)
        loss = model(ids, attention_mask=mask, labels=labels).loss
        loss.backward()
        assert len(calls) == (4 if checkpoint else 2), "each of the two layers runs once more in backward"
        results.append((loss, [p.grad for p in model.parameters()]))
    assert_close(results[1], results[0], rtol=0, atol=EXACT)


@torch.no_grad()
def test_a_copy_is_independent(build, token_ids):
    model = build(LinformerModel, output_attentions=True, sharing="layerwise")
    ids = token_ids(2, 11)
    before = model(ids)
    other = copy.deepcopy(model)
    assert_close(other(ids), before, rtol=0, atol=0)
    for parameter in other.parameters():
        parameter.zero_()
    assert_close(model(ids), before, rtol=0, atol=0)
