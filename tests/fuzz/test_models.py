"""Models: what is recorded changes no result, and every row is what it would be alone, wherever its padding stands."""

import torch
from fuzz_cases import padding_of
from fuzz_strategies import FUZZ, PROJECTIONS, SEEDS, row_of
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from torch_linformer.models import LinformerConfig, LinformerModel

SIZES = {
    "vocab_size": 40,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 8,
    "max_position_embeddings": 16,
}


@st.composite
def configurations(draw):
    """Options of any kind of attention."""
    causal, window = draw(st.booleans()), draw(st.none() | st.integers(1, 6))
    options = {"k": draw(st.integers(1, 5)), "causal": causal, "norm_first": draw(st.booleans())}
    if causal:
        options["position_embedding"] = draw(st.sampled_from(["learned", "rotary", "sinusoidal"]))
    if draw(st.integers(0, 4)) == 0:
        return {**options, "attention": "full"}
    options |= {} if window is None else {"window": window}
    options |= {"exact_first": 2} if draw(st.booleans()) else {}
    return options if causal else {**options, "projection": draw(st.sampled_from(PROJECTIONS))}


@st.composite
def batches(draw):
    """Rows of one length, of 1 to 13 positions, each with a token."""
    length = draw(st.integers(1, 13))
    rows = row_of(length).filter(lambda row: "x" in row)
    return tuple(draw(rows) for _ in range(draw(st.integers(1, 3))))


@FUZZ
@given(configurations(), batches(), SEEDS)
@torch.no_grad()
def test_recorded_states_are_those_of_the_row_alone(options, rows, seed):
    torch.manual_seed(seed)
    model = LinformerModel(LinformerConfig(**SIZES, **options)).double().eval()
    for parameter in model.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.3)
    real = ~padding_of(rows)
    ids = torch.randint(1, 40, real.shape)
    plain = model(ids, attention_mask=real.long()).last_hidden_state
    recorded = model(ids, attention_mask=real.long(), output_hidden_states=True, output_attentions=True)
    assert_close(recorded.last_hidden_state[real], plain[real])
    for row, tokens in enumerate(real):
        alone = model(ids[row, tokens][None], output_hidden_states=True)
        assert_close(plain[row, tokens], alone.last_hidden_state[0])
        for states, expected in zip(recorded.hidden_states, alone.hidden_states, strict=True):
            assert_close(states[row, tokens], expected[0])
