"""Slots and a window by FlexAttention: what it computes, compiles, keeps and refuses; test_window.py has its results.

On a CPU, by FlexAttention's own plain formula; its kernels have not run here.
"""

import pytest
import torch
from budgets import FLEX_ROUNDINGS
from calls import attend_with_window
from torch.nn.attention import flex_attention as flex_module
from torch.testing import assert_close

from torch_linformer.functional import flex, use_implementation
from torch_linformer.nn import LinformerAttention

pytestmark = [
    pytest.mark.cpu("the plain formula of FlexAttention"),
    pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),  # torch's own
]
DOUBLE = {"dtype": torch.float64}
FLEX = {"impl": "flex"}


@pytest.fixture(autouse=True)
def flex_with_gradients(monkeypatch):
    """FlexAttention refuses tensors that want a gradient on a CPU, in one check; its plain formula has a gradient."""
    monkeypatch.setattr(flex_module, "_validate_device", lambda query, key, value: None)
    torch._dynamo.reset()  # each shape is recorded anew, and there is a limit to how often
    yield
    torch._dynamo.reset()


def draw_inputs(batch, heads, queries, positions, num_slots, width, v_width):
    """Query, slots of keys and values, keys and values: float64, all wanting a gradient."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(queries, width), (num_slots, width), (num_slots, v_width), (positions, width), (positions, v_width)]
    return [torch.randn(batch, heads, *shape, generator=generator, requires_grad=True, **DOUBLE) for shape in shapes]


@pytest.mark.parametrize(
    ("queries", "positions", "offset"), [(300, 300, 0), (131, 197, 33), (1, 129, 128), (129, 1, 0)]
)
def test_blocks_of_the_kernel_hold_all_that_is_seen(queries, positions, offset):
    """Every block with a pair that is seen is computed, and few others: the plain formula does not look at blocks."""
    for num_slots, reach in ((0, 1), (5, 64), (128, 0), (200, 33), (300, 300)):
        columns = num_slots + positions
        row, column = torch.arange(queries).unsqueeze(-1), torch.arange(columns)
        seen = (column < num_slots) | ((column - num_slots - offset - row).abs() <= reach)
        fill = (0, -columns % 128, 0, -queries % 128)
        expected = torch.nn.functional.pad(seen, fill).unflatten(1, (-1, 128)).unflatten(0, (-1, 128)).any(3).any(1)
        blocks = flex._blocks(num_slots, reach, offset, (queries, columns), torch.device("cpu"))
        # Of a block of queries one more, whose last one reaches past them; of a block of columns those that its first
        # window would reach before the first query.
        for (number, index), pairs, more in zip(
            (blocks[:2], blocks[2:]), (expected, expected.T), (1, 2 + (reach + offset + num_slots) // 128), strict=True
        ):
            assert index.shape == (1, 1, *pairs.shape) and index.min() >= 0 and index.max() < pairs.shape[1]
            for block, needed in enumerate(pairs):
                computed = index[0, 0, block, : number[0, 0, block]].tolist()
                assert len(set(computed)) == len(computed) <= int(needed.sum()) + more
                assert set(needed.nonzero().flatten().tolist()) <= set(computed)


def test_what_is_kept_of_the_blocks_is_linear_in_the_length():
    """Of 262,144 tokens 82 kB; all pairs of blocks are 16.8 MB, twice."""
    sizes = {}
    for length in (2**15, 2**16, 2**18):
        blocks = flex._find_blocks(256, 64, 0, (length, length + 256), torch.device("cpu"))
        assert blocks[1].shape == (1, 1, length // 128, length // 128 + 2)
        sizes[length] = sum(x.untyped_storage().nbytes() for x in blocks)
    assert sizes[2**18] < 100_000 and sizes[2**16] < 2 * sizes[2**15] and sizes[2**18] < 8 * sizes[2**15]
    assert flex._kept_blocks.cache_info().maxsize <= 4


def test_blocks_are_kept_for_the_next_call_and_training_can_take_those_of_inference(gradients):
    flex._kept_blocks.cache_clear()
    inputs = draw_inputs(2, 2, 7, 7, 3, 5, 5)
    with torch.inference_mode():
        first, _ = attend_with_window(*(x.detach() for x in inputs), 2, **FLEX)
    again, _ = attend_with_window(*inputs, 2, key_padding=torch.zeros(2, 7, dtype=torch.bool), **FLEX)
    assert_close(again, first.clone())
    assert all(x.isfinite().all() for x in gradients(again, inputs))
    assert flex._kept_blocks.cache_info()[:2] == (1, 1)  # found once, made once


@pytest.mark.parametrize("kind", ["mean", "masses", "exact", "multi-query", "window", "linear"])
@pytest.mark.parametrize("side", ["left", "right"])
def test_modules_give_what_they_give_by_torch(gradients, kind, side):
    options = {
        "mean": {"projection": "mean"},
        "masses": {"projection": "mean", "slot_mass": "learned"},
        "exact": {"projection": "mean", "slot_mass": "fixed", "exact_first": 2, "exact_last": 1},
        "multi-query": {"projection": "mean", "num_kv_heads": 2},
        "window": {"k": 0, "exact_first": 1},
        "linear": {"slot_bias": True},
    }[kind]
    torch.manual_seed(0)
    attention = LinformerAttention(12, 4, **{"max_len": 19, "k": 5, "window": 4, **options}, **DOUBLE)
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.copy_(torch.randn_like(parameter))
    x = torch.randn(3, 13, 12, requires_grad=True, **DOUBLE)
    real = torch.arange(13) < torch.tensor([[13], [8], [3]])
    real = real.flip(1) if side == "left" else real
    results = []
    for name in ("flex", "torch"):
        with use_implementation(name, "torch") as ran:
            output, _ = attention(x, x, x, key_padding_mask=~real)
        assert ran["windowed attention"] == {name}
        wanted = [x, *attention.parameters()]
        results.append([output[real], *gradients(output[real], wanted)])
    for actual, expected in zip(*results, strict=True):
        assert_close(actual, expected)


@torch.no_grad()
def test_a_compiled_graph_holds_it():
    inputs = [x.detach() for x in draw_inputs(2, 2, 7, 7, 3, 5, 5)]
    mask = torch.arange(7) >= torch.tensor([[7], [5]])
    bias = torch.linspace(-1, 1, 6, **DOUBLE).view(1, 2, 3)

    def call(*inputs):
        return attend_with_window(*inputs, 2, key_padding=mask, slot_bias=bias, offset=0, **FLEX)[0]

    compiled = torch.compile(call, backend="eager", fullgraph=True)
    assert_close(compiled(*inputs), attend_with_window(*inputs, 2, key_padding=mask, slot_bias=bias)[0])
    graphs = []
    torch.compile(call, backend=lambda graph, _: graphs.append(graph) or graph.forward, fullgraph=True)(*inputs)
    assert "flex_attention" in graphs[0].code


def test_on_a_gpu_it_is_compiled_once_and_on_a_cpu_not_at_all():
    by_gpu = flex.flex_attention_on("cuda")
    assert by_gpu is flex.flex_attention_on("cuda") and hasattr(by_gpu, "_torchdynamo_orig_callable")
    assert flex.flex_attention_on("cpu") is flex_module.flex_attention


def test_auto_never_takes_it():
    inputs = [x.detach().float() for x in draw_inputs(1, 2, 7, 7, 3, 16, 16)]
    for device, expected in (("cpu", "flash"), ("meta", "torch")):
        with use_implementation("auto") as ran:
            attend_with_window(*(x.to(device) for x in inputs), 2)
        assert ran["windowed attention"] == {expected}


REFUSED = {
    "a bias of distances": (
        lambda x: attend_with_window(*x, 2, window_bias=torch.zeros(1, 5, **DOUBLE), **FLEX),
        "it adds no bias to the scores of a window",
    ),
    "weights": (lambda x: attend_with_window(*x, 1, need_weights=True, **FLEX), "it returns no weights"),
    "dropout": (lambda x: attend_with_window(*x, 1, dropout_p=0.5, **FLEX), "it drops no weights"),
    "no rows": (
        lambda x: attend_with_window(*(t[:0] for t in x), 1, **FLEX),
        r"a row, a query and a key, got \(0, 2, 7, 5\)",
    ),
    "no keys": (
        lambda x: attend_with_window(x[0], *(t[:, :, :0] for t in x[1:]), 1, **FLEX),
        r"a key, got .*2, 0, 5\)",
    ),
    "device": (lambda x: attend_with_window(*(t.to("meta") for t in x), 1, **FLEX), "it runs on cpu, cuda, xpu, and"),
    "transforms": (
        lambda x: torch.func.vmap(lambda scale: attend_with_window(scale * x[0], *x[1:], 1, **FLEX)[0])(torch.ones(2)),
        "the transforms of torch.func",
    ),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_it_cannot_compute_is_refused(why):
    call, reason = REFUSED[why]
    inputs = [x.detach() for x in draw_inputs(2, 2, 7, 7, 3, 5, 5)]
    with pytest.raises(ValueError, match=rf"^flex cannot compute this windowed attention: .*{reason}.*; choose 'auto'"):
        call(inputs)


def test_other_operations_have_no_such_implementation():
    x = torch.zeros(2, 7, 12)
    attention = LinformerAttention(12, 4, max_len=7, k=3, window=2)
    with (
        use_implementation("flex"),
        pytest.raises(ValueError, match=r"flex cannot compute this linear: it has no such"),
    ):
        attention(x, x, x)
    message = r"flex cannot compute this linear: .*; onednn cannot compute this linear: .*\('flex', 'onednn', 'torch'\)"
    with use_implementation("flex", "onednn"), pytest.raises(ValueError, match=message):
        attention(*[x.double()] * 3)


def test_under_autocast_it_computes_in_its_type():
    inputs = [x.detach().float() for x in draw_inputs(2, 2, 11, 11, 3, 16, 16)]
    with torch.autocast("cpu", torch.bfloat16):
        actual, _ = attend_with_window(inputs[0].bfloat16(), *inputs[1:], 2, **FLEX)
    assert actual.dtype == torch.bfloat16
    expected, _ = attend_with_window(*inputs, 2)
    assert (actual - expected).abs().max() <= FLEX_ROUNDINGS * torch.finfo(torch.bfloat16).eps * expected.abs().max()
