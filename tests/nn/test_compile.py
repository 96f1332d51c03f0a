"""`torch.compile` and `torch.export`: one graph for every batch size and length, equal to eager."""

import shutil

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerEncoder

MAX_LEN, K = 23, 5
SIZES = {"max_len": MAX_LEN, "k": K, "dtype": torch.float64}
SHAPES = [(2, 7), (5, MAX_LEN), (4, 3)]  # longer than K, full length, shorter than K
# Blocks are of 64 positions: less than one, a whole one, a position more, several, and two groups of eight and more.
LENGTHS = (70, 3, 64, 65, 130, 33, 128, 7, 1100)
IN_BLOCKS = {
    "window": {"window": 5},
    "mean-window": {"projection": "mean", "window": 5},
    "max-window": {"projection": "max", "window": 4},
    "dynamic-window": {
        "projection": "dynamic",
        "sharing": "kv_per_head",
        "slot_mass": "fixed",
        "window": 5,
        "exact_first": 1,
    },
    "only-window": {"k": 0, "window": 4, "exact_last": 1},
    "causal-only-window": {"causal": True, "window": 70, "k": 0},
}


@pytest.fixture(autouse=True)
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def encoder(projection="linear", sharing="headwise", layers=1):
    options = {"slot_mass": "learned", "exact_first": 2, "exact_last": 1} if projection == "dynamic" else {}
    return LinformerEncoder(12, 3, layers, 16, 0.0, projection=projection, sharing=sharing, **options, **SIZES)


def encoder_in_blocks(options):
    return LinformerEncoder(6, 3, 1, 7, 0.0, **{**SIZES, "max_len": max(LENGTHS), **options})


def random(*shape, **options):
    return torch.randn(shape, dtype=torch.float64, **options)


def padding(trailing_padding, batch, length):
    """Rows ever shorter, the last of them padded throughout."""
    lengths = [max(length - 2 * row, 0) for row in range(batch - 1)]
    return trailing_padding([*lengths, 0], length)


# Forward and backward pass are traced together where it takes no half a minute; else autograd makes the gradients.
@pytest.mark.parametrize(
    ("options", "padded", "backend"),
    [
        ({"projection": "conv", "sharing": "none", "max_len": max(LENGTHS) + 1}, False, "eager"),
        ({"projection": "dynamic", "sharing": "kv_per_head", "window": 5}, True, "aot_eager"),
        ({"causal": True, "window": 5, "exact_first": 3}, True, "eager"),
    ],
    ids=["conv", "dynamic-window", "causal-window"],
)
def test_one_compiled_graph_serves_every_number_of_blocks(gradients, trailing_padding, options, padded, backend):
    model = encoder_in_blocks(options)
    counter = CompileCounterWithBackend(backend)
    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend=counter)
    graphs = []
    for row, length in enumerate((70, 3, 130, 1000)):
        x = random(2 + row % 3, length, 6, requires_grad=True)
        mask = trailing_padding([max(length - 2 * row, 1) for row in range(len(x))], length) if padded else None
        outputs = compiled(x, src_key_padding_mask=mask), model(x, src_key_padding_mask=mask)
        actual, expected = (output if mask is None else output[~mask] for output in outputs)
        assert_close(actual, expected)
        sources = [x, *model.parameters()]
        assert_close(gradients(actual, sources), gradients(expected, sources))
        graphs.append(counter.frame_count)
    assert graphs == graphs[:1] * 4


@pytest.mark.parametrize(
    "options",
    [{"num_kv_heads": 1}, {"window": 5}, {"window": 5, "causal": True}],
    ids=["multi-query", "window", "causal"],
)
@torch.no_grad()
def test_attention_with_weights_compiles(trailing_padding, options):
    module = LinformerAttention(12, 3, **SIZES, **options)
    compiled = torch.compile(module, fullgraph=True, dynamic=True, backend="eager")
    for batch, length in SHAPES[:2]:
        memory, mask = random(batch, length, 12), padding(trailing_padding, batch, length)
        query = memory if "window" in options else random(batch, 4, 12)
        assert_close(
            compiled(query, memory, memory, mask, need_weights=True),
            module(query, memory, memory, mask, need_weights=True),
        )


@pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "clang++", "c++"))),
    reason="the default backend builds C++, and no C++ compiler (g++, clang++ or c++) is installed",
)
@pytest.mark.skipif(" " in torch.__file__, reason="the default backend cannot link where torch's path has a space")
@pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning")  # torch's own
def test_default_backend_gives_the_same(gradients, trailing_padding):
    module = LinformerAttention(12, 3, **SIZES)
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for batch, length in SHAPES[:2]:
        x, mask = random(batch, length, 12, requires_grad=True), padding(trailing_padding, batch, length)
        actual, expected = compiled(x, x, x, mask)[0], module(x, x, x, mask)[0]
        assert_close(actual, expected)
        sources = [x, *module.parameters()]
        assert_close(gradients(actual, sources), gradients(expected, sources))


@pytest.mark.parametrize(
    ("projection", "sharing", "padded"),
    [
        *((projection, "headwise", True) for projection in ("linear", "random", "conv", "dynamic")),
        *((projection, "none", False) for projection in ("linear", "dynamic")),
    ],
)
def test_exported_program_serves_every_batch_and_length(trailing_padding, projection, sharing, padded):
    model = encoder(projection, sharing).eval()
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=MAX_LEN)}
    masks = {"src_key_padding_mask": padding(trailing_padding, 2, 7)} if padded else {}
    shapes = {"src": sizes, **({"src_key_padding_mask": sizes} if padded else {})}
    program = torch.export.export(model, (random(2, 7, 12),), masks, dynamic_shapes=shapes).module()
    for batch, length in [*SHAPES, (1, 1), (1, MAX_LEN)]:
        x = random(batch, length, 12)
        masks = {"src_key_padding_mask": padding(trailing_padding, batch, length)} if padded else {}
        assert_close(program(x, **masks), model(x, **masks))


@pytest.mark.parametrize("kind", IN_BLOCKS)
def test_exported_program_serves_every_number_of_blocks(trailing_padding, kind):
    model = encoder_in_blocks(IN_BLOCKS[kind]).eval()
    longest = None if "causal" in kind else max(LENGTHS)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length", max=longest)}

    def inputs(batch, length):
        lengths = [max(length - 2 * row, 1) for row in range(batch)]
        return {"src": random(batch, length, 6), "src_key_padding_mask": trailing_padding(lengths, length)}

    example = inputs(2, 11)
    program = torch.export.export(model, (), example, dynamic_shapes=dict.fromkeys(example, sizes)).module()
    for row, length in enumerate([*LENGTHS, 1]):
        batch = inputs(1 + row % 3, length)
        real = ~batch["src_key_padding_mask"]
        assert_close(program(**batch)[real], model(**batch)[real])
