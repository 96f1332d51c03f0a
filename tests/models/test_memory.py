"""``activation_memory`` and ``chunk_size``: the same results, recorded, saved and resized as ever."""

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification, LinformerModel
from torch_linformer.models.backbone import Inputs

REVERSIBLE = {"activation_memory": "reversible", "norm_first": True}
MASK = torch.tensor([[0] * 4 + [1] * 7, [1] * 11, [1] * 5 + [0] * 6])
DYNAMIC = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1, "exact_last": 2}
KINDS = [
    {**DYNAMIC, "window": 5},
    {"sharing": "layerwise", "position_embedding": "sinusoidal"},
    {"projection": "mean", "norm_first": True, "embedding_norm": False, "type_vocab_size": 0},
    {"position_embedding": "none", "embedding_norm": False, "type_vocab_size": 0, **REVERSIBLE},
    {"attention": "full", **REVERSIBLE},
]


def step(model, ids, **options):
    """Loss and gradients with the random numbers of a seed.

    Padding stands behind the tokens: recording leaves them where they are, so dropout would hit others.
    """
    model.zero_grad()
    torch.manual_seed(3)
    mask = MASK.sort(dim=-1, descending=True).values
    outputs = model(ids, attention_mask=mask, labels=ids[:, 0] % 2, **options)
    outputs.loss.backward()
    return outputs.loss, {name: parameter.grad for name, parameter in model.named_parameters()}


def streams(model, ids):
    """The mean of the streams before the first layer and behind each, one layer at a time."""
    first = second = model.embeddings(Inputs(ids, None, None, None))
    means = [first]
    for layer in model.encoder.layers:
        x = layer.norm1(second)
        first = first + layer.self_attn(x, x, x, shared_projection=model.encoder.shared_projection)[0]
        x = layer.norm2(first)
        second = second + layer.linear2(layer.activation(layer.linear1(x)))
        means.append((first + second) / 2)
    return means


@pytest.mark.parametrize("fields", [{"attention": "full"}, {"sharing": "layerwise"}, {}], ids=str)
@pytest.mark.parametrize("chunk_size", [None, 4])
@torch.no_grad()
def test_hidden_states_of_reversible_layers_are_the_means_of_their_streams(build, token_ids, fields, chunk_size):
    model = build(LinformerModel, **REVERSIBLE, chunk_size=chunk_size, **fields)
    ids = token_ids(3, 11)
    *hidden, last = model(ids, output_hidden_states=True).hidden_states
    expected = streams(model, ids)
    assert_close(hidden, expected[:-1])
    assert_close(last, model.encoder.norm(expected[-1]))
    assert_close(model(ids).last_hidden_state, last)
    outputs = model(ids, output_attentions=True)
    assert [weights.shape[:3] for weights in outputs.attentions] == [(3, 3, 11)] * 2
    assert_close(outputs.last_hidden_state, last)


@pytest.mark.parametrize("switched", [False, True], ids=["", "gradient-checkpointing"])
@pytest.mark.parametrize("memory", ["checkpoint", "reversible"])
@pytest.mark.parametrize(
    "kind", [{"sharing": "layerwise"}, {"attention": "full"}, DYNAMIC], ids=["linformer", "full", "dynamic"]
)
def test_training_is_what_it_is_with_everything_kept(enable_checkpointing, build, token_ids, kind, memory, switched):
    # Weights that are recorded are dropped by other random numbers than those that are not.
    dropout = {"hidden_dropout_prob": 0.25, "attention_probs_dropout_prob": 0.25 if memory == "checkpoint" else 0.0}
    fields = {**kind, "norm_first": True, **dropout}
    model = build(LinformerForSequenceClassification, activation_memory=memory, **fields).train()
    ids, calls = token_ids(3, 11), []
    if memory == "checkpoint":
        kept = build(LinformerForSequenceClassification, **fields).train()
        expected = step(kept, ids)
    else:  # layers whose attention is recorded keep everything
        expected = step(model, ids, output_attentions=True)
    if switched:
        enable_checkpointing(model)
    for layer in model.linformer.encoder.layers:
        layer.linear1.register_forward_hook(lambda *_: calls.append(1))
    tolerance = {"rtol": 0, "atol": 0} if memory == "checkpoint" else {}
    assert_close(step(model, ids), expected, **tolerance)
    assert len(calls) == 4, "each of the two layers runs once more in the backward pass, and no oftener"
    if kind is DYNAMIC:  # recorded, its tokens stay where they are, and gradients are summed in another order
        tolerance = {}
    assert_close(step(model, ids, output_hidden_states=True), expected, **tolerance)


@pytest.mark.parametrize("fields", KINDS, ids=str)
@pytest.mark.parametrize("masked", [False, True])
@torch.no_grad()
def test_inference_in_chunks_is_inference(build, token_ids, fields, masked):
    whole = build(LinformerModel, **fields)
    inputs = {"input_ids": token_ids(3, 11), "attention_mask": MASK if masked else None}
    real = MASK.bool() if masked else slice(None)
    recorded = whole(**inputs, output_hidden_states=True).hidden_states
    expected = recorded[-1][real]
    for chunk_size in (1, 3, 4, 11, 50):
        model = build(LinformerModel, chunk_size=chunk_size, **fields)
        assert_close(model(**inputs).last_hidden_state[real], expected)
        embeds = model.get_input_embeddings()(inputs["input_ids"])
        before = embeds.clone()
        found = model(inputs_embeds=embeds, attention_mask=inputs["attention_mask"]).last_hidden_state
        assert_close(found[real], expected)
        assert torch.equal(embeds, before), "the caller's tensor stays as it is"
        hidden = model(**inputs, output_hidden_states=True).hidden_states
        assert_close([x[real] for x in hidden], [x[real] for x in recorded])


@torch.no_grad()
def test_positions_and_types_are_embedded_in_chunks(build, token_ids):
    ids = token_ids(3, 11)
    inputs = {"input_ids": ids, "token_type_ids": ids % 4, "position_ids": ids % 29}
    whole, chunked = build(LinformerModel), build(LinformerModel, chunk_size=4)
    assert_close(chunked(**inputs).last_hidden_state, whole(**inputs).last_hidden_state)
    lengths = []
    chunked.embeddings.word_embeddings.register_forward_hook(
        lambda module, args, output: lengths.append(output.shape[1])
    )
    chunked(**inputs)
    assert lengths == [4, 4, 3]


@pytest.mark.parametrize("attention", ["linformer", "full"])
@torch.no_grad()
def test_saved_loaded_and_resized(build, token_ids, tmp_path, attention):
    model = build(LinformerModel, **REVERSIBLE, chunk_size=4, attention=attention)
    ids = token_ids(3, 11)
    model.save_pretrained(tmp_path)
    loaded = LinformerModel.from_pretrained(tmp_path)
    assert (loaded.config.activation_memory, loaded.config.chunk_size) == ("reversible", 4)
    assert loaded.encoder.activation_memory == "reversible" and loaded.encoder.chunk_size == 4
    assert_close(loaded(ids).last_hidden_state, model(ids).last_hidden_state)
    loaded.resize_max_len(41, mode="keep")
    assert_close(loaded(ids).last_hidden_state, model(ids).last_hidden_state)
    assert loaded(token_ids(1, 41)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"activation_memory": "reversible"}, "^activation_memory='reversible' needs norm_first=True, got norm_f"),
        ({"chunk_size": 0}, r"^chunk_size must be at least 1, or None for the whole sequence at once, got 0$"),
    ],
)
def test_what_cannot_be_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        LinformerConfig(**fields)
