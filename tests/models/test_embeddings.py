"""What enters the first layer: word, position and type of each real token, normalised."""

import math

import pytest
import torch
from torch.nn import functional as F
from torch.testing import assert_close

from torch_linformer.models import LinformerModel
from torch_linformer.models.backbone import sinusoids


@pytest.fixture
def first_hidden_states(build, token_ids):
    """A function: a model and the input of its first layer, for 2 rows of 11 tokens."""

    @torch.no_grad()
    def enter(model_fields, **inputs):
        model = build(LinformerModel, **model_fields)
        if "inputs_embeds" not in inputs:
            inputs["input_ids"] = token_ids(2, 11)
        return model, model(**inputs, output_hidden_states=True).hidden_states[0]

    return enter


def by_hand(model, ids, types, positions):
    """The embeddings of one row of real tokens, one token at a time."""
    weights = model.embeddings.state_dict()
    tokens = []
    for token, kind, position in zip(ids, types, positions, strict=True):
        vector = weights["word_embeddings.weight"][token] + weights["token_type_embeddings.weight"][kind]
        if model.config.position_embedding == "learned":
            vector = vector + weights["position_embeddings.weight"][position]
        elif model.config.position_embedding == "sinusoidal":
            angles = [position / 10000 ** (2 * i / 15) for i in range(8)]
            waves = [*map(math.sin, angles), *map(math.cos, angles)]
            vector = vector + torch.tensor(waves[:15])
        tokens.append(F.layer_norm(vector, (15,), weights["norm.weight"], weights["norm.bias"], 1e-5))
    return torch.stack(tokens)


# Sinusoids are computed in float32: the angle of position 28 carries a rounding of up to 28 · 2⁻²⁴.
TOLERANCE = {"learned": 1e-11, "sinusoidal": 8 * 28 * 2**-24, "none": 1e-11}
POSITION_EMBEDDINGS = pytest.mark.parametrize("position_embedding", TOLERANCE)


@POSITION_EMBEDDINGS
def test_positions_count_real_tokens(first_hidden_states, token_ids, position_embedding):
    mask = torch.tensor([[0, 0, 0, 1, 1, 0, 1, 1, 1, 0, 0], [1] * 11])
    model, hidden = first_hidden_states({"position_embedding": position_embedding}, attention_mask=mask)
    ids = token_ids(2, 11)
    for row, tokens in ((0, 5), (1, 11)):
        real = mask[row] == 1
        expected = by_hand(model, ids[row, real], [0] * tokens, range(tokens))
        assert_close(hidden[row, real], expected, rtol=0, atol=TOLERANCE[position_embedding])


@POSITION_EMBEDDINGS
@pytest.mark.parametrize("masked", [False, True])
def test_explicit_positions_and_types(first_hidden_states, token_ids, position_embedding, masked):
    positions = torch.stack([torch.arange(28, 17, -1), torch.arange(0, 22, 2)])
    types = torch.arange(22).view(2, 11) % 4
    mask = torch.ones(2, 11, dtype=torch.long)
    if masked:
        mask[0, ::3] = 0
    model, hidden = first_hidden_states(
        {"position_embedding": position_embedding},
        position_ids=positions,
        token_type_ids=types,
        attention_mask=mask if masked else None,
    )
    ids = token_ids(2, 11)
    for row in range(2):
        real = mask[row] == 1
        expected = by_hand(model, ids[row, real], types[row, real], positions[row, real].tolist())
        assert_close(hidden[row, real], expected, rtol=0, atol=TOLERANCE[position_embedding])


@POSITION_EMBEDDINGS
@pytest.mark.parametrize("masked", [False, True])
def test_one_row_of_positions_serves_all(first_hidden_states, position_embedding, masked):
    fields = {"position_embedding": position_embedding}
    inputs = {"attention_mask": torch.ones(2, 11)} if masked else {}
    one_row = torch.arange(5, 16).unsqueeze(0)
    _, shared = first_hidden_states(fields, position_ids=one_row, **inputs)
    _, repeated = first_hidden_states(fields, position_ids=one_row.repeat(2, 1), **inputs)
    assert torch.equal(shared, repeated)


def test_without_types_there_is_no_type_embedding(first_hidden_states):
    model, hidden = first_hidden_states({"type_vocab_size": 0})
    _, with_types = first_hidden_states({"type_vocab_size": 0}, token_type_ids=torch.ones(2, 11, dtype=torch.long))
    assert not [name for name, _ in model.named_parameters() if "type" in name]
    assert torch.equal(hidden, with_types)


@pytest.mark.parametrize("width", [1, 2, 15, 16])
def test_sinusoids(width):
    waves = sinusoids(torch.tensor([[0, 1, 28], [4095, 7, 1]]), width)
    half = math.ceil(width / 2)
    assert waves.shape == (2, 3, width)
    for (row, column), position in {(0, 0): 0, (0, 1): 1, (0, 2): 28, (1, 1): 7}.items():
        for i in range(width):
            angle = position / 10000 ** (2 * (i % half) / width)
            expected = math.sin(angle) if i < half else math.cos(angle)
            assert waves[row, column, i].item() == pytest.approx(expected, abs=1e-5)
    # The largest angle is exact to a few float32 roundings of itself.
    assert waves[1, 0, 0].item() == pytest.approx(math.sin(4095), abs=4095 * 2**-22)
