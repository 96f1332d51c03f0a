"""Tokens that every query sees themselves, mass of slots, and no slots at all: one softmax, by its definition."""

import pytest
import torch
from map_choices import BESIDE_SLOTS, SHARINGS, owned_maps
from torch.testing import assert_close

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.softmax import find_exact_tokens
from torch_linformer.nn import LinformerAttention
from torch_linformer.nn.attention import FullAttention

DOUBLE = {"dtype": torch.float64}
WIDTH, LENGTH, MAX_LEN, K = 12, 7, 11, 3
LENGTHS = [LENGTH, 4, 2, 1, 0]
OPTIONS = {
    **BESIDE_SLOTS,
    **{
        f"{projection}-{sharing}-{heads}-and-window": {
            "projection": projection,
            "sharing": sharing,
            "num_kv_heads": heads,
            "window": 4,
        }
        for heads, sharings in ((2, SHARINGS), (4, ("headwise",)))
        for projection, sharing in owned_maps(sharings=sharings)
    },
}


def attention(kind, **options):
    return LinformerAttention(WIDTH, 4, **{"max_len": MAX_LEN, "k": K, **DOUBLE, **OPTIONS[kind], **options})


@pytest.mark.parametrize("kind", OPTIONS)
def test_output_weights_and_gradients_are_those_of_the_definition(
    gradients, literal_attention, randomize, trailing_padding, kind
):
    module, mask = randomize(attention(kind)), trailing_padding(LENGTHS, LENGTH)
    x = torch.randn(len(LENGTHS), LENGTH, WIDTH, requires_grad=True, **DOUBLE)
    for side in (None, mask, mask.flip(-1), mask[:, torch.randperm(LENGTH)]):
        real = torch.ones_like(mask) if side is None else ~side
        clean = x.masked_fill(~real[..., None], 0.0)
        expected, expected_weights = literal_attention(module, clean, clean, clean, side)
        wanted = [x, *module.parameters()]
        expected_gradients = gradients(expected[real], wanted)
        for need_weights in (False, True):
            output, weights = module(x, x, x, side, need_weights=need_weights, average_attn_weights=False)
            assert output.isfinite().all()
            assert_close(output[real], expected[real])
            assert_close(gradients(output[real], wanted), expected_gradients)
        assert_close(weights.transpose(1, 2)[real], expected_weights.transpose(1, 2)[real])


def test_a_slot_of_m_equal_tokens_with_its_mass_is_m_tokens():
    """Means of four equal tokens with fixed mass give what ordinary attention to all of them gives."""
    full = FullAttention(WIDTH, 4, **DOUBLE)
    module = LinformerAttention(WIDTH, 4, 20, 5, projection="mean", slot_mass="fixed", **DOUBLE)
    module.load_state_dict(full.state_dict(), strict=False)
    for repeats in ([4, 4, 4, 4, 4], [4, 4, 3]):  # the last window may be partly filled
        x = torch.cat([torch.randn(2, 1, WIDTH, **DOUBLE).expand(-1, count, -1) for count in repeats], dim=1)
        assert_close(module(x, x, x)[0], full(x, x, x)[0])


def test_exact_tokens_of_a_whole_row_and_a_slot_of_zeros():
    """With every token exact, and none of the weight on slots, this is ordinary attention."""
    full = FullAttention(WIDTH, 4, **DOUBLE)
    module = LinformerAttention(
        WIDTH, 4, MAX_LEN, K, projection="dynamic", slot_mass="learned", exact_first=4, exact_last=3, **DOUBLE
    )
    module.load_state_dict(full.state_dict(), strict=False)
    torch.nn.init.constant_(module.context.slot_terms.mass, -1e9)
    for length in (7, 5, 3, 1):
        x = torch.randn(2, length, WIDTH, **DOUBLE)
        assert_close(module(x, x, x)[0], full(x, x, x)[0])


def test_a_window_without_slots_sees_what_is_near_and_nothing_else():
    """Exact tokens far away are seen too, once each."""
    module = attention("no-slots")
    x = torch.randn(1, MAX_LEN, WIDTH, requires_grad=True, **DOUBLE)
    output, weights = module(x, x, x, need_weights=True)
    assert weights.shape == (1, MAX_LEN, 3 + 5)
    (of_inputs,) = torch.autograd.grad(output[0, 6].sum(), x)
    assert of_inputs[0].any(dim=-1).nonzero().flatten().tolist() == [0, 1, 4, 5, 6, 7, 8, 10]


def test_places_of_few_tokens():
    """Three first and two last ones of rows of five, of two and of no tokens: what is both is a first one."""
    padding = Padding(torch.arange(5) >= torch.tensor([[5], [2], [0]]), in_order=True)
    places = find_exact_tokens(torch.zeros(3, 5, 1), padding, 3, 2)
    assert places.positions.tolist() == [[0, 1, 2, 3, 4], [0, 1, 0, 0, 0], [0, 0, 0, 0, 0]]
    assert places.missing.mask.tolist() == [[False] * 5, [False, False, True, True, True], [True] * 5]
    assert find_exact_tokens(torch.zeros(3, 5, 1), None, 3, 2).missing is None
    short = find_exact_tokens(torch.zeros(3, 4, 1), None, 3, 2)
    assert short.missing.mask.tolist() == [[False, False, False, True, False]]
