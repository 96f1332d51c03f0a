"""Causal modules: their definition, what they may not see, and a past that they go on from."""

import re

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.attention import FullAttention, Past
from torch_linformer.nn.encoder import Encoder, EncoderLayer

DOUBLE = {"dtype": torch.float64}
WIDTH, LENGTH = 12, 11

KINDS = {
    "slots": {"k": 5},
    "slots-and-window": {"k": 5, "window": 3},
    "window": {"k": 0, "window": 3},
    "rotary": {"k": 5, "window": 3, "rotary_dim": 2},
    "first-tokens": {"k": 5, "exact_first": 4},
    "first-tokens-and-window": {"k": 0, "window": 2, "exact_first": 3, "rotary_dim": 2},
    "grouped-query": {"k": 5, "window": 4, "exact_first": 2, "num_kv_heads": 2, "head_dim": 6, "rotary_dim": 4},
    "full": None,
    "full-rotary": {"rotary_dim": 2, "num_kv_heads": 2},
}


def attention(kind, **changes):
    """A causal attention of ``KINDS``, of float64 where nothing else is said."""
    options = {**(KINDS[kind] or {}), **DOUBLE, **changes}
    if "k" in options:
        return LinformerAttention(WIDTH, 4, 13, causal=True, **options)
    return FullAttention(WIDTH, 4, causal=True, **options)


def draw(*shape, **options):
    return torch.randn(shape, **{**DOUBLE, **options})


def twin(module, **changes):
    """Another module of the same kind with other options and the same parameters."""
    kind, options = changes.pop("kind"), changes
    other = attention(kind, **options)
    other.load_state_dict(module.state_dict())
    return other


def test_a_time_scale_beyond_any_number_has_no_gradient():
    module = attention("slots")
    module.float()
    expected = {}
    for theta in (0.0, -100.0, -1000.0):
        torch.nn.init.constant_(module.context.running.log_time, theta)
        x = torch.ones(1, LENGTH, WIDTH).cumsum(dim=1)
        output = module(x, x, x)[0]
        module.zero_grad()
        output.square().sum().backward()
        expected.setdefault("output", output)
        assert torch.equal(output, expected["output"])
        assert all(p.grad.isfinite().all() for p in module.parameters())
        assert not module.context.running.log_time.grad.any()


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def module(kind, randomize):
    return randomize(attention(kind))


@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_full_attention_is_torchs_with_a_causal_mask(gradients, randomize, trailing_padding, padded):
    theirs = randomize(nn.MultiheadAttention(WIDTH, 4, batch_first=True, **DOUBLE))
    ours = FullAttention(WIDTH, 4, causal=True, **DOUBLE)
    ours.load_state_dict(theirs.state_dict())
    x = draw(2, LENGTH, WIDTH, requires_grad=True)
    mask = trailing_padding([LENGTH, 4], LENGTH) if padded else None
    triangle = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    expected, expected_weights = theirs(x, x, x, key_padding_mask=mask, attn_mask=triangle)
    actual, weights = ours(x, x, x, mask, need_weights=True, attn_mask=triangle, is_causal=True)
    fast, none = ours(x, x, x, mask)
    real = torch.ones(2, LENGTH, dtype=torch.bool) if mask is None else ~mask
    assert none is None
    expected_gradients = gradients(expected[real], [x])
    for output in (actual, fast):
        assert_close(output[real], expected[real])
        assert_close(gradients(output[real], [x]), expected_gradients)
    assert_close(weights[real], expected_weights[real])


def test_a_long_window_without_slots_is_full_attention(gradients, randomize):
    full = randomize(FullAttention(WIDTH, 4, causal=True, rotary_dim=2, **DOUBLE))
    windowed = LinformerAttention(WIDTH, 4, 13, 0, causal=True, window=LENGTH, rotary_dim=2, **DOUBLE)
    windowed.load_state_dict(full.state_dict())
    x = draw(2, LENGTH, WIDTH, requires_grad=True)
    actual, expected = windowed(x, x, x)[0], full(x, x, x)[0]
    assert_close(actual, expected)
    assert_close(
        gradients(actual, [x, *windowed.parameters()]),
        gradients(expected, [x, *full.parameters()]),
    )


def assert_no_gradient_to_later(output, x, first=0):
    """The gradient of each position's output to whatever comes after it is zero, and to itself it is not."""
    channels = torch.linspace(-1.0, 2.0, WIDTH, dtype=output.dtype)  # a norm makes an even sum constant
    for position in range(first, x.shape[1]):
        (gradient,) = torch.autograd.grad((output[:, position] @ channels).sum(), x, retain_graph=True)
        assert not gradient[:, position + 1 :].any()
        assert gradient[:, position].any()
        assert position == 0 or gradient[:, position - 1].any()


def assert_sees_no_later_input(function, dtype=torch.float64):
    x = draw(2, LENGTH, WIDTH, dtype=dtype).requires_grad_()
    assert_no_gradient_to_later(function(x), x)


def in_pieces(function, x, sizes, padding=None):
    """``function`` of the sequence's pieces and their padding, one behind the other."""
    pieces = torch.split(x, sizes, dim=1)
    masks = [None] * len(pieces) if padding is None else torch.split(padding, sizes, dim=1)
    return torch.cat([function(piece, mask) for piece, mask in zip(pieces, masks, strict=True)], dim=1)


@pytest.mark.parametrize(
    ("precision", "sizes"), [("float64", [LENGTH]), ("float64", [1] * LENGTH), ("autocast", [1, 4, 6])], ids=str
)
def test_the_gradient_to_later_inputs_is_exactly_zero(monkeypatch, take_at_once, kind, precision, sizes):
    take_at_once(monkeypatch, segment=4)
    dtype = torch.float32 if precision == "autocast" else getattr(torch, precision)
    module = attention(kind, dtype=dtype)
    past = Past()

    def attend(x):
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=precision == "autocast"):
            return in_pieces(lambda piece, _: module(piece, piece, piece, past=past)[0], x, sizes)

    assert_sees_no_later_input(attend, dtype=dtype)


def test_weights_are_of_slots_then_of_tokens(module):
    x = draw(2, LENGTH, WIDTH)
    assert module(x, x, x)[1] is None
    output, each = module(x, x, x, need_weights=True, average_attn_weights=False)
    assert_close(output, module(x, x, x)[0])
    columns = LENGTH
    if isinstance(module, LinformerAttention):
        columns = (0 if module.context.running is None else module.context.running.k) + (module.window or 0)
        columns += module.context.exact_first
    assert each.shape == (2, 4, LENGTH, columns)
    assert_close(each.sum(dim=-1), torch.ones(2, 4, LENGTH, **DOUBLE))
    assert_close(module(x, x, x, need_weights=True)[1], each.mean(dim=1))


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("kind", ["grouped-query", "full-rotary"])
def test_a_compiled_module_gives_the_same_and_sees_no_later_input(gradients, fresh_compiler, kind):
    module = attention(kind)
    x, mask = draw(2, LENGTH, WIDTH, requires_grad=True), torch.arange(LENGTH) < torch.tensor([[0], [5]])
    with torch._functorch.config.patch(donated_buffer=False):  # one graph is walked back more than once
        actual = torch.compile(module, fullgraph=True, backend="aot_eager")(x, x, x, mask)[0]
        expected = module(x, x, x, mask)[0]
        assert_close(actual, expected)
        assert_no_gradient_to_later(actual, x, first=5)
        wanted = [x, *module.parameters()]
        assert_close(gradients(actual, wanted), gradients(expected, wanted))


ENDS = {"right": lambda n: (0, LENGTH - n), "left": lambda n: (LENGTH - n, 0), "both": lambda n: (1, LENGTH - n - 1)}


def padding_of(side, lengths):
    positions = torch.arange(LENGTH)
    ends = [ENDS[side](n) if n < LENGTH else (0, 0) for n in lengths]
    return torch.stack([(positions < left) | (positions >= LENGTH - right) for left, right in ends])


@pytest.mark.parametrize(
    ("side", "sizes"),
    [("right", [LENGTH]), ("left", [1, 4, 6]), ("both", [1] * LENGTH)],
    ids=["right", "left-in-pieces", "both-in-tokens"],
)
def test_padded_rows_are_what_each_would_be_alone(gradients, module, side, sizes):
    mask = padding_of(side, [LENGTH, 7, 1, 0])
    x = draw(4, LENGTH, WIDTH).masked_fill(mask[..., None], float("nan")).requires_grad_()
    past = Past()
    output = in_pieces(lambda piece, padding: module(piece, piece, piece, padding, past=past)[0], x, sizes, mask)
    assert output.isfinite().all()
    alone = [module(x[row : row + 1, ~mask[row]], *[x[row : row + 1, ~mask[row]]] * 2)[0][0] for row in range(3)]
    actual, expected = output[~mask], torch.cat(alone)
    assert_close(actual, expected)
    wanted = [x, *module.parameters()]
    found = gradients(actual, wanted)
    assert not found[0][mask].any()
    assert_close(found, gradients(expected, wanted))
    assert past.state.tokens.tolist() == [LENGTH, 7, 1, 0]


def test_a_past_goes_on_with_the_rows_that_are_kept(module):
    x, past = draw(3, LENGTH, WIDTH), Past()
    past.select_rows(torch.tensor([0]))
    assert past.nbytes == 0
    mask = torch.arange(6) >= torch.tensor([[6], [4], [1]])
    module(x[:, :6], x[:, :6], x[:, :6], mask, past=past)
    order = torch.tensor([2, 0, 0, 1])
    past.select_rows(order)
    rest = x[order, 6:]
    output = module(rest, rest, rest, past=past)[0]
    for row, original in enumerate(order):
        alone = torch.cat([x[original, :6][~mask[original]], x[original, 6:]])[None]
        assert_close(output[row], module(alone, alone, alone)[0][0, -5:])


def test_only_the_past_of_full_attention_grows(kind):
    module, sizes = attention(kind), []
    for length in (7, LENGTH, 80):
        past, x = Past(), draw(2, length, WIDTH)
        module(x, x, x, past=past)
        sizes.append(past.nbytes)
        kept = [t for t in vars(past.state).values() if t is not None]
        assert sum(t.numel() * t.element_size() for t in kept) == past.nbytes
    assert (sizes[0] < sizes[1] < sizes[2]) if kind.startswith("full") else (sizes == sizes[:1] * 3)


def test_inference_keeps_no_memory_behind_its_past():
    module, past, x = attention("rotary"), Past(), draw(2, 200, WIDTH)
    with torch.no_grad():
        module(x, x, x, past=past)
    assert sum(t.untyped_storage().nbytes() for t in vars(past.state).values()) == past.nbytes


def test_dropout_acts_on_the_weights_and_only_in_training(kind):
    module = attention(kind, dropout=0.5)
    calm = twin(module, kind=kind)
    x = draw(1, LENGTH, WIDTH).expand(1000, LENGTH, WIDTH)
    expected, expected_weights = calm(x[:1], x[:1], x[:1], need_weights=True)
    with torch.no_grad():
        output, _ = module(x, x, x)
        _, weights = module(x[:1], x[:1], x[:1], need_weights=True)
    assert not torch.allclose(output[0], output[1])
    assert_close(output.mean(dim=0), expected[0], atol=0.25, rtol=0.0)
    assert_close(weights, expected_weights)
    assert_close(module.eval()(x[:1], x[:1], x[:1])[0], expected)


def test_values_may_have_a_source_of_their_own(gradients, randomize, kind):
    module = randomize(attention(kind, kdim=7, vdim=17))
    query, key, value = (draw(2, LENGTH, width, requires_grad=True) for width in (WIDTH, 7, 17))
    past, outputs = Past(), []
    for piece in (slice(0, 4), slice(4, LENGTH)):
        outputs.append(module(query[:, piece], key[:, piece], value[:, piece], past=past)[0])
    output = module(query, key, value)[0]
    assert_close(torch.cat(outputs, dim=1), output)
    for gradient in torch.autograd.grad(output[:, 4].sum(), [key, value]):
        assert gradient[:, :5].any() and not gradient[:, 5:].any()


def layer(kind, norm_first=False, **options):
    module = attention(kind)
    return EncoderLayer(module, 17, 0.0, norm_first=norm_first, **options, **DOUBLE)


def encoder(**options):
    sizes = {"max_len": 13, "k": 5, "causal": True, "window": 3, "rotary_dim": 2, "norm_first": True, **DOUBLE}
    return LinformerEncoder(WIDTH, 4, 2, 17, 0.0, **{**sizes, **options})


STACKS = {
    "pre-norm": {},
    "post-norm": {"norm_first": False},
    "window-alone": {"k": 0},
    "k-a-layer": {"k": [5, 3]},
    "reversible": {"activation_memory": "reversible"},
    "checkpoint": {"activation_memory": "checkpoint", "exact_first": 2},
    "chunks": {"chunk_size": 4, "exact_first": 2},
    "chunks-post-norm": {"chunk_size": 4, "norm_first": False},
    "chunks-reversible": {"chunk_size": 4, "activation_memory": "reversible"},
}


@pytest.fixture(params=STACKS)
def stack(request, randomize):
    return randomize(encoder(**STACKS[request.param]))


def test_a_stack_sees_no_later_input(stack):
    assert_sees_no_later_input(stack)


@pytest.mark.parametrize(
    ("chunk_size", "sizes"), [(None, [4, 4, 3]), (None, [5, 1, 0, 5]), (1, [2, 9]), (4, [5, 1, 0, 5])], ids=str
)
@torch.no_grad()
def test_ragged_pieces_are_read_as_the_tokens_alone(randomize, kind, sizes, chunk_size):
    module = randomize(layer(kind, norm_first=True, chunk_size=chunk_size))
    x, past = draw(3, LENGTH, WIDTH), Past()
    # Padding in front of a later piece, between its tokens, and a piece of padding alone.
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    mask = torch.rand(3, LENGTH, generator=generator) < torch.tensor([[0.5], [0.3], [0.0]])
    mask[0, sizes[0] : sizes[0] + 2], mask[1, : sizes[0]] = True, True
    output = in_pieces(lambda piece, padding: module(piece, src_key_padding_mask=padding, past=past), x, sizes, mask)
    assert output.isfinite().all()
    for row in range(3):
        assert_close(output[row, ~mask[row]], module(x[row : row + 1, ~mask[row]])[0])


@pytest.mark.parametrize("chunk_size", [None, 4])
def test_a_causal_mask_is_taken_and_any_other_is_refused(chunk_size):
    triangle = nn.Transformer.generate_square_subsequent_mask(LENGTH, **DOUBLE)
    x, model, one = draw(2, LENGTH, WIDTH), encoder(chunk_size=chunk_size), layer("rotary", chunk_size=chunk_size)
    message = re.escape(
        f"LinformerAttention cannot apply an attn_mask of shape ({LENGTH}, {LENGTH}), causal or other: a slot mixes "
        "all positions up to the query's own, so no score belongs to one (query, key) pair; "
        "pass is_causal=True for the causal mask"
    )
    with torch.no_grad():
        assert torch.equal(model(x, mask=triangle, is_causal=True), model(x))
        assert torch.equal(one(x, src_mask=triangle, is_causal=True), one(x, is_causal=True))
        with pytest.raises(ValueError, match=message):
            model(x, mask=triangle)
        with pytest.raises(ValueError, match=message):
            one(x, src_mask=triangle)


def test_attention_takes_a_causal_mask_and_refuses_any_other(kind, module):
    x, triangle = draw(2, LENGTH, WIDTH), nn.Transformer.generate_square_subsequent_mask(LENGTH)
    assert torch.equal(module(x, x, x, attn_mask=triangle, is_causal=True)[0], module(x, x, x, is_causal=True)[0])
    assert torch.equal(module(x, x, x, is_causal=True)[0], module(x, x, x)[0])
    message = f"{type(module).__name__} cannot apply an attn_mask .*; pass is_causal=True for the causal mask"
    with pytest.raises(ValueError, match=message):
        module(x, x, x, attn_mask=triangle)


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_inside_torchs_encoder_it_is_the_stack_of_its_layers(trailing_padding, norm_first):
    options = {"max_len": 13, "k": 5, "causal": True, "window": 3, "rotary_dim": 2, "norm_first": norm_first}
    one = LinformerEncoderLayer(WIDTH, 4, 17, 0.0, **options, **DOUBLE)
    model = nn.TransformerEncoder(one, 2, enable_nested_tensor=False)
    triangle = nn.Transformer.generate_square_subsequent_mask(LENGTH, **DOUBLE)
    assert_sees_no_later_input(lambda x: model(x, mask=triangle, is_causal=True))
    x, mask = draw(2, LENGTH, WIDTH), trailing_padding([LENGTH, 4], LENGTH)
    expected = x
    for each in model.layers:
        expected = each(expected, src_key_padding_mask=mask)
    padded = {"src_key_padding_mask": torch.zeros(2, LENGTH, **DOUBLE).masked_fill(mask, float("-inf"))}
    assert_close(model(x, mask=triangle, is_causal=True, **padded), expected)
    assert_close(model(x, mask=triangle, **padded), expected)  # torch sees that it is causal


def test_a_causal_stack_owns_no_projection_of_whole_sequences(gradients, stack):
    x = draw(2, LENGTH, WIDTH)
    names = [name for name, _ in stack.named_parameters()]
    assert not [name for name in names if "proj_k." in name or "shared" in name]
    gradients(stack(x), list(stack.parameters()))  # an unused one would raise
    with pytest.raises(ValueError, match=r"nothing to resize: this LinformerEncoder owns no map of a whole sequence"):
        stack.resize_max_len(29)


def test_length_is_unlimited_and_max_len_the_longest_time_scale_at_first():
    module = LinformerAttention(WIDTH, 4, 1000, 3, causal=True)
    x = torch.randn(1, 1100, WIDTH)
    assert module(x, x, x)[0].isfinite().all()
    expected = torch.tensor([16.0, (16 * 1000) ** 0.5, 1000.0]).expand(4, 3)
    assert_close(module.context.running.log_time.exp(), expected)
    assert_close(module.context.running.score_bias, torch.full((4, 3), -2.0))
    assert module.context.running.address.std().item() == pytest.approx(3**-0.5, rel=0.5)
    short = LinformerAttention(WIDTH, 4, 7, 3, causal=True).context.running
    assert_close(short.log_time.exp(), torch.full((4, 3), 7.0))
    assert repr(short) == "CausalProjection(k=3, num_heads=4, longest=7)"


def test_queries_and_keys_of_two_lengths_are_named(module):
    query, key = draw(2, 3, WIDTH), draw(2, 5, WIDTH)
    message = "causal attention is self-attention: query and key must have one length, got 3 and 5"
    with pytest.raises(ValueError, match=message):
        module(query, key, key)


def test_pasts_are_one_a_layer():
    x, model = draw(2, LENGTH, WIDTH), encoder()
    with pytest.raises(ValueError, match="pasts must be one Past a layer, 2 in all, got 1"):
        model(x, pasts=[Past()])


def test_a_stack_of_full_attention_goes_on_from_its_pasts(randomize):
    model = randomize(Encoder([layer("full-rotary"), layer("full")]))
    x, pasts = draw(2, LENGTH, WIDTH), [Past(), Past()]
    actual = in_pieces(lambda piece, _: model(piece, pasts=pasts), x, [4, 1, 6])
    assert_close(actual, model(x))
    with pytest.raises(ValueError, match="cannot apply an attn_mask"):
        model(x, mask=torch.zeros(LENGTH, LENGTH))


def test_a_past_of_attention_that_is_not_causal():
    x = torch.randn(2, 5, 24)
    with pytest.raises(ValueError, match="past belongs to causal attention: here every position sees those after it"):
        LinformerAttention(24, 3, 16, 4)(x, x, x, past=Past())


def test_a_past_of_another_batch_is_refused(module):
    past = Past()
    x = draw(2, LENGTH, WIDTH)
    module(x, x, x, past=past)
    with pytest.raises(ValueError, match=r"past holds 2 rows, but the batch has 1: give each batch its own Past"):
        module(x[:1], x[:1], x[:1], past=past)
