"""The same encoder with other attention: every weight but those of the maps to slots is the same."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from torch_linformer.models import LinformerConfig, LinformerForMaskedLM, LinformerModel
from torch_linformer.models.convert import from_bert
from torch_linformer.models.with_attention import segment_means, with_attention

LENGTH = 12
SIZES = {
    "vocab_size": 20,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 8,
    "k": 2,
}


@pytest.fixture(scope="module")
def bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=LENGTH,
        initializer_range=0.3,
    )
    return BertModel(config).double().eval()


@pytest.fixture(scope="module")
def imported(bert):
    return from_bert(bert, k=3).double().eval()


@pytest.fixture(scope="module")
def batch():
    ids = torch.randint(1, 50, (3, LENGTH), generator=torch.Generator(torch.get_default_device()).manual_seed(1))
    mask = torch.ones_like(ids)
    mask[1, 7:] = 0
    return {"input_ids": ids, "attention_mask": mask}


def hidden_of(model, batch):
    with torch.no_grad():
        hidden = model(**batch, output_hidden_states=True).hidden_states
    return [x[batch["attention_mask"].bool()] for x in hidden]


def test_with_full_attention_it_is_the_bert_that_it_came_from(bert, imported, batch):
    full = with_attention(imported, attention="full")
    assert full.config.attention == "full" and not full.training
    assert_close(hidden_of(full, batch), hidden_of(bert, batch))


@pytest.mark.parametrize("projection", ["mean", "linear"])
def test_with_a_slot_for_every_token_it_is_that_bert_too(bert, imported, batch, projection):
    batch = {name: x[:1] for name, x in batch.items()}  # under learned maps padding takes its share
    model = with_attention(imported, k=LENGTH, projection=projection)
    assert_close(hidden_of(model, batch), hidden_of(bert, batch))


@pytest.mark.parametrize("sharing", ["none", "headwise", "kv", "layerwise"])
def test_learned_maps_begin_as_means_of_segments(imported, batch, sharing):
    batch = {name: x[:1] for name, x in batch.items()}
    model = with_attention(imported, k=5, projection="linear", sharing=sharing)
    assert model.config.k == 4  # of 3 tokens each
    assert_close(hidden_of(model, batch), hidden_of(with_attention(imported, k=4), batch))
    learned = {name for name, _ in model.named_parameters()} - {name for name, _ in imported.named_parameters()}
    assert len(learned) == {"none": 4, "headwise": 4, "kv": 2, "layerwise": 1}[sharing]


def test_a_window_of_all_tokens_and_slots_of_all_of_them_again(imported, batch):
    """Two kinds of keys in one softmax; the window's are exact, so a wide one alone would be full attention."""
    narrow, wide = (with_attention(imported, k=1, window=window) for window in (2, 2 * LENGTH))
    full = hidden_of(with_attention(imported, attention="full"), batch)
    errors = [(hidden_of(model, batch)[-1] - full[-1]).abs().mean() for model in (narrow, wide)]
    assert errors[1] < errors[0] / 2


def test_options_that_the_new_attention_does_not_have_are_left_behind():
    torch.manual_seed(0)
    model = LinformerModel(LinformerConfig(**SIZES, sharing="kv", window=3, slot_bias=True, length_scaling=False))
    full = with_attention(model, attention="full").config
    assert (full.window, full.sharing, full.slot_bias, full.length_scaling) == (None, "headwise", False, True)
    mean = with_attention(model, projection="mean").config
    assert (mean.window, mean.sharing, mean.slot_bias, mean.length_scaling) == (3, "headwise", True, True)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention": "full", "window": 4}, "^window=4 has no effect on full attention: leave it at None$"),
        ({"projection": "mean", "sharing": "kv"}, "^sharing='kv' has no effect on slots made by pro"),
        ({"attention": "fast"}, "^attention must be one of linformer, full, got 'fast'$"),
    ],
)
def test_options_that_the_new_attention_does_not_have_are_refused_when_given(imported, changes, message):
    with pytest.raises(ValueError, match=message):
        with_attention(imported, **changes)


def test_segment_means_written_out():
    third, half = 1 / 3, 1 / 2
    expected = [[third, 0], [third, 0], [third, 0], [0, half], [0, half]]
    assert_close(segment_means(5, 3), torch.tensor(expected, dtype=torch.float64))


def test_positions_beyond_those_there_are_repeat_them(imported):
    longer = with_attention(imported, max_position_embeddings=30, k=6)
    positions, own = (model.embeddings.position_embeddings.weight for model in (longer, imported))
    assert longer.config.max_position_embeddings == 30
    assert_close(positions, torch.cat([own, own, own[:6]]))
    assert longer(torch.ones(1, 30, dtype=torch.long)).last_hidden_state.shape == (1, 30, 12)


def test_k_of_each_layer(imported):
    assert with_attention(imported, k=[2, 12]).config.k == [2, 12]


def test_the_original_is_left_alone_and_the_head_comes_along():
    torch.manual_seed(0)
    config = LinformerConfig(**SIZES)
    model = LinformerForMaskedLM(config).eval()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    copy = with_attention(model, attention="full", hidden_dropout_prob=0.0)
    assert isinstance(copy, LinformerForMaskedLM) and model.config.attention == "linformer"
    assert_close(copy.lm_head.dense.weight, model.lm_head.dense.weight)
    with torch.no_grad():
        for parameter in copy.parameters():
            parameter.add_(1.0)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_causal_model_is_refused():
    config = LinformerConfig(**SIZES, causal=True, position_embedding="rotary")
    with pytest.raises(ValueError, match="causal"):
        with_attention(LinformerModel(config), attention="full")
