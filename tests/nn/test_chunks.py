"""A sequence worked on in chunks gives what the whole gives, and takes no more memory for being longer."""

import pytest
import torch
from budgets import TWICE
from map_choices import BESIDE_SLOTS, PROJECTIONS, owned_maps
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from torch_linformer.nn import LinformerAttention, LinformerEncoder, LinformerEncoderLayer
from torch_linformer.nn.attention import FullAttention, Past
from torch_linformer.nn.attention.slot_maps import Pair, Source
from torch_linformer.nn.chunks import gather
from torch_linformer.nn.encoder import Encoder, EncoderLayer
from torch_linformer.nn.reversible import ReversibleEncoderLayer

WIDTH, LENGTH = 12, 23
SIZES = {"max_len": 29, "k": 5}  # windows of 6
DOUBLE = {"dtype": torch.float64}
SHARINGS = ("none", "headwise", "layerwise")


def full_stack(activation_memory="none", chunk_size=None, norm_first=False, **options):
    layer = ReversibleEncoderLayer if activation_memory == "reversible" else EncoderLayer
    layers = (layer(FullAttention(WIDTH, 4), 17, 0.0, norm_first=norm_first, chunk_size=chunk_size) for _ in range(2))
    norm = torch.nn.LayerNorm(WIDTH) if norm_first else None
    return Encoder(layers, norm, activation_memory=activation_memory).double()


def stack(**options):
    return LinformerEncoder(WIDTH, 4, 2, 17, 0.0, **{**SIZES, **DOUBLE, **options})


@pytest.fixture
def pair(randomize):
    """Function: a stack, and the same one in chunks."""

    def make(build=stack, *, chunk_size, **options):
        torch.manual_seed(5)
        whole = randomize(build(**options))
        chunked = build(chunk_size=chunk_size, **options)
        chunked.load_state_dict(whole.state_dict())
        return whole, chunked

    return make


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
@pytest.mark.parametrize(
    "options",
    [
        *({"projection": projection, "sharing": sharing} for projection, sharing in owned_maps(sharings=SHARINGS)),
        *({"projection": x, "sharing": sharing, "window": 6} for x, sharing in owned_maps(sharings=SHARINGS)),
        *BESIDE_SLOTS.values(),
    ],
    ids=str,
)
@torch.no_grad()
def test_inference_in_chunks_is_inference(pair, trailing_padding, options, norm_first):
    src, trailing = torch.randn(4, LENGTH, WIDTH, **DOUBLE), trailing_padding([23, 13, 1, 0], LENGTH)
    for chunk_size in (1, 5, 22, 100):
        whole, chunked = pair(chunk_size=chunk_size, norm_first=norm_first, **options)
        assert_close(chunked(src), whole(src))
        for mask in (trailing, trailing.flip(-1)):
            actual = chunked(src.masked_fill(mask[..., None], float("nan")), src_key_padding_mask=mask)
            assert actual.isfinite().all()
            assert_close(actual[~mask], whole(src, src_key_padding_mask=mask)[~mask])


@pytest.mark.parametrize("options", [{"slot_bias": True}, {"num_kv_heads": 1}, {"length_scaling": False}], ids=str)
@pytest.mark.parametrize("max_len", [29, 977], ids=["compressed-last", "compressed-first"])
@torch.no_grad()
def test_either_order_of_the_products_runs_in_chunks(pair, trailing_padding, options, max_len):
    length = max_len - 6
    src, mask = torch.randn(2, length, WIDTH, **DOUBLE), trailing_padding([length, 13], length)
    whole, chunked = pair(chunk_size=11, norm_first=True, max_len=max_len, k=29 if max_len < 100 else 3, **options)
    attention = whole.layers[0].self_attn
    source = Source(Pair(src, src), None, attention.head_maps)
    assert attention.context.maps().compresses_first(source, has_heads=False) == (max_len > 100)
    assert_close(chunked(src), whole(src))
    assert_close(chunked(src, src_key_padding_mask=mask)[~mask], whole(src, src_key_padding_mask=mask)[~mask])


@pytest.mark.cpu("operations are counted, but not those of its fused attention")
@pytest.mark.parametrize(("projection", "sharing"), owned_maps(sharings=("none", "headwise")))
@torch.no_grad()
def test_beside_a_window_chunks_cost_no_more(pair, trailing_padding, projection, sharing):
    src, mask = torch.randn(4, LENGTH, WIDTH, **DOUBLE), trailing_padding([23, 13, 1, 0], LENGTH)
    whole, chunked = pair(chunk_size=6, projection=projection, sharing=sharing, window=4)
    costs, outputs = [], []
    for module in (whole, chunked):
        with FlopCounterMode(display=False) as counter:
            outputs.append(module(src, src_key_padding_mask=mask)[~mask])
        costs.append(counter.get_total_flops())
    assert_close(*outputs)
    assert costs[1] == costs[0]


@pytest.mark.parametrize(("how", "dtype"), [("cast", torch.float16), ("autocast", torch.bfloat16)], ids=str)
@pytest.mark.parametrize("projection", PROJECTIONS)
@torch.no_grad()
def test_low_precision_costs_no_more_in_chunks(trailing_padding, projection, dtype, how):
    options = {"max_len": 509, "k": 16, "projection": projection, "norm_first": True}
    whole = LinformerEncoder(48, 4, 2, 59, 0.0, **options)
    chunked = LinformerEncoder(48, 4, 2, 59, 0.0, chunk_size=37, **options)
    chunked.load_state_dict(whole.state_dict())
    src, mask = torch.randn(3, 503, 48), trailing_padding([503, 499, 13], 503)
    if how == "cast":
        whole, chunked, src = whole.to(dtype), chunked.to(dtype), src.to(dtype)
    with torch.autocast(torch.get_default_device().type, dtype=dtype, enabled=how == "autocast"):
        actual, plain = (model(src, src_key_padding_mask=mask)[~mask] for model in (chunked, whole))
    assert actual.dtype == plain.dtype
    truth = whole.double()(src.double(), src_key_padding_mask=mask)[~mask]
    rounding = torch.finfo(dtype).eps * truth.square().mean().sqrt()
    assert (actual - truth).square().mean().sqrt() <= TWICE * (plain - truth).square().mean().sqrt() + rounding


@torch.no_grad()
def test_sums_over_many_chunks_do_not_round_to_half_precision():
    attention = LinformerAttention(8, 2, 4099, 1, sharing="kv", length_scaling=False, dtype=torch.bfloat16)
    layer = EncoderLayer(attention, 8, 0.0, norm_first=True, chunk_size=1, dtype=torch.bfloat16)
    torch.nn.init.ones_(attention.context.proj_k.weight)
    torch.nn.init.ones_(layer.norm1.bias)
    torch.nn.init.zeros_(layer.norm1.weight)
    found = []
    attention.register_forward_pre_hook(
        lambda module, args, options: found.append(options["key"].slots.values), with_kwargs=True
    )
    layer(torch.randn(1, 4099, 8).bfloat16())
    # A bfloat16 sum of ones stops at 256.
    expected = attention.v_proj(torch.full((1, 1, 8), 4099.0).bfloat16())
    assert_close(found[0].flatten(), expected.flatten(), rtol=0.02, atol=1.0)


class LargeTensors(TorchDispatchMode):
    """The places in memory of what functions returned that has at least so many numbers."""

    def __init__(self, numbers):
        super().__init__()
        self.numbers, self.kept = numbers, []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.untyped_storage().nbytes() >= self.numbers * result.itemsize:
            self.kept.append(result)  # kept, so that no other takes its place
        return result

    def places(self):
        return {tensor.untyped_storage().data_ptr() for tensor in self.kept}


@pytest.mark.parametrize(("memory", "sets"), [("none", 1), ("checkpoint", 1), ("reversible", 4)])
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
@torch.no_grad()
def test_nothing_is_as_large_as_the_hidden_states_but_they(pair, memory, sharing, sets):
    _, chunked = pair(chunk_size=8, norm_first=True, max_len=701, activation_memory=memory, sharing=sharing)
    src = torch.randn(1, 700, WIDTH, **DOUBLE)
    projections = {x.untyped_storage().data_ptr() for x in chunked.parameters()}
    with LargeTensors(src.numel() // 2) as large:
        chunked(src)
    # One set, which the layers after the first and the norm write over; or two streams and the mean of each layer.
    assert len(large.places() - projections - {src.untyped_storage().data_ptr()}) == sets
    with LargeTensors(src.numel() // 2) as large:
        chunked(src, overwrite=True)
    assert len(large.places() - projections - {src.untyped_storage().data_ptr()}) == (0 if sets == 1 else sets)


@pytest.mark.parametrize("memory", ["none", "reversible"])
@pytest.mark.parametrize("watched", ["layers.0", "layers.1", "layers.1.norm1", "norm"])
@torch.no_grad()
def test_nothing_that_a_hook_has_seen_is_written_over(pair, memory, watched):
    _, chunked = pair(chunk_size=8, norm_first=True, activation_memory=memory)
    src, seen = torch.randn(1, LENGTH, WIDTH, **DOUBLE), []

    def keep(module, args, output):
        outputs = output if isinstance(output, tuple) else (output,)
        seen.extend((tensor, tensor.clone()) for tensor in (*args, *outputs))

    chunked.get_submodule(watched).register_forward_hook(keep)
    for overwrite in (False, True):
        chunked(src, overwrite=overwrite)
    assert len(seen) >= 4
    assert all(torch.equal(tensor, before) for tensor, before in seen)


@pytest.mark.parametrize("options", [{}, {"window": 4}, {"causal": True}, {"batch_first": False}], ids=str)
@torch.no_grad()
def test_hooks_of_the_attention_see_its_chunks_and_may_change_them(pair, options):
    whole, chunked = pair(chunk_size=8, **options)
    src = torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    src = src if options.get("batch_first", True) else src.transpose(0, 1)
    for model in (whole, chunked):
        model.layers[1].self_attn.register_forward_hook(lambda module, args, output: (output[0] * 2, output[1]))
    assert_close(chunked(src), whole(src))


@pytest.mark.parametrize("chunk_size", [None, 5])
@torch.no_grad()
def test_a_past_is_refused_where_nothing_is_causal(pair, chunk_size):
    _, model = pair(chunk_size=chunk_size)
    with pytest.raises(ValueError, match=r"^past belongs to causal attention"):
        model(torch.randn(1, LENGTH, WIDTH, **DOUBLE), pasts=[Past(), Past()])
    with pytest.raises(ValueError, match=r"^past belongs to causal attention"):
        model.layers[0](torch.randn(1, LENGTH, WIDTH, **DOUBLE), past=Past())


def test_a_buffer_of_another_precision_is_left_alone():
    buffer, piece = torch.zeros(2, 3, dtype=torch.bfloat16), torch.rand(2, 3)
    parts = [(slice(0, 1), [piece[:1]]), (slice(1, 2), [piece[1:]])]
    assert torch.equal(gather(parts, 2, 0, [buffer])[0], piece) and not buffer.any()


@pytest.mark.parametrize("memory", ["none", "checkpoint", "reversible"])
def test_training_runs_the_feed_forward_in_chunks(pair, gradients, trailing_padding, memory):
    whole, chunked = pair(chunk_size=5, norm_first=True, gated=True, activation_memory=memory)
    src, mask = torch.randn(2, LENGTH, WIDTH, **DOUBLE), trailing_padding([23, 13], LENGTH)
    shapes, results = [], []
    chunked.layers[0].linear1.register_forward_hook(lambda module, args, output: shapes.append(output.shape[1]))
    for model in (whole, chunked):
        leaf = src.clone().requires_grad_()
        output = model(leaf, src_key_padding_mask=mask)
        results.append((output[~mask], gradients(output, [leaf, *model.parameters()])))
    assert_close(*results)
    assert set(shapes) == {5, 3}


@pytest.mark.parametrize("norm_first", [False, True], ids=["post-norm", "pre-norm"])
def test_training_keeps_no_hidden_activations_of_chunks(pair, norm_first):
    whole, chunked = pair(chunk_size=5, norm_first=norm_first)
    src = torch.randn(1, LENGTH, WIDTH, **DOUBLE, requires_grad=True)
    for model, expected in ((whole, True), (chunked, False)):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x, s=shapes: (s.append(x.shape[-1]), x)[1], lambda x: x):
            model(src)
        assert (17 in shapes) == expected


def test_weights_are_had_of_the_whole(pair):
    whole, chunked = pair(chunk_size=5)
    found = []
    for model in (whole, chunked):
        for layer in model.layers:
            layer.self_attn.register_forward_hook(lambda module, args, output: found.append(output[1]))
    src = torch.randn(1, LENGTH, WIDTH, **DOUBLE)
    with torch.no_grad():
        assert_close(chunked(src, need_weights=True), whole(src, need_weights=True))
    assert_close(found[:2], found[2:])


@pytest.mark.parametrize("build", [stack, full_stack, lambda **o: LinformerEncoderLayer(WIDTH, 4, **SIZES, **o)])
def test_no_positions_at_once_are_refused(build):
    with pytest.raises(
        ValueError, match=r"^chunk_size must be at least 1, or None for the whole sequence at once, got 0"
    ):
        build(chunk_size=0)


@torch.no_grad()
def test_what_the_whole_refuses_is_refused_in_chunks(pair):
    _, chunked = pair(chunk_size=5)
    with pytest.raises(ValueError, match="30 positions but max_len is 29"):
        chunked(torch.randn(1, 30, WIDTH, **DOUBLE))
    with pytest.raises(ValueError, match="query must have 2 or 3 dimensions, the last of 12 channels"):
        chunked(torch.randn(1, LENGTH, 11, **DOUBLE))
    with pytest.raises(ValueError, match="is not causal"):
        chunked(torch.randn(1, LENGTH, WIDTH, **DOUBLE), is_causal=True)
    with pytest.raises(ValueError, match="cannot apply an attn_mask"):
        chunked(torch.randn(1, LENGTH, WIDTH, **DOUBLE), torch.zeros(LENGTH, LENGTH))
    assert chunked(torch.randn(2, 0, WIDTH, **DOUBLE)).shape == (2, 0, WIDTH)
