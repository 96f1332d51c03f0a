"""`LinformerAttention`: the definition, the order of its products, weights, shapes and dropout."""

import pytest
import torch
from map_choices import owned_maps
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from torch_linformer.nn import LinformerAttention, SequenceProjection
from torch_linformer.nn.attention import FullAttention
from torch_linformer.nn.attention.slot_maps import SlotMaps

DOUBLE = {"dtype": torch.float64}


def cross_inputs(kdim=12, vdim=12, batch=2, queries=3, length=7):
    """Query ``(B, N, 12)``, key and value ``(B, M, ·)``, each wanting a gradient."""
    shapes = [(batch, queries, 12), (batch, length, kdim), (batch, length, vdim)]
    return [torch.randn(shape, requires_grad=True, **DOUBLE) for shape in shapes]


def assert_is_the_definition(module, inputs, mask, gradients, literal_attention, **options):
    """Output, weights and the gradient to every input and parameter equal the literal ones."""
    expected, expected_weights = literal_attention(module, *inputs, mask, **options)
    wanted = list({id(tensor): tensor for tensor in [*inputs, *module.parameters()]}.values())
    expected_gradients = gradients(expected, wanted)
    for need_weights in (False, True):
        output, weights = module(*inputs, mask, need_weights=need_weights, average_attn_weights=False)
        assert_close(output, expected)
        assert_close(gradients(output, wanted), expected_gradients)
        assert (weights is not None) == need_weights
    assert_close(weights, expected_weights)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="multi-head"),
        pytest.param({"num_kv_heads": 2, "bias": False}, id="grouped-query"),
        pytest.param({"num_kv_heads": 1}, id="multi-query"),
        pytest.param({"slot_bias": True}, id="slot-bias"),
        pytest.param({"slot_bias": True, "num_kv_heads": 2}, id="slot-bias-of-groups"),
    ],
)
@pytest.mark.parametrize(("projection", "sharing"), owned_maps())
def test_output_weights_and_gradients_are_those_of_the_definition(
    gradients, literal_attention, randomize, trailing_padding, projection, sharing, options
):
    module = LinformerAttention(12, 4, 11, 3, projection=projection, sharing=sharing, **options, **DOUBLE)
    mask = trailing_padding([7, 2], 7)
    assert_is_the_definition(randomize(module), cross_inputs(), mask, gradients, literal_attention)


@pytest.mark.parametrize("aliased", ["self-attention", "one-memory", "value-apart"])
@pytest.mark.parametrize(("projection", "sharing"), owned_maps())
def test_definition_where_one_tensor_plays_several_parts(
    gradients, literal_attention, randomize, projection, sharing, aliased
):
    module = randomize(LinformerAttention(12, 4, 11, 3, projection=projection, sharing=sharing, **DOUBLE))
    query, key, value = cross_inputs(queries=7)
    inputs = {
        "self-attention": [query, query, query],
        "one-memory": [query, key, key],
        "value-apart": [query, query, value],
    }[aliased]
    assert_is_the_definition(module, inputs, None, gradients, literal_attention)


@pytest.fixture
def in_order(monkeypatch):
    """Function: runs a function with the sequence compressed first, or with the channels mixed first."""

    def run(compress_first, function):
        with monkeypatch.context() as patch:
            patch.setattr(SlotMaps, "compresses_first", lambda *_: compress_first)
            return function()

    return run


@pytest.mark.parametrize(
    ("length", "num_kv_heads", "bias"), [(2, 4, True), (11, 4, True), (11, 1, True), (11, 1, False)]
)
@pytest.mark.parametrize(
    ("projection", "sharing"), owned_maps(("linear", "random", "conv", "mean"), ("headwise", "kv"))
)
def test_both_orders_of_the_products_agree(
    gradients, in_order, randomize, trailing_padding, projection, sharing, bias, num_kv_heads, length
):
    module = randomize(
        LinformerAttention(
            12,
            4,
            13,
            5,
            bias=bias,
            num_kv_heads=num_kv_heads,
            projection=projection,
            sharing=sharing,
            **DOUBLE,
        )
    )
    query, memory, _ = cross_inputs(batch=3, length=length)
    wanted = [query, memory, *module.parameters()]
    for mask in (None, trailing_padding([length, 1, 0], length)):
        compressed, _ = in_order(True, lambda mask=mask: module(query, memory, memory, mask))
        plain, _ = in_order(False, lambda mask=mask: module(query, memory, memory, mask))
        assert_close(compressed, plain)
        assert_close(gradients(compressed, wanted), gradients(plain, wanted))


@pytest.mark.parametrize(
    ("length", "options", "one_memory", "compress_first"),
    [
        pytest.param(256, {}, True, True, id="long"),
        pytest.param(17, {}, True, True, id="just-longer-than-k"),
        pytest.param(15, {}, True, False, id="shorter-than-k"),
        # E = F = one product less: 2·15·64·(64 + 16) = 153600 against 15·64·16 + 2·16·64·64 = 146432
        pytest.param(15, {"sharing": "kv"}, True, True, id="kv-shorter-than-k"),
        # but not where key and value are two tensors: 153600 against 2·15·64·16 + 2·16·64·64 = 161792
        pytest.param(15, {"sharing": "kv"}, False, False, id="kv-two-tensors"),
        # narrow keys and values: 2·32·16·(64 + 16) = 81920 against 2·16·64·(32 + 16) = 98304
        pytest.param(32, {"num_kv_heads": 1}, True, False, id="multi-query"),
        # 2·256·16·(64 + 16) = 655360 against 2·16·64·(256 + 16) = 557056
        pytest.param(256, {"num_kv_heads": 1}, True, True, id="multi-query-long"),
        pytest.param(32, {"num_kv_heads": 1, "projection": "conv"}, True, True, id="multi-query-conv"),
        # shorter than K, but of 16 slots of 16 positions it reaches one
        pytest.param(15, {"projection": "conv"}, True, True, id="conv-one-slot"),
        pytest.param(256, {"projection": "mean"}, True, True, id="mean"),
        # which needs the keys and values of all positions anyway
        pytest.param(256, {"projection": "mean", "window": 4}, True, False, id="mean-and-window"),
        pytest.param(256, {"kdim": 128, "vdim": 128}, True, True, id="wide-memory"),
    ],
)
def test_the_order_with_fewer_multiplications_is_taken(in_order, length, options, one_memory, compress_first):
    module = LinformerAttention(64, 4, 256, 16, bias=False, **options)
    width = options.get("kdim", 64)
    query, key, value = torch.randn(1, 5, 64), torch.randn(1, length, width), torch.randn(1, length, width)

    def multiplications():
        with FlopCounterMode(display=False) as counter:
            # Asked for its weights, the attention itself is two products that the counter sees.
            module(query, key, key if one_memory else value, need_weights=True)
        return counter.get_total_flops()

    taken, other = (in_order(order, multiplications) for order in (compress_first, not compress_first))
    assert multiplications() == taken < other


@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("projection", ["conv", "mean", "max"])
def test_a_short_text_pays_for_the_slots_it_reaches_alone(projection, window):
    module = LinformerAttention(12, 4, 40, 10, projection=projection, window=window, **DOUBLE)
    x = torch.randn(2, 9, 12, **DOUBLE)
    memory = module.compress(x)
    assert memory.slots.keys.shape[2] == memory.slots.values.shape[2] == 3
    _, weights = module(x, x, x, need_weights=True)
    assert weights.shape == (2, 9, 10 if window is None else 15)
    assert (weights[..., :3] > 0).all() and (weights[..., 3:10] == 0).all()


@pytest.mark.parametrize("projection", ["linear", "mean"])
@pytest.mark.parametrize("k", [2, 6, 9])
def test_weights_are_over_the_slots_of_the_projection_that_is_shared(projection, k):
    module = LinformerAttention(12, 4, 11, k, projection=None, **DOUBLE)
    x, shared = torch.randn(2, 5, 12, **DOUBLE), SequenceProjection(11, 6, projection=projection, **DOUBLE)
    _, weights = module(x, x, x, shared_projection=shared, need_weights=True)
    assert weights.shape == (2, 5, 6)
    assert_close(weights.sum(-1), torch.ones(2, 5, **DOUBLE))


@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("need_weights", [False, True])
def test_dropout_acts_on_the_weights_and_only_in_training(need_weights, window):
    module = LinformerAttention(12, 4, 11, 3, dropout=0.5, window=window)
    calm = LinformerAttention(12, 4, 11, 3, window=window)
    calm.load_state_dict(module.state_dict())
    x = torch.randn(1, 11, 12).expand(4000, 11, 12)
    expected, expected_weights = calm(x, x, x, need_weights=True)
    with torch.no_grad():
        output, weights = module(x, x, x, need_weights=need_weights)
    assert not torch.allclose(output[0], output[1])
    assert_close(output.mean(dim=0), expected[0], atol=0.1, rtol=0.0)
    if need_weights:
        assert_close(weights, expected_weights)  # the softmax itself, before dropout
    assert_close(module.eval()(x, x, x, need_weights=need_weights)[0], expected)


@pytest.mark.parametrize("attention", [lambda: LinformerAttention(8, 2, 16, 4), lambda: FullAttention(8, 2)])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_which_of_the_inputs_are_one_tensor_changes_nothing(attention, padded):
    module, mask = attention().double(), None
    query, key, value = (torch.randn(2, 5, 8, dtype=torch.float64) for _ in range(3))
    if padded:
        mask = torch.zeros(2, 5, dtype=torch.bool)
        mask[0, 3:] = True
    for inputs in [(query, query, query), (query, key, query), (query, query, value), (query, key, key)]:
        copies = [x.clone() for x in inputs]
        output, _ = module(*inputs, key_padding_mask=mask)
        expected, _ = module(*copies, key_padding_mask=mask)
        real = slice(None) if mask is None else ~mask
        assert_close(output[real], expected[real])
    given, _ = module(query)
    assert_close(given, module(query, query, query)[0])
