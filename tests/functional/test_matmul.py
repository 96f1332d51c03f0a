"""Products by oneDNN are those of torch: value and every gradient, and where they are not to be used."""

from contextlib import contextmanager

import pytest
import torch
from budgets import MORE_ROUNDINGS, ROUNDINGS
from calls import attend
from torch.autograd import forward_ad
from torch.nn import functional as F
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode

from torch_linformer.functional import cpu, products, softmax, use_implementation

pytestmark = [
    pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN"),
    pytest.mark.cpu("oneDNN"),
]

ROWS, INPUTS, OUTPUTS = 211, 227, 223  # primes, and enough multiplications for oneDNN


@pytest.fixture(autouse=True)
def faster_onednn(monkeypatch):
    """A processor on which oneDNN is the faster one, whatever this one is."""
    monkeypatch.setattr(cpu, "MKL_IS_HELD_BACK", True)


@contextmanager
def switched_off():
    """What a user does who wants torch's own products; torch's context manager for it warns."""
    torch.backends.mkldnn.set_flags(False)
    yield
    torch.backends.mkldnn.set_flags(True)


def draw(*shapes):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def uses_onednn(output):
    return type(output.grad_fn).__name__ == "_OneDNNLinearBackward"


def assert_within_budget(actual, plain, exact):
    """No further from float64 than three times torch's own float32, plus a rounding."""
    error, allowed = (actual.double() - exact).abs().max(), (plain.double() - exact).abs().max()
    rounding = ROUNDINGS * torch.finfo(plain.dtype).eps * exact.abs().max()
    assert error <= MORE_ROUNDINGS * allowed + rounding


has_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 products for this processor"
)


@pytest.mark.parametrize(
    "precision",
    ["float32", pytest.param("bfloat16", marks=has_bfloat16), pytest.param("autocast", marks=has_bfloat16)],
)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("layout", ["rows", "batches", "transposed"])
def test_values_and_gradients(layout, bias, precision, gradients):
    input, weight, vector = draw((ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    parts = [input, weight] + [vector] * bias
    if precision == "bfloat16":
        parts = [x.detach().bfloat16().requires_grad_() for x in parts]

    def run(linear, input, weight, vector=None):
        if layout == "batches":
            input = input.view(1, ROWS, INPUTS).expand(3, ROWS, INPUTS)
        if layout == "transposed":
            input, weight = input.t().contiguous().t(), weight.t().contiguous().t()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast" and input.dtype == torch.float32):
            return linear(input, weight, vector)

    doubles = [x.detach().double().requires_grad_() for x in parts]
    outputs = run(products.linear, *parts), run(F.linear, *parts), run(F.linear, *doubles)
    assert uses_onednn(outputs[0])
    assert outputs[0].dtype == outputs[1].dtype
    assert_within_budget(*outputs)
    wanted = (parts, parts, doubles)
    for triple in zip(*(gradients(o, w) for o, w in zip(outputs, wanted, strict=True)), strict=True):
        assert_within_budget(*triple)


def test_gradients_of_gradients(gradients):
    input, weight = draw((ROWS, INPUTS), (OUTPUTS, INPUTS))

    def second(linear, *parts):
        (grad,) = torch.autograd.grad(linear(*parts).square().sum(), parts[0], create_graph=True)
        return gradients(grad, parts)

    doubles = [x.detach().double().requires_grad_() for x in (input, weight)]
    results = second(products.linear, input, weight), second(F.linear, input, weight), second(F.linear, *doubles)
    for triple in zip(*results, strict=True):
        assert_within_budget(*triple)


def test_only_the_gradients_that_are_wanted():
    input, weight, bias = draw((ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    for frozen in (input, weight, bias):
        wanted = [x for x in (input, weight, bias) if x is not frozen]
        frozen.requires_grad_(False)
        products.linear(input, weight, bias).sum().backward()
        assert frozen.grad is None and all(x.grad is not None for x in wanted)
        frozen.requires_grad_(True)
        input.grad = weight.grad = bias.grad = None


def test_the_maps_of_a_batch_of_sequences(monkeypatch):
    monkeypatch.setattr(products, "AT_ONCE", ROWS - 10)
    mixture, sequence = draw((ROWS, 97), (3, ROWS, 431))
    exact = torch.einsum("mk,bmc->bkc", mixture.double(), sequence.double())
    plain = torch.einsum("mk,bmc->bkc", mixture, sequence)
    assert_within_budget(products.mix_positions(mixture, sequence), plain, exact)


def test_small_products_and_other_types_are_torchs_own():
    input, weight = draw((ROWS, INPUTS), (OUTPUTS, INPUTS))
    assert not uses_onednn(products.linear(input[:5], weight))
    assert not uses_onednn(products.linear(input.double(), weight.double()))
    assert not uses_onednn(products.linear(input.half(), weight.half()))
    assert not uses_onednn(products.linear(input[0], weight.expand(5, OUTPUTS, INPUTS).reshape(-1, INPUTS)))
    with switched_off():
        assert_close(products.linear(input, weight), F.linear(input, weight), rtol=0, atol=0)


def test_tools_that_watch_operations_see_torchs_own():
    input, weight = draw((ROWS, INPUTS), (OUTPUTS, INPUTS))
    with FlopCounterMode(display=False) as counter:
        products.linear(input, weight)
    assert counter.get_total_flops() == 2 * ROWS * INPUTS * OUTPUTS
    mapped = torch.func.vmap(lambda row: products.linear(row, weight))(input.detach().expand(3, ROWS, INPUTS))
    assert_close(mapped[1], F.linear(input, weight))
    grad = torch.func.grad(lambda x: products.linear(x, weight).square().sum())(input.detach())
    assert_close(grad, torch.autograd.grad(F.linear(input, weight).square().sum(), input)[0])


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")  # torch's own
def test_forward_mode_derivatives_are_torchs_own():
    parts = [x.detach() for x in draw((ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))]
    tangents = [x.flip(0) for x in parts]
    with forward_ad.dual_level():
        dual = [forward_ad.make_dual(x, tangent) for x, tangent in zip(parts, tangents, strict=True)]
        actual, expected = (forward_ad.unpack_dual(f(*dual)).tangent for f in (products.linear, F.linear))
    assert torch.equal(actual, expected) and actual.any()


@pytest.mark.filterwarnings("ignore:.torch.jit.trace:DeprecationWarning")
def test_traced_graphs_hold_torchs_own():
    class Map(torch.nn.Linear):
        def forward(self, input):
            return products.linear(input, self.weight, self.bias)

    module, (example, other) = Map(INPUTS, OUTPUTS), draw((ROWS, INPUTS), (ROWS + 2, INPUTS))
    traced = torch.jit.trace(module, (example,))
    assert "PythonOp" not in str(traced.inlined_graph)
    assert_close(traced(other), F.linear(other, module.weight, module.bias))


def queries_keys_values(value_width=7):
    generator = torch.Generator().manual_seed(0)
    shapes = (3, 37, 6, 5), (3, 11, 2, 5), (3, 11, 2, value_width)
    return [torch.randn(shape, generator=generator).bfloat16().transpose(1, 2) for shape in shapes]


@has_bfloat16
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_in_blocks(masked, scale, monkeypatch):
    monkeypatch.setattr(softmax, "SCORES", 3 * 6 * 11 * 8)  # five blocks of 8 queries, the last one of 5
    monkeypatch.setattr(softmax, "FEWEST_ROWS", 8)
    inputs = queries_keys_values()
    mask = torch.tensor([[0] * 11, [0] * 4 + [1] * 7, [1] * 11]).bool() if masked else None
    doubles = [x.double() for x in inputs]
    exact, _ = attend(*doubles, padding_mask=mask, scale=scale, need_weights=True)
    plain, _ = attend(*inputs, padding_mask=mask, scale=scale, need_weights=True)
    actual, weights = attend(*inputs, padding_mask=mask, scale=scale)
    assert weights is None and actual.dtype == torch.bfloat16
    assert_within_budget(actual, plain, exact)
    with switched_off():
        by_sdpa, _ = attend(*inputs, padding_mask=mask, scale=scale)
    assert not torch.equal(actual, by_sdpa), "the blocks were not taken"


@has_bfloat16
def test_many_keys_are_attended_by_sdpa(monkeypatch):
    inputs = queries_keys_values()
    taken, _ = attend(*inputs)
    monkeypatch.setattr(softmax, "SCORES", 3 * 6 * 11 * softmax.FEWEST_ROWS - 1)
    left, _ = attend(*inputs)
    with switched_off():
        by_sdpa, _ = attend(*inputs)
    assert torch.equal(left, by_sdpa) and not torch.equal(taken, by_sdpa)


def test_attention_in_blocks_is_for_inference():
    inputs = [x.requires_grad_() for x in queries_keys_values(value_width=5)]
    kept_sizes = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: kept_sizes.append(t.numel()) or t, lambda t: t):
        attend(*inputs)
    assert max(kept_sizes) < 3 * 6 * 37 * 11, "training would keep the weights of every query"
    with torch.no_grad():
        dropped, _ = attend(*queries_keys_values(), dropout_p=0.9)
        kept, _ = attend(*queries_keys_values())
    assert (dropped - kept).abs().max() > 0.1


@has_bfloat16
@pytest.mark.parametrize("held_back", [True, False])
@pytest.mark.parametrize("precision", ["bfloat16", "autocast"])
@pytest.mark.parametrize("activation", [F.gelu, F.relu, F.silu], ids=["gelu", "relu", "silu"])
def test_an_activation_beside_its_product(monkeypatch, activation, precision, held_back):
    """In inference one step on any processor; what training needs, and functions that oneDNN does not know, are two."""
    monkeypatch.setattr(cpu, "MKL_IS_HELD_BACK", held_back)
    parts = draw((2, ROWS, INPUTS), (OUTPUTS, INPUTS), (OUTPUTS,))
    if precision == "bfloat16":
        parts = [part.detach().bfloat16().requires_grad_() for part in parts]

    def run(function):
        autocast = torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast")
        with autocast, use_implementation("auto") as ran:
            return products.activated_linear(function, *parts), ran.get("linear with activation")

    exact = activation(F.linear(*(part.detach().bfloat16().double() for part in parts)))
    with torch.no_grad():
        output, ran = run(activation)
        assert ran == {"onednn"} and output.dtype == torch.bfloat16
        plain = activation(F.linear(*(part.bfloat16() for part in parts)))
        assert_within_budget(output, plain, exact)
        assert run(lambda x: activation(x))[1] is None
        with use_implementation("torch") as ran:
            products.activated_linear(activation, *parts)
        assert set(ran["linear with activation"]) == {"torch"}
    output, ran = run(activation)
    assert ran is None and output.requires_grad
