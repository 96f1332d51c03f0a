"""Which implementation computes an operation can be forced and asked, and is never replaced without a word."""

import threading

import pytest
import torch
from budgets import LAYER_ROUNDINGS, MORE_ROUNDINGS, PRODUCT_ROUNDINGS
from calls import attend, attend_with_window
from torch.utils.flop_counter import FlopCounterMode

from torch_linformer.functional import (
    CausalSlots,
    SlotWeights,
    causal_linformer_attention,
    cpu,
    dynamic_slots,
    implementations,
    linformer_attention,
    project_sequence,
    use_implementation,
)
from torch_linformer.functional.products import activated_linear, linear, mix_positions
from torch_linformer.functional.softmax import attend_to_past
from torch_linformer.nn import LinformerAttention, LinformerEncoderLayer

pytestmark = pytest.mark.cpu("what runs there is oneDNN or torch")
has_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")
has_bfloat16 = pytest.mark.skipif(
    not torch.ops.mkldnn._is_mkldnn_bf16_supported(), reason="oneDNN has no bfloat16 products for this processor"
)


def draw(*shapes, dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype) for shape in shapes]


OPERATIONS = {
    "linear": (linear, [(2, 7, 13), (11, 13), (11,)]),
    "linear of one row": (linear, [(13,), (11, 13)]),
    "shared projection": (project_sequence, [(2, 7, 5), (11, 3)]),
    "projection of heads": (project_sequence, [(2, 3, 7, 5), (11, 3)]),
    "projection per head": (project_sequence, [(2, 3, 7, 5), (3, 11, 3)]),
    "linformer_attention": (linformer_attention, [(2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 19), (13, 17), (3, 13, 17)]),
    "attend": (lambda *x, **options: attend(*x, **options)[0], [(2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 19)]),
    "with weights": (
        lambda *x, **options: torch.cat(attend(*x, need_weights=True, **options), dim=-1),
        [(2, 3, 7, 5), (2, 3, 11, 5), (2, 3, 11, 19)],
    ),
}
FLOAT32 = ["linear", "linear of one row", "shared projection", "projection of heads", "projection per head"]


def run(name, impl, dtype, requires_grad, gradients, use=None):
    """Output and, where they are wanted, gradients; ``use``: the implementation that is named around the call."""
    function, shapes = OPERATIONS[name]
    inputs = [x.requires_grad_(requires_grad) for x in draw(*shapes, dtype=dtype)]
    options = {"impl": impl} if impl else {}
    if use:
        with use_implementation(use):
            output = function(*inputs, **options)
    else:
        output = function(*inputs, **options)
    return [output, *(gradients(output, inputs) if requires_grad else [])]


@has_onednn
@pytest.mark.parametrize("requires_grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in FLOAT32),
        *(pytest.param(name, torch.bfloat16, marks=has_bfloat16) for name in OPERATIONS),
    ],
    ids=str,
)
def test_each_implementation_gives_the_same_within_rounding(name, dtype, requires_grad, gradients):
    exact = run(name, "torch", torch.float64, requires_grad, gradients)
    plain = run(name, "torch", dtype, requires_grad, gradients)
    forced = run(name, "onednn", dtype, requires_grad, gradients)
    by_context = run(name, None, dtype, requires_grad, gradients, use="onednn")
    for truth, naive, *results in zip(exact, plain, forced, by_context, strict=True):
        rounding = PRODUCT_ROUNDINGS * torch.finfo(dtype).eps * truth.abs().max()
        allowed = MORE_ROUNDINGS * (naive - truth).abs().max() + rounding
        for actual in results:
            assert actual.dtype == dtype and actual.shape == truth.shape
            assert (actual - truth).abs().max() <= allowed
    assert all(torch.equal(*pair) for pair in zip(forced, by_context, strict=True))


@has_onednn
def test_the_product_that_is_forced_is_onednns_and_so_is_its_gradient():
    input, weight = (x.requires_grad_() for x in draw((7, 13), (11, 13), dtype=torch.float32))
    output = linear(input, weight, impl="onednn")
    assert type(output.grad_fn).__name__ == "_OneDNNLinearBackward"
    assert type(linear(input, weight, impl="torch").grad_fn).__name__ != "_OneDNNLinearBackward"
    (grad,) = torch.autograd.grad(output.square().sum(), input, create_graph=True)
    assert type(grad.grad_fn).__name__ == "_OneDNNLinearBackward"


@has_onednn
@has_bfloat16
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_modules_follow_the_implementation_that_is_named_around_them(padded):
    torch.manual_seed(0)
    layer = LinformerEncoderLayer(24, 3, 48, max_len=16, k=5, dropout=0.0).bfloat16().eval()
    (x,) = draw((2, 11, 24), dtype=torch.bfloat16)
    mask = torch.arange(11) >= torch.tensor([[11], [4]]) if padded else None
    outputs = {}
    for name in ("torch", "onednn"):
        with torch.no_grad(), use_implementation(name) as ran:
            outputs[name] = layer(x, src_key_padding_mask=mask)
        operations = ["linear", "linear with activation", "projection", "attention"]
        choices = {"order of products": {"compress first"}, "queries": {"at once"}}
        assert ran == {**{operation: {name} for operation in operations}, **choices}
    real = slice(None) if mask is None else ~mask
    difference = (outputs["onednn"] - outputs["torch"]).float()[real].abs().max()
    rounding = torch.finfo(torch.bfloat16).eps * outputs["torch"].float()[real].abs().max()
    assert difference <= LAYER_ROUNDINGS * rounding


@has_onednn
def test_what_ran_is_listed_by_operation():
    input, weight = draw((7, 13), (11, 13), dtype=torch.float32)
    query, key = draw((2, 3, 7, 5), (2, 3, 11, 5), dtype=torch.float32)
    with use_implementation("onednn", "torch") as outer:
        linear(input, weight)
        with use_implementation("torch") as inner:
            linear(input, weight)
        attend(query, key, key)
        attend_with_window(query, key, key, query, query, 2)
        attend_to_past(query, query, query)  # in one way: nothing to choose, and nothing listed
        causal_linformer_attention(query, query, query, CausalSlots(SlotWeights(torch.tensor([0.1]))))  # likewise
        mix_positions(weight, weight.unsqueeze(0), impl="onednn")
    linear(input, weight)
    assert inner == {"linear": {"torch"}}
    assert outer == {
        "linear": {"onednn", "torch"},
        "attention": {"torch"},
        "windowed attention": {"torch"},
        "projection": {"onednn"},
    }
    with use_implementation("auto") as ran:
        linear(input, weight)
    assert ran == {"linear": {"torch"}}, "small products are PyTorch's own"


REFUSED = {
    "its type": (lambda x: linear(x.double(), x.double()), "float32 or torch.bfloat16, got torch.float64"),
    "two types": (lambda x: linear(x, x.double()), "got torch.float32, torch.float64"),
    "attention": (
        lambda x: attend(x[None, None], x[None, None], x[None, None]),
        "attention: it takes .* torch.float32",
    ),
    "another device": (lambda x: linear(x.to("meta"), x), "runs on a CPU, and a tensor is on meta"),
    "a subclass": (lambda x: linear(x.as_subclass(type("Own", (torch.Tensor,), {})), x), "plain tensors, got Own"),
    "transforms": (lambda x: torch.func.vmap(lambda row: linear(row, x))(x), "torch.func know PyTorch's own"),
}


@has_onednn
@pytest.mark.parametrize("why", REFUSED)
def test_an_implementation_that_cannot_run_is_refused(why):
    call, reason = REFUSED[why]
    (x,) = draw((5, 5), dtype=torch.float32)
    message = rf"onednn cannot compute this .*{reason}.*; choose 'auto' or 'torch'"
    with use_implementation("onednn"), pytest.raises(ValueError, match=message):
        call(x)


def test_a_switched_off_library_is_refused():
    (x,) = draw((2, 3, 7, 5), dtype=torch.float32)
    torch.backends.mkldnn.set_flags(False)
    try:
        with pytest.raises(ValueError, match=r"mkldnn is switched off|built without"):
            project_sequence(x, x.new_ones(11, 3), impl="onednn")
    finally:
        torch.backends.mkldnn.set_flags(True)


@has_onednn
def test_a_compiled_graph_does_not_hide_that_onednn_was_asked_for():
    x, proj = draw((2, 7, 5), (11, 3), dtype=torch.float32)
    compiled = torch.compile(lambda x, proj: project_sequence(x, proj), backend="eager")
    expected = compiled(x, proj)
    with use_implementation("torch") as ran:
        torch.testing.assert_close(compiled(x, proj), expected)
    assert ran == {}
    message = "onednn cannot compute this projection: compiled and traced graphs hold PyTorch's own"
    with use_implementation("onednn"), pytest.raises(ValueError, match=message):
        compiled(x, proj)
    torch.testing.assert_close(compiled(x, proj), expected)


@pytest.mark.parametrize("call", ["linformer_attention", "project_sequence"])
def test_unknown_names_are_refused(call):
    x, proj = draw((2, 3, 7, 5), (11, 3))
    calls = {
        "linformer_attention": lambda: linformer_attention(x, x, x, proj, proj, impl="cudnn"),
        "project_sequence": lambda: project_sequence(x, proj, impl="cudnn"),
    }
    message = r"impl must be one of auto, torch, .*got 'cudnn'"
    with pytest.raises(ValueError, match=message):
        calls[call]()
    with pytest.raises(ValueError, match=message), use_implementation("torch", "cudnn"):
        pass
    with pytest.raises(ValueError, match="needs at least one name, such as 'auto'"), use_implementation():
        pass


@has_onednn
def test_the_choice_ends_with_its_block_even_by_an_exception():
    input, weight = draw((7, 13), (11, 13))
    with pytest.raises(RuntimeError, match="other"), use_implementation("onednn"):
        raise RuntimeError("other")
    linear(input, weight)  # of float64, which oneDNN refuses
    with use_implementation("onednn"):
        with pytest.raises(ZeroDivisionError), use_implementation("torch"):
            _ = 1 / 0
        with pytest.raises(ValueError, match="onednn cannot"):
            linear(input, weight)


@has_onednn
def test_the_choice_holds_in_its_own_thread_only():
    input, weight = draw((7, 13), (11, 13))
    outcomes = []

    def in_another_thread():
        with use_implementation("auto") as ran:
            linear(input, weight)
        outcomes.append(ran)

    with use_implementation("onednn") as ran:
        thread = threading.Thread(target=in_another_thread)
        thread.start()
        thread.join()
        with pytest.raises(ValueError, match="onednn cannot"):
            linear(input, weight)
    assert outcomes == [{"linear": {"torch"}}] and ran == {}


@has_onednn
def test_a_product_that_was_forced_has_a_gradient_under_transforms_and_counters():
    input, weight = (x.requires_grad_() for x in draw((7, 13), (11, 13), dtype=torch.float32))
    output = linear(input, weight, impl="onednn")
    directions = torch.eye(output.numel()).view(-1, *output.shape)
    (jacobian,) = torch.autograd.grad(output, input, directions, retain_graph=True, is_grads_batched=True)
    assert jacobian.shape == (77, 7, 13)
    torch.testing.assert_close(jacobian[0, 0], weight[0])
    with FlopCounterMode(display=False) as counter:
        output.sum().backward()
    assert counter.get_total_flops() == 2 * 2 * 7 * 13 * 11


def module_of(x):
    """An attention that reads ``x``, the same each time."""
    torch.manual_seed(0)
    return LinformerAttention(16, 2, max_len=2000, k=5, device=x.device, dtype=x.dtype)


BFLOAT16 = torch.bfloat16
EVERY_OPERATION = {
    "linear": (linear, [(2, 7, 13), (11, 13), (11,)], torch.float32),
    "linear with activation": (
        lambda *x: activated_linear(torch.nn.functional.gelu, *x),
        [(7, 13), (11, 13)],
        torch.float32,
    ),
    "projection": (mix_positions, [(2, 11, 3), (2, 11, 5)], torch.float32),
    "order of products": (lambda x: module_of(x)(x, x, x)[0], [(2, 9, 16)], torch.float32),
    "queries": (lambda x: module_of(x)(x, x, x)[0], [(1, 1500, 16)], torch.float32),
    "attention": (lambda *x: attend(*x)[0], [(2, 4, 7, 16), (2, 2, 11, 16), (2, 2, 11, 16)], BFLOAT16),
    "windowed attention": (
        lambda *x: attend_with_window(*x, 3)[0],
        [(2, 4, 70, 16), *[(2, 2, 5, 16)] * 2, *[(2, 2, 70, 16)] * 2],
        BFLOAT16,
    ),
    "slots chosen by the input": (lambda *x: dynamic_slots(*x).values, [(5, 16), *[(2, 2, 11, 16)] * 2], torch.float32),
}


def test_an_operation_has_several_implementations_and_each_is_tried_here():
    listed = [row[0] for row in implementations()]
    assert set(listed) == set(EVERY_OPERATION) and all(listed.count(name) > 1 for name in listed)


@has_onednn
@torch.no_grad()
@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile:UserWarning")
@pytest.mark.parametrize(("operation", "name"), [row[:2] for row in implementations()])
def test_results_differ_only_in_rounding(monkeypatch, operation, name):
    monkeypatch.setattr(cpu, "onednn_has_bfloat16", lambda: True)  # attention is batched products, which all have
    function, shapes, dtype = EVERY_OPERATION[operation]
    low = draw(*shapes, dtype=dtype)
    with use_implementation("torch"):
        exact, plain = function(*(x.double() for x in low)), function(*low)
    with use_implementation(name, "torch") as ran:
        actual = function(*low)
    assert ran[operation] == {name}
    rounding = PRODUCT_ROUNDINGS * torch.finfo(dtype).eps * exact.abs().max()
    assert (actual - exact).abs().max() <= MORE_ROUNDINGS * (plain - exact).abs().max() + rounding


@torch.no_grad()
@pytest.mark.parametrize("operation", EVERY_OPERATION)
def test_auto_takes_nothing_unmeasured_where_there_is_something_else(operation):
    measured = {row[:2]: row[3] for row in implementations()}
    function, shapes, dtype = EVERY_OPERATION[operation]
    for low in (torch.float32, torch.bfloat16):
        with use_implementation("auto") as ran:
            function(*draw(*shapes, dtype=low))
        assert ran[operation] and not any(measured[operation, name] == "unmeasured" for name in ran[operation])
    with use_implementation("auto") as ran:
        function(*(x.to("meta") for x in draw(*shapes, dtype=dtype)))
    assert ran[operation] <= {"torch", "compress first", "project first", "at once"}  # PyTorch's own, without portions
    elsewhere = {name for name in ran[operation] if "unmeasured" in measured[operation, name]}
    assert elsewhere <= {"at once"} and cpu.QUERIES.table["chunks"].why_not(1500, torch.device("meta"))
