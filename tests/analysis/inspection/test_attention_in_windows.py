"""A model that reads in windows, looked into: its attention as a band, and what its answer draws on."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel

from torch_linformer import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.analysis.inspection.attention_maps import attention_of_windows
from torch_linformer.analysis.inspection.relevance import integrated_gradients
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import windowed_config
from torch_linformer.encoders.positions import Positions
from torch_linformer.models.row_windows import windows_of

WINDOW, HEADS = 9, 2


@pytest.fixture
def model():
    torch.manual_seed(0)
    sizes = {"vocab_size": 53, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": HEADS}
    encoder = BertModel(BertConfig(**sizes, intermediate_size=17, max_position_embeddings=23))
    config = LinformerConfig(
        backbone_config=windowed_config(encoder, Positions.of(base_of(encoder))),
        read_window=WINDOW,
        exact_first=1,
        exact_last=1,
        max_position_embeddings=999,
        num_labels=3,
    )
    return LinformerForSequenceClassification(config).eval()


@pytest.mark.parametrize("length", [31, 9, 6, 17])
@torch.no_grad()
def test_the_band_is_the_attention_of_each_window(model, length):
    ids = torch.randint(1, 53, (1, length))
    for layer, found in attention_of_windows(model.linformer, ids, [0, 1]).items():
        assert found.exact.tolist() == [0, length - 1] and found.reach == WINDOW - 1
        expected = torch.zeros(HEADS, length, length)
        body = model.linformer.body
        body.set_attn_implementation("eager")
        own = torch.arange(1, length - 1)
        for number, part in enumerate(parts := own.split(WINDOW - 2)):
            places = torch.cat([torch.tensor([0]), part, torch.tensor([length - 1])])
            weights = body(ids[:, places], output_attentions=True).attentions[layer][0]
            for row, place in enumerate(places.tolist()):
                if (place == 0 and number) or (place == length - 1 and number < len(parts) - 1):
                    continue  # the first window tells of the first token, the last one of the last
                expected[:, place, places] = weights[:, row]
        for head in range(HEADS):
            assert_close(found.token_map(head), expected[head])


@pytest.mark.parametrize("length", [31, 7])
def test_what_tokens_add_sums_to_the_change_of_the_score(model, length):
    ids = torch.randint(1, 53, (1, length))
    of_text = torch.ones(1, length, dtype=torch.bool)
    of_text[:, [0, -1]] = False
    body = model.linformer.body
    words, windows = body.get_input_embeddings(), windows_of(model.config, ids)
    assert (windows is None) == (length <= WINDOW)
    relevance = integrated_gradients(lambda: model(ids).logits[0], body.embeddings, words, of_text, windows)
    assert relevance.values.shape == (3, length) and torch.equal(relevance.scores, model(ids).logits[0].detach())
    assert_close(relevance.values.sum(-1), relevance.scores - relevance.blank_scores, atol=2e-3, rtol=0.02)
    assert (relevance.values[:, 1:-1].abs().sum(0) > 0).all()
