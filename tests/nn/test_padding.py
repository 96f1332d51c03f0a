"""Padding is exact: in the attention, in a layer of either norm order, and in a stack of layers."""

import pytest
import torch
from map_choices import BESIDE_SLOTS, PROJECTIONS, owned_maps
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.attention import FullAttention

DOUBLE = {"dtype": torch.float64}
SIZES = {"max_len": 13, "k": 5, **DOUBLE}
WIDTH, LENGTH, LENGTHS = 12, 11, (11, 7, 1, 0)
SUBJECTS = ("attention", "post-norm-layer", "stack")


class SelfAttention(torch.nn.Module):
    """An attention of a sequence to itself, called like a layer."""

    def __init__(self, attention):
        super().__init__()
        self.attention = attention

    def forward(self, x, src_key_padding_mask=None):
        return self.attention(x, x, x, src_key_padding_mask)[0]


def build(subject, **options):
    calm = {"dim_feedforward": 17, "dropout": 0.0, **SIZES, **options}
    if subject == "full":
        return SelfAttention(FullAttention(WIDTH, 4, **DOUBLE))
    if subject == "attention":
        return SelfAttention(LinformerAttention(WIDTH, 4, **{**SIZES, **options}))
    if subject == "stack":
        return LinformerEncoder(WIDTH, 4, 2, **calm, norm_first=True)
    return LinformerEncoderLayer(WIDTH, 4, **calm, norm_first=subject == "pre-norm-layer")


CASES = [
    ("full", {}),
    *(("attention", {"projection": projection, "sharing": sharing}) for projection, sharing in owned_maps()),
    *(("post-norm-layer", options) for options in ({}, *BESIDE_SLOTS.values())),
    ("pre-norm-layer", {"projection": "dynamic"}),
    *(("stack", {"projection": projection, "sharing": "layerwise"}) for projection in ("linear", "conv", "dynamic")),
    *(("stack", {"window": 3, "projection": projection}) for projection in ("linear", "max")),
    ("stack", {"chunk_size": 4}),
]


@pytest.fixture
def mask(trailing_padding):
    return trailing_padding(LENGTHS, LENGTH)


SIDES = ("behind", "in-front", "between")


def on_side(mask, side):
    """The same number of tokens a row with the padding of ``mask`` elsewhere."""
    if side == "between":
        return mask[:, torch.randperm(LENGTH, generator=torch.Generator(torch.get_default_device()).manual_seed(3))]
    return mask.flip(-1) if side == "in-front" else mask


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(("subject", "options"), CASES, ids=str)
def test_a_padded_row_is_the_row_alone_and_what_stands_at_padding_reaches_nothing(
    gradients, randomize, mask, subject, options, side
):
    """The last row is padding alone; the loss reads the outputs at padding too."""
    module, mask = randomize(build(subject, **options)), on_side(mask, side)
    clean, results = torch.randn(4, LENGTH, WIDTH, **DOUBLE), []
    poison = torch.tensor([float("nan"), float("inf"), float("-inf")]).repeat(WIDTH // 3)
    for batch in (clean, torch.where(mask[..., None], poison, clean)):
        batch.requires_grad_()
        output = module(batch, src_key_padding_mask=mask)
        to_batch, *to_parameters = gradients(output, [batch, *module.parameters()])
        assert not to_batch[mask].any()
        results.append([output, to_batch, *to_parameters])
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert torch.equal(actual, expected)
    with torch.no_grad():
        inferred = module(clean, src_key_padding_mask=mask)
        for row, real in enumerate(~mask[:3]):
            alone = module(clean[row : row + 1, real])[0]
            assert_close([results[0][0][row, real], inferred[row, real]], [alone, alone])


@pytest.mark.parametrize("window", [None, 3])
def test_layers_that_differ_ask_their_own_questions(randomize, mask, window):
    """What one layer found about the padding is not what a layer of other slots, or of another length, would find."""
    options = {"projection": "mean", "window": window, "exact_first": 1, "slot_mass": "learned"}
    model = LinformerEncoder(WIDTH, 4, 4, 17, 0.0, **{**SIZES, "k": [5, 2, 5, 1]}, **options).eval()
    model.layers[2].self_attn.resize_max_len(31)
    randomize(model)
    x, mask = torch.randn(len(LENGTHS), LENGTH, WIDTH, **DOUBLE), on_side(mask, "between")
    padded = model(x, src_key_padding_mask=mask)
    for row, real in enumerate(~mask):
        assert_close(padded[row, real], model(x[row : row + 1, real])[0])


def test_a_window_beside_padding_needs_queries_of_the_same_length(mask):
    module = LinformerAttention(WIDTH, 4, window=3, **SIZES)
    query, key = torch.randn(4, 3, WIDTH, **DOUBLE), torch.randn(4, LENGTH, WIDTH, **DOUBLE)
    with pytest.raises(ValueError, match=r"a window counts the real tokens of both: .* got 3 and 11"):
        module(query, key, key, mask)
    with pytest.raises(ValueError, match=r"compress\(\) of an attention with a window takes no key_padding_mask"):
        module.compress(key, key, mask)


def test_weights_of_padded_full_attention_are_finite(gradients, randomize, mask):
    module = randomize(FullAttention(WIDTH, 4, **DOUBLE))
    x = torch.randn(4, LENGTH, WIDTH, **DOUBLE).masked_fill(mask[..., None], float("nan")).requires_grad_()
    output, weights = module(x, x, x, mask, need_weights=True)
    assert_close(output, module(x, x, x, mask)[0])
    assert weights.isfinite().all()
    assert all(gradient.isfinite().all() for gradient in gradients(output, [x, *module.parameters()]))


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        *({"projection": projection, "window": window} for projection in PROJECTIONS for window in (None, 4)),
        {"projection": "mean", "window": 4, "exact_first": 1, "exact_last": 1},
        {"projection": "mean", "window": 4, "slot_bias": True},
        {"k": 0, "window": 4},
        {"k": 0, "window": 4, "exact_first": 1},
        "full",
    ],
    ids=str,
)
def test_a_fully_padded_row_attends_to_nothing(randomize, options, inference):
    module = FullAttention(WIDTH, 4, **DOUBLE)
    if options != "full":
        module = LinformerAttention(WIDTH, 4, **{**SIZES, **options})
    randomize(module)
    x = torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    mask = torch.tensor([[True], [False]]).expand(2, LENGTH)
    with torch.inference_mode(inference):
        output, _ = module(x, x, x, mask)
        weighted, weights = module(x, x, x, mask, need_weights=True)
    for result in (output, weighted):
        assert_close(result[0], module.out_proj.bias.expand(LENGTH, -1))
        assert (result[1] != module.out_proj.bias).any(dim=-1).all()
    assert_close(weighted, output)
    assert options == "full" or weights[1].any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("subject", SUBJECTS)
def test_a_float_mask_is_the_bool_mask(mask, subject, dtype):
    module, batch = build(subject), torch.randn(4, LENGTH, WIDTH, **DOUBLE)
    expected, lowest = module(batch, src_key_padding_mask=mask), torch.finfo(dtype).min
    for number in (float("-inf"), lowest, -1e4, max(-1e9, lowest)):
        float_mask = torch.zeros(4, LENGTH, dtype=dtype).masked_fill(mask, number)
        assert torch.equal(module(batch, src_key_padding_mask=float_mask), expected)
    assert not torch.allclose(module(batch), expected)
