"""attn_implementation="linformer" on models of transformers themselves: means of segments, with their mass."""

import copy

import pytest
import torch
import transformers
from encoders.families import (
    OTHERS,
    TEXTS,
    TOKENS,
    base_class,
    hidden,
    inputs_of,
    linear,
    original,
    padded,
    padded_mask,
)
from torch.testing import assert_close
from transformers import AutoModel

NAMED = {family.name: family for family in (*TEXTS, *OTHERS)}
THREE = [NAMED["Bert"], NAMED["ModernBert"], NAMED["ViT"]]
EXACT = {"rtol": 0, "atol": 1e-9}

three_families = pytest.mark.parametrize("family", THREE, ids=repr)


@pytest.fixture(params=["from_pretrained", "from_config", "set_attn_implementation"])
def plain(request, tmp_path):
    """A function: a plain model with the attention, chosen in one of three ways."""

    def make(family):
        whole = original(family)
        match request.param:
            case "from_pretrained":
                whole.save_pretrained(tmp_path)
                return AutoModel.from_pretrained(tmp_path, attn_implementation="linformer").eval()
            case "from_config":
                model = AutoModel.from_config(copy.deepcopy(whole.config), attn_implementation="linformer").double()
                model.load_state_dict(whole.state_dict())
                return model.eval()
        model = copy.deepcopy(whole)
        model.set_attn_implementation("linformer")
        return model

    return make


@torch.no_grad()
@three_families
def test_it_is_the_class_of_transformers(family, plain):
    model, inputs = plain(family), inputs_of(family)
    assert type(model) is base_class(family) and model.config._attn_implementation == "linformer"
    output = hidden(model, **inputs)
    assert output.isfinite().all() and output.shape == hidden(original(family), **inputs).shape


@torch.no_grad()
@pytest.mark.parametrize("family", THREE[:2], ids=repr)
def test_a_padded_row_is_the_row_alone(family, plain):
    model, mask = plain(family), padded_mask()
    batch = padded(family, mask)
    output = hidden(model, **batch)
    assert output.isfinite().all()
    for row, tokens in enumerate(TOKENS[:-1]):
        positions = torch.arange(tokens)[None] + family.first
        alone = hidden(model, input_ids=batch["input_ids"][row, mask[row] == 1][None], position_ids=positions)
        assert_close(output[row, mask[row] == 1], alone[0], **EXACT)


@torch.no_grad()
@pytest.mark.parametrize("family", THREE[:2], ids=repr)
def test_it_is_means_of_segments_and_a_window(family):
    """As a linear encoder has them, with nothing learned."""
    whole = copy.deepcopy(original(family))
    means = linear(whole, k=50, window=128, exact_below=0, projection="mean", max_length=50)
    whole.set_attn_implementation("linformer")
    batch = padded(family, padded_mask())
    real = batch["attention_mask"] == 1
    assert_close(hidden(whole, **batch)[real], hidden(means, **batch)[real], **EXACT)


@torch.no_grad()
def test_the_definition():
    """Slots are means of equal segments with log of their tokens beside their scores, in one softmax with a window."""
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 1536, 8, dtype=torch.float64)
    module = torch.nn.Module()
    module.config = transformers.BertConfig(max_position_embeddings=1536)
    attend = transformers.AttentionInterface()["linformer"]
    output, weights = attend(module, query, key, value, None, output_attentions=True)
    width, reach = 6, 64  # ⌈1536 / 256⌉ tokens a slot
    slots = [(key[:, :, at : at + width].mean(2), value[:, :, at : at + width].mean(2)) for at in range(0, 1536, width)]
    keys, values = (torch.stack(x, dim=2) for x in zip(*slots, strict=True))
    positions = torch.arange(1536)
    far = (positions[:, None] - positions).abs() > reach
    local = (query @ key.transpose(-2, -1) / 8**0.5).masked_fill(far, float("-inf"))
    first_and_last = torch.tensor([0, 1535])
    local[..., first_and_last] = (query @ key[:, :, first_and_last].transpose(-2, -1)) / 8**0.5
    scores = torch.cat([query @ keys.transpose(-2, -1) / 8**0.5 + torch.tensor(float(width)).log(), local], dim=-1)
    expected = scores.softmax(-1) @ torch.cat([values, value], dim=2)
    assert_close(output.transpose(1, 2), expected, rtol=0, atol=1e-7)  # the logarithms are float32
    assert weights.shape[-1] == 256 + 2 + 2 * reach + 1
