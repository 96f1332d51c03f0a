"""Rows read in windows: each window is a row of its own to the encoder, whatever the padding, and in a saved model."""

import pytest
import torch
from torch.testing import assert_close
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from torch_linformer import LinformerConfig, LinformerForSequenceClassification, linearize
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import windowed_config
from torch_linformer.encoders.positions import Positions

SIZES = {
    "vocab_size": 53,
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 17,
    "max_position_embeddings": 23,
    "pad_token_id": 1,
}
WINDOW = 11
LENGTHS = [31, 20, 11, 12, 2, 1, 0, 9]  # real tokens of rows, some of no or few of their own, and exactly full windows


def made(kind, window=WINDOW, first=1, last=2, **changed):
    torch.manual_seed(0)
    original = {"bert": BertModel, "roberta": RobertaModel}[kind]
    config = {"bert": BertConfig, "roberta": RobertaConfig}[kind](**{**SIZES, **changed})
    encoder = original(config).double().eval()
    body = windowed_config(encoder, Positions.of(base_of(encoder)))
    heads = LinformerConfig(
        backbone_config=body, read_window=window, exact_first=first, exact_last=last, max_position_embeddings=999
    )
    model = LinformerForSequenceClassification(heads).double().eval()
    model.linformer.body.load_state_dict(encoder.state_dict())
    return encoder, model


def by_hand(encoder, row, first=1, last=2):
    """The states of a row's tokens, each window run by itself."""
    if len(row) < first + last:
        return encoder(row[None]).last_hidden_state[0] if len(row) else torch.zeros(0, 12).double()
    before, own, after = row[:first], row[first : len(row) - last], row[len(row) - last :]
    room = WINDOW - first - last
    parts = own.split(room) if len(own) else [own]
    states = [encoder(torch.cat([before, part, after])[None]).last_hidden_state[0] for part in parts]
    inner = [state[first : len(state) - last] for state in states]
    return torch.cat([states[0][:first], *inner, states[-1][len(states[-1]) - last :]])


@pytest.fixture(params=["bert", "roberta"])
def pair(request):
    return made(request.param)


def rows():
    return [torch.randint(2, 53, (length,)) for length in LENGTHS]


@pytest.mark.parametrize("side", ["right", "left", "between"])
@torch.no_grad()
def test_each_window_is_a_row(pair, side):
    encoder, model = pair
    torch.manual_seed(3)
    ids, mask = torch.full((len(LENGTHS), 34), 1), torch.zeros(len(LENGTHS), 34, dtype=torch.long)
    expected = torch.zeros(len(LENGTHS), 34, 12).double()
    for number, row in enumerate(rows()):
        places = torch.arange(34)
        places = {"right": places[: len(row)], "left": places[34 - len(row) :]}.get(side)
        if places is None:
            places = torch.randperm(34)[: len(row)].sort().values
        ids[number, places], mask[number, places] = row, 1
        expected[number, places] = by_hand(encoder, row)
    assert_close(model.linformer(ids, attention_mask=mask).last_hidden_state, expected)


@torch.no_grad()
def test_rows_of_a_window_are_read_as_they_are(pair):
    encoder, model = pair
    ids = torch.randint(2, 53, (3, WINDOW))
    assert_close(model.linformer(ids).last_hidden_state, encoder(ids).last_hidden_state, rtol=0, atol=0)


@pytest.mark.parametrize("several", [False, True], ids=["", "several processes"])
@torch.no_grad()
def test_short_windows_are_read_without_padding(pair, monkeypatch, several):
    """But where several processes may share the weights, each of which must call the encoder as often."""
    _, model = pair
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: several)
    ids, shapes = torch.randint(2, 53, (2, 25)), []  # windows of 11, 11 and 9 tokens
    expected = [model.linformer(row[None]).last_hidden_state for row in ids]
    model.linformer.body.register_forward_pre_hook(
        lambda body, args, given: shapes.append(tuple(given["input_ids"].shape)), with_kwargs=True
    )
    assert_close(model.linformer(ids).last_hidden_state, torch.cat(expected))
    assert shapes == ([(6, 11)] if several else [(2, 9), (4, 11)])
    mask = (torch.arange(25) < 7).long().expand(2, -1)
    found = model.linformer(ids, attention_mask=mask).last_hidden_state[:, :7]
    assert_close(found, model.linformer(ids[:, :7]).last_hidden_state)
    assert shapes[-2:] == [(2, 11 if several else 7), (2, 7)]


@torch.no_grad()
def test_hidden_states_of_all_layers_are_joined(pair):
    _, model = pair
    ids = torch.randint(2, 53, (2, 25))
    found = model(ids, output_hidden_states=True)
    assert [tuple(states.shape) for states in found.hidden_states] == [(2, 25, 12)] * 3
    assert_close(found.hidden_states[-1], model.linformer(ids).last_hidden_state)
    with pytest.raises(ValueError, match="reads 11 tokens at once: no attention goes over all 25"):
        model(ids, output_attentions=True)


@torch.no_grad()
def test_embeddings_instead_of_ids(pair):
    encoder, model = pair
    if isinstance(encoder, RobertaModel):  # which tells padding by its id
        pytest.skip("RoBERTa counts positions by ids")
    ids = torch.randint(2, 53, (2, 25))
    states = model.linformer(inputs_embeds=encoder.get_input_embeddings()(ids)).last_hidden_state
    assert_close(states, model.linformer(ids).last_hidden_state)


def test_gradients_reach_every_token(pair):
    _, model = pair
    words = model.get_input_embeddings().weight
    model(torch.arange(2, 33)[None]).logits.sum().backward()
    assert (words.grad[2:33].abs().sum(dim=1) > 0).all()


@torch.no_grad()
def test_saved_opened_and_exported(tmp_path):
    _, model = made("bert")
    model.save_pretrained(tmp_path)
    opened = LinformerForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    ids, mask = torch.randint(2, 53, (2, 30)), torch.ones(2, 30, dtype=torch.long)
    assert_close(opened(ids).logits, model(ids).logits, rtol=0, atol=0)
    assert opened.config.longest_input == 999 and opened.config.read_window == WINDOW
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length")
    shapes = {"input_ids": {0: batch, 1: length}, "attention_mask": {0: batch, 1: length}}
    program = torch.export.export(model, (), {"input_ids": ids, "attention_mask": mask}, dynamic_shapes=shapes)
    mask[1, 17:] = 0
    for columns in (30, 12, WINDOW, 3):
        some = {"input_ids": ids[:, :columns], "attention_mask": mask[:, :columns]}
        assert_close(program.module()(**some).logits, model(**some).logits)


def test_what_cannot_be():
    with pytest.raises(ValueError, match="read_window=24 is more than the 23 tokens that BertModel reads at once"):
        made("bert", window=24)
    with pytest.raises(ValueError, match="read_window=3 has no room beside exact_first=1 and exact_last=2"):
        made("bert", window=3)
    with pytest.raises(ValueError, match=r"read_window=8 is for the encoder of a backbone_config: leave it out"):
        LinformerConfig(read_window=8)
    linear = linearize(BertModel(BertConfig(**SIZES)), k=4, window=4).config
    with pytest.raises(ValueError, match="this one is linear and reads rows in one pass: leave it out"):
        LinformerConfig(backbone_config=linear, read_window=8)
