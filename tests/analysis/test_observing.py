"""The context mappings that are shown are those the models themselves say they have."""

import weakref

import pytest
import torch
from transformers import (
    DebertaV2Config,
    DebertaV2Model,
    FNetConfig,
    FNetModel,
    Gemma2Config,
    Gemma2Model,
    T5Config,
    T5Model,
)

from torch_linformer.analysis.observing import check_readable, observe_heads
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.nn.layer import TransformerLayer

NAMES = [
    "bert",
    "roberta",
    "gpt2",
    "modernbert",
    "llama, two key heads",
    "our twin",
    "our twin in chunks",
    "our causal twin",
]
SIZES = {
    "vocab_size": 50,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 41,
    "max_position_embeddings": 64,
}


@pytest.mark.parametrize("name", NAMES)
def test_weights_are_those_that_the_model_returns(name, lively, draw_documents, eager_weights):
    model, (document,) = lively(name), draw_documents(1, 37)
    shown = {}
    check_readable(model, document.unsqueeze(0))
    layers = observe_heads(model, document.unsqueeze(0), lambda head: shown.update({(head.layer, head.number): head}))
    expected = eager_weights(model, document)
    assert layers == len(expected) == model.config.num_hidden_layers
    assert sorted(shown) == [(layer, head) for layer in range(layers) for head in range(len(expected[0]))]
    for (layer, number), head in shown.items():
        torch.testing.assert_close(head.weights, expected[layer][number], rtol=1e-5, atol=1e-6)
        # Queries, keys, values and mask are those that the weights come from.
        scores = head.scaling * head.query @ head.key.mT + (0 if head.mask is None else head.mask)
        torch.testing.assert_close(torch.softmax(scores, dim=-1), head.weights)
        assert head.value.shape[0] == 37


@pytest.mark.parametrize("name", ["our slots, one P a head", "our slots, one w"])
def test_a_models_own_slots(name, lively, draw_documents):
    model, (document,) = lively(name), draw_documents(1, 37)
    given, shown = [], {}
    handles = [
        layer.self_attn.out_proj.register_forward_pre_hook(lambda module, args: given.append(args[0][0]))
        for layer in model.encoder.layers
    ]
    check_readable(model, document.unsqueeze(0))
    observe_heads(model, document.unsqueeze(0), lambda head: shown.update({(head.layer, head.number): head}))
    for handle in handles:
        handle.remove()
    for (layer, number), head in shown.items():
        torch.testing.assert_close(head.own, given[layer][:, 10 * number : 10 * number + 10])
        torch.testing.assert_close(torch.softmax(head.scaling * head.query @ head.key.mT, dim=-1), head.weights)
        assert not torch.allclose(head.own, head.weights @ head.value, rtol=0.01)
    assert len(shown) == 6


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert", "our twin", "our twin in chunks"])
def test_the_model_is_afterwards_as_before(name, lively, draw_documents):
    model, (document,) = lively(name), draw_documents(1, 23)
    before, implementation = model(input_ids=document.unsqueeze(0))[0], model.config._attn_implementation
    observe_heads(model, document.unsqueeze(0), lambda head: None)
    assert model.config._attn_implementation == implementation
    assert not any(module._forward_pre_hooks for module in model.modules())
    chunks = {module.chunk_size for module in model.modules() if isinstance(module, TransformerLayer)}
    assert chunks == ({9} if name == "our twin in chunks" else {None} if name == "our twin" else set())
    assert torch.equal(model(input_ids=document.unsqueeze(0))[0], before)


def test_an_error_of_who_looks_leaves_the_model_as_it_was(lively, draw_documents):
    model, (document,) = lively("bert"), draw_documents(1, 23)
    before = model.config._attn_implementation
    with pytest.raises(ZeroDivisionError):
        observe_heads(model, document.unsqueeze(0), lambda head: 1 / 0)
    assert model.config._attn_implementation == before


@pytest.mark.parametrize("name", ["bert", "our twin", "our causal twin"])
def test_one_context_mapping_is_in_memory_at_a_time(name, lively, draw_documents):
    model, (document,) = lively(name), draw_documents(1, 23)
    seen, most = [], 0

    def look(head):
        nonlocal most
        seen.append(weakref.ref(head.weights))
        most = max(most, sum(each() is not None for each in seen))

    observe_heads(model, document.unsqueeze(0), look)
    assert len(seen) == 2 * model.config.num_attention_heads
    assert most <= 2  # the one that is shown, and the last one until its name is used again


REFUSED = {
    "softcap": (
        lambda: Gemma2Model(Gemma2Config(**SIZES, num_key_value_heads=3, head_dim=8, attn_logit_softcapping=0.05)),
        "a gemma2 model computes its attention in a way of its own: with softmax(Q Kᵀ / √D) V its hidden states differ",
    ),
    "no attention": (
        lambda: FNetModel(
            FNetConfig(
                vocab_size=50, hidden_size=24, num_hidden_layers=2, intermediate_size=41, max_position_embeddings=64
            )
        ),
        "a fnet model has no attention weights that can be read",
    ),
    "another interface": (
        lambda: DebertaV2Model(DebertaV2Config(**SIZES)),
        "the attention of a deberta-v2 model cannot be read: it does not go through the AttentionInterface",
    ),
    "encoder-decoder": (
        lambda: T5Model(T5Config(vocab_size=50, d_model=24, d_kv=8, num_layers=2, num_heads=3)),
        "a t5 model is an encoder-decoder; give only an encoder or a decoder",
    ),
    "linformer": (
        lambda: LinformerModel(LinformerConfig(**SIZES, k=8)),
        "its attention is N × K already; a spectrum needs ordinary attention, such as that of its twin: linformer",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_model_whose_attention_cannot_be_read(name, draw_documents, lively):
    make, message = REFUSED[name]
    with pytest.raises(ValueError) as error:
        check_readable(lively(make()), draw_documents(1, 23)[0].unsqueeze(0))
    assert str(error.value).startswith(message)
