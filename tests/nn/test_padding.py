"""Padding is exact: in the attention, in a layer of either norm order, and in a stack of layers."""

import pytest
import torch
from map_choices import PROJECTIONS, SHARINGS, owned_maps
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.attention import FullAttention

WINDOWED = ("conv", "mean", "max")
SIZES = {"max_len": 13, "k": 5, "dtype": torch.float64}
WIDTH, LENGTH, LENGTHS = 12, 11, (11, 7, 1, 0)


class SelfAttention(torch.nn.Module):
    """`LinformerAttention` of a sequence to itself, called like a layer."""

    def __init__(self, **options):
        super().__init__()
        self.attention = LinformerAttention(WIDTH, 4, **options)

    def forward(self, x, src_key_padding_mask=None):
        return self.attention(x, x, x, src_key_padding_mask)[0]


def build(subject, **options):
    calm = {"dim_feedforward": 17, "dropout": 0.0, **SIZES, **options}
    if subject == "attention":
        return SelfAttention(**SIZES, **options)
    if subject == "stack":
        return LinformerEncoder(WIDTH, 4, 2, **calm, norm_first=True)
    return LinformerEncoderLayer(WIDTH, 4, **calm, norm_first=subject == "pre-norm-layer")


CASES = [
    pytest.param(subject, {"projection": projection, "sharing": sharing}, id=f"{subject}-{projection}-{sharing}")
    for subject in ("attention", "post-norm-layer", "pre-norm-layer", "stack")
    for projection, sharing in owned_maps(sharings=(*SHARINGS, "layerwise") if subject == "stack" else SHARINGS)
    if subject in ("attention", "stack") or sharing == "headwise"
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
@pytest.mark.parametrize(("subject", "options"), CASES)
def test_each_row_of_a_padded_batch_equals_the_row_alone(randomize, mask, subject, options, side):
    module, mask = randomize(build(subject, **options)), on_side(mask, side)
    batch = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    padded = module(batch, src_key_padding_mask=mask)
    for row in range(3):
        real = ~mask[row]
        assert_close(padded[row, real], module(batch[row : row + 1, real])[0])


@pytest.mark.parametrize("side", SIDES[1:])
@pytest.mark.parametrize("options", [{"window": 3}, {"window": 3, "projection": "max"}, {"chunk_size": 4}], ids=str)
def test_padding_of_any_side_is_exact_in_chunks_and_with_a_window(gradients, randomize, mask, options, side):
    module, mask = randomize(build("stack", **options)), on_side(mask, side)
    batch = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    for grad in (True, False):
        with torch.set_grad_enabled(grad):
            padded = module(batch.masked_fill(mask[..., None], float("nan")), src_key_padding_mask=mask)
            assert padded.isfinite().all()
            for row in range(3):
                real = ~mask[row]
                assert_close(padded[row, real], module(batch[row : row + 1, real])[0])


@pytest.mark.parametrize("side", SIDES[1:])
@pytest.mark.parametrize("window", [None, 3])
def test_weights_stand_at_their_own_query_whatever_the_side(randomize, mask, window, side):
    module, mask = randomize(LinformerAttention(WIDTH, 4, window=window, **SIZES)), on_side(mask, side)
    x = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    _, weights = module(x, x, x, mask, need_weights=True)
    for row in range(3):
        alone = x[row : row + 1, ~mask[row]]
        assert_close(weights[row, ~mask[row]], module(alone, alone, alone, need_weights=True)[1][0])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("window", [None, 3])
def test_layers_that_differ_ask_their_own_questions(randomize, mask, window, side):
    """What one layer found about the padding is not what a layer of other slots, or of another length, would find."""
    options = {"projection": "mean", "window": window, "exact_first": 1, "slot_mass": "learned"}
    model = LinformerEncoder(WIDTH, 4, 4, 17, 0.0, **{**SIZES, "k": [5, 2, 5, 1]}, **options).eval()
    model.layers[2].self_attn.resize_max_len(31)
    randomize(model)
    x, mask = torch.randn(len(LENGTHS), LENGTH, WIDTH, dtype=torch.float64), on_side(mask, side)
    padded = model(x, src_key_padding_mask=mask)
    for row, real in enumerate(~mask):
        assert_close(padded[row, real], model(x[row : row + 1, real])[0])


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    "options", [{}, {"window": 3}, {"causal": True, "window": 3}], ids=["slots", "window", "causal"]
)
@pytest.mark.parametrize("copy", [torch.clone, lambda x: x[:]], ids=["clone", "view"])
def test_copies_of_a_sequence_are_the_sequence(gradients, randomize, mask, copy, options, side):
    module, mask = randomize(LinformerAttention(WIDTH, 4, **SIZES, **options)), on_side(mask, side)
    x = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    # NaN is not itself, and zeros at padding are what they are.
    x = x.masked_fill(mask[..., None], float("nan")).requires_grad_()
    results = []
    for query, key, value in ((x, x, x), (copy(x), copy(x), copy(x))):
        output, _ = module(query, key, value, mask)
        results.append([output, *gradients(output, [x, *module.parameters()])])
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert_close(actual, expected)


def test_queries_of_another_sequence_are_their_own(randomize, mask):
    module = randomize(LinformerAttention(WIDTH, 4, **SIZES))
    query, key = torch.randn(2, 4, LENGTH, WIDTH, dtype=torch.float64)
    output, _ = module(query, key, key, mask)
    for row in range(3):
        alone = key[row : row + 1, ~mask[row]]
        assert_close(output[row], module(query[row : row + 1], alone, alone)[0][0])


def test_a_window_beside_padding_needs_queries_of_the_same_length(mask):
    module = LinformerAttention(WIDTH, 4, window=3, **SIZES)
    query, key = torch.randn(4, 3, WIDTH, dtype=torch.float64), torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    with pytest.raises(ValueError, match=r"a window counts the real tokens of both: .* got 3 and 11"):
        module(query, key, key, mask)
    with pytest.raises(ValueError, match=r"compress\(\) of an attention with a window takes no key_padding_mask"):
        module.compress(key, key, mask)


@pytest.mark.parametrize(("subject", "options"), CASES)
def test_what_stands_at_padding_reaches_neither_outputs_nor_gradients(gradients, randomize, mask, subject, options):
    module = randomize(build(subject, **options))
    clean = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    poison = torch.tensor([float("nan"), float("inf"), float("-inf")]).repeat(WIDTH // 3)
    results = []
    for batch in (clean, torch.where(mask[..., None], poison, clean)):
        batch.requires_grad_()
        # The loss reads the outputs at padding too.
        output = module(batch, src_key_padding_mask=mask)
        to_batch, *to_parameters = gradients(output, [batch, *module.parameters()])
        assert not to_batch[mask].any()
        results.append([output, to_batch, *to_parameters])
    for expected, actual in zip(*results, strict=True):
        assert actual.isfinite().all()
        assert torch.equal(actual, expected)


@pytest.mark.parametrize(("projection", "sharing"), owned_maps())
def test_padding_of_a_memory_is_exact_whatever_the_queries(gradients, mask, projection, sharing):
    module = LinformerAttention(WIDTH, 4, projection=projection, sharing=sharing, **SIZES)
    query = torch.randn(4, 3, WIDTH, dtype=torch.float64)
    memory = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    hidden = mask[..., None]
    key = memory.masked_fill(hidden, float("nan")).requires_grad_()
    value = memory.masked_fill(hidden, float("inf")).requires_grad_()
    output, weights = module(query, key, value, mask, need_weights=True)
    assert torch.equal(output, module(query, memory, memory.clone(), mask, need_weights=True)[0])
    assert weights.isfinite().all()
    for gradient in gradients(output, [key, value, *module.parameters()]):
        assert gradient.isfinite().all()
    for gradient in gradients(module(query, key, value, mask)[0], [key, value]):
        assert not gradient[mask].any()
    for row, n in enumerate(LENGTHS[:3]):
        one = slice(row, row + 1)
        assert_close(output[one], module(query[one], memory[one, :n], memory[one, :n])[0])


@pytest.mark.parametrize("need_weights", [False, True])
def test_padding_is_exact_in_full_attention_too(gradients, randomize, mask, need_weights):
    module = randomize(FullAttention(WIDTH, 4, dtype=torch.float64))
    batch = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    poisoned = batch.masked_fill(mask[..., None], float("nan")).requires_grad_()
    output, _ = module(poisoned, poisoned, poisoned, mask, need_weights=need_weights)
    to_batch, *to_parameters = gradients(output, [poisoned, *module.parameters()])
    assert not to_batch[mask].any()
    assert all(tensor.isfinite().all() for tensor in [output, to_batch, *to_parameters])
    for row, n in enumerate(LENGTHS[:3]):
        alone = batch[row : row + 1, :n]
        assert_close(output[row, :n], module(alone, alone, alone)[0][0])


@pytest.mark.parametrize(("subject", "options"), CASES)
def test_a_fully_padded_row_is_finite_and_gives_finite_gradients(subject, options):
    module = build(subject, **options)
    batch = torch.full((2, LENGTH, WIDTH), float("nan"), dtype=torch.float64, requires_grad=True)
    output = module(batch, src_key_padding_mask=torch.ones(2, LENGTH, dtype=torch.bool))
    output.square().sum().backward()
    assert output.isfinite().all()
    assert not batch.grad.any()
    assert all(parameter.grad.isfinite().all() for parameter in module.parameters())


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_a_fully_padded_row_attends_to_nothing(projection):
    module = LinformerAttention(WIDTH, 4, projection=projection, **SIZES)
    torch.nn.init.normal_(module.v_proj.bias)
    x = torch.randn(1, LENGTH, WIDTH, dtype=torch.float64)
    output, _ = module(x, x, x, torch.ones(1, LENGTH, dtype=torch.bool))
    assert_close(output, module.out_proj.bias.expand_as(output))


@pytest.mark.parametrize(("projection", "sharing"), owned_maps(WINDOWED))
@pytest.mark.parametrize("how", ["padded", "short"])
def test_slots_of_padding_alone_get_no_attention(trailing_padding, projection, sharing, how):
    module = LinformerAttention(WIDTH, 4, projection=projection, sharing=sharing, **SIZES)
    for n in (1, 3, 4, 7, 11):  # windows of 3
        x = torch.randn(2, LENGTH if how == "padded" else n, WIDTH, dtype=torch.float64)
        mask = trailing_padding([n, n], LENGTH) if how == "padded" else None
        _, weights = module(x, x, x, mask, need_weights=True, average_attn_weights=False)
        filled = -(-n // 3)
        assert not weights[..., filled:].any()
        assert weights[..., :filled].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("lowest", ["-inf", "finfo.min", "-1e4", "-1e9"])
@pytest.mark.parametrize("subject", ["attention", "post-norm-layer", "stack"])
def test_a_float_mask_is_the_bool_mask(mask, subject, lowest, dtype):
    module = build(subject)
    written = torch.finfo(dtype).min if lowest == "finfo.min" else max(float(lowest), torch.finfo(dtype).min)
    written = float("-inf") if lowest == "-inf" else written
    float_mask = torch.zeros(4, LENGTH, dtype=dtype).masked_fill(mask, written)
    batch = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    expected = module(batch, src_key_padding_mask=mask)
    assert torch.equal(module(batch, src_key_padding_mask=float_mask), expected)
    assert not torch.allclose(module(batch), expected)


@pytest.mark.parametrize("number", [1.0, -1.0, -100.0, 1e-9, float("inf"), float("nan")])
@pytest.mark.parametrize("subject", ["attention", "post-norm-layer", "stack"])
def test_a_float_mask_of_other_numbers_is_refused(mask, subject, number):
    float_mask = torch.zeros(4, LENGTH).masked_fill(mask, float("-inf"))
    float_mask[2, 0] = number
    batch = torch.randn(4, LENGTH, WIDTH, dtype=torch.float64)
    with pytest.raises(
        ValueError, match=r"key_padding_mask of torch.float32 must be 0 at real tokens and -inf, or any"
    ):
        build(subject)(batch, src_key_padding_mask=float_mask)


@pytest.mark.parametrize("subject", ["attention", "post-norm-layer", "stack"])
def test_padding_is_exact_with_the_batch_second_and_without_a_batch(trailing_padding, subject):
    module = build(subject)
    options = {"batch_first": False, "max_len": 13, "k": 5, "dtype": torch.float64}
    if subject == "attention":
        second = SelfAttention(**options)
    elif subject == "stack":
        second = LinformerEncoder(WIDTH, 4, 2, 17, 0.0, norm_first=True, **options)
    else:
        second = LinformerEncoderLayer(WIDTH, 4, 17, 0.0, **options)
    second.load_state_dict(module.state_dict())
    mask = trailing_padding([11, 7], LENGTH)
    batch = torch.randn(2, LENGTH, WIDTH, dtype=torch.float64).masked_fill(mask[..., None], float("nan"))
    expected = module(batch, src_key_padding_mask=mask)
    assert_close(second(batch.transpose(0, 1), src_key_padding_mask=mask).transpose(0, 1), expected)
    for either in (module, second):
        assert_close(either(batch[1], src_key_padding_mask=mask[1]), expected[1])
        assert_close(either(batch[1, :7]), expected[1, :7])
