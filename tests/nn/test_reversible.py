"""The reversible stack against the same two streams with everything kept, forward and every gradient."""

import pytest
import torch
from budgets import TWICE
from torch.func import functional_call
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_linformer.nn import LinformerEncoder
from torch_linformer.nn.attention import FullAttention
from torch_linformer.nn.encoder import Encoder, EncoderLayer
from torch_linformer.nn.reversible import ReversibleEncoderLayer

WIDTH, LENGTH = 12, 11
SIZES = {"max_len": 13, "k": 5, "norm_first": True}
DOUBLE = {"dtype": torch.float64}


@pytest.fixture
def build(randomize):
    """Function: a reversible stack, no number of which is at a special value."""

    def make(layers=3, dropout=0.0, **options):
        return randomize(
            LinformerEncoder(WIDTH, 4, layers, 17, dropout, **{**SIZES, "activation_memory": "reversible", **options})
        )

    return make


def keep_everything(model, src, mask=None):
    """The definition: y1 = x1 + f(x2), y2 = x2 + g(y1), layer after layer, then the mean and the norm."""
    first = second = src
    for layer in model.layers:
        x = layer.norm1(second)
        attended, _ = layer.self_attn(x, x, x, mask, shared_projection=model.shared_projection)
        first = first + layer.dropout1(attended)
        x = layer.norm2(first)
        hidden = layer.activation(layer.linear1(x))
        if layer.linear_gate is not None:
            hidden = hidden * layer.linear_gate(x)
        second = second + layer.dropout2(layer.linear2(layer.dropout(hidden)))
    return model.norm((first + second) / 2)


def results(run, src, model, gradients):
    """Output and the gradients to the input and every parameter; the random numbers are those of a seed."""
    torch.manual_seed(3)
    src = src.clone().requires_grad_()
    output = run(src)
    return output, gradients(output, [src, *model.parameters()])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"dropout": 0.25},
        {"dropout": 0.25, "chunk_size": 64},
        {"chunk_size": 3},
        {"sharing": "none", "projection": "conv", "gated": True},
        {"sharing": "kv", "projection": "random"},
        {"projection": "max"},
        {"sharing": "layerwise", "dropout": 0.25, "num_kv_heads": 1},
    ],
    ids=str,
)
@pytest.mark.parametrize(("masked", "training"), [("whole", True), ("bool", False), ("float", True)])
def test_it_is_the_two_streams(build, gradients, trailing_padding, options, masked, training):
    model = build(**DOUBLE, **options).train(training)
    src = torch.randn(3, LENGTH, WIDTH, **DOUBLE)
    mask, real = None, torch.ones(3, LENGTH, dtype=torch.bool)
    if masked != "whole":
        mask = trailing_padding([11, 7, 2], LENGTH)
        src, real = src.masked_fill(mask[..., None], 0.0), ~mask
    if masked == "float":
        mask = torch.zeros(3, LENGTH).masked_fill(mask, float("-inf"))
    actual = results(lambda x: model(x, src_key_padding_mask=mask), src, model, gradients)
    expected = results(lambda x: keep_everything(model, x, mask), src, model, gradients)
    assert_close(actual[0], expected[0])
    assert_close(actual[1][0][real], expected[1][0][real])
    assert_close(actual[1][1:], expected[1][1:])
    assert not actual[1][0][~real].any()
    if not model.training:
        with torch.no_grad():
            assert_close(model(src, src_key_padding_mask=mask)[real], expected[0][real])


def test_full_attention_reverses_too(randomize, gradients):
    layers = (ReversibleEncoderLayer(FullAttention(WIDTH, 4), 17, 0.25, norm_first=True) for _ in range(3))
    model = randomize(Encoder(layers, torch.nn.LayerNorm(WIDTH), activation_memory="reversible")).double()
    src = torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    expected = results(lambda x: keep_everything(model, x), src, model, gradients)
    assert_close(results(model, src, model, gradients), expected)


def test_gradients_go_only_where_they_are_asked_for(build):
    model = build(**DOUBLE)
    src = torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    frozen = model.layers[1].self_attn.context.proj_k.weight.requires_grad_(False)
    model.layers[2].linear1.requires_grad_(False)
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    expected = torch.autograd.grad(keep_everything(model, src).square().sum(), trainable)
    output = model(src)
    asked = torch.autograd.grad(output.square().sum(), trainable)
    assert_close(asked, expected)
    assert all(parameter.grad is None for parameter in model.parameters()), "nothing is written behind autograd's back"
    model(src).square().sum().backward()
    assert_close([parameter.grad for parameter in trainable], list(expected))
    assert frozen.grad is None and src.grad is None
    model.requires_grad_(False)
    src.requires_grad_()
    (to_input,) = torch.autograd.grad(model(src).square().sum(), src)
    assert_close(to_input, torch.autograd.grad(keep_everything(model, src).square().sum(), src)[0])
    assert not model(src.detach()).requires_grad


@pytest.mark.parametrize("how", ["autocast", "cast"])
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_low_precision_costs_no_more_than_keeping_everything(gradients, trailing_padding, sharing, how):
    model = LinformerEncoder(
        48, 4, 3, 59, 0.0, sharing=sharing, activation_memory="reversible", norm_first=True, max_len=97, k=16
    )
    mask = trailing_padding([89, 89, 50, 3], 89)
    src = torch.randn(4, 89, 48).masked_fill(mask[..., None], 0.0)
    low = (model.bfloat16(), src.bfloat16()) if how == "cast" else (model, src)
    found = []
    for run in (lambda x: model(x, src_key_padding_mask=mask), lambda x: keep_everything(model, x, mask)):
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=how == "autocast"):
            output = run(leaf := low[1].clone().requires_grad_())[~mask]
        # The backward pass stands outside autocast, as it should.
        found.append([output, *gradients(output, [leaf, *model.parameters()])])
    exact_model, exact_src = model.double(), low[1].double().requires_grad_()
    output = keep_everything(exact_model, exact_src, mask)[~mask]
    exact = [output, *gradients(output, [exact_src, *exact_model.parameters()])]
    for actual, plain, truth in zip(*found, exact, strict=True):
        rounding = torch.finfo(torch.bfloat16).eps * truth.square().mean().sqrt()
        error, allowed = ((x.double() - truth).square().mean().sqrt() for x in (actual, plain))
        assert error <= TWICE * allowed + rounding


@pytest.mark.parametrize("backward_in_autocast", [False, True])
def test_computed_again_in_the_precision_of_the_forward_pass(build, backward_in_autocast):
    model, dtypes = build(sharing="layerwise"), []
    for layer in model.layers:
        for linear in (layer.linear1, layer.self_attn.q_proj):
            linear.register_forward_hook(lambda module, args, output: dtypes.append(output.dtype))
    for enabled, dtype in ((True, torch.bfloat16), (False, torch.float32)):
        dtypes.clear()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=enabled):
            loss = model(torch.randn(2, LENGTH, WIDTH)).sum()
        with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16, enabled=backward_in_autocast):
            loss.backward()
        assert dtypes == [dtype] * 12


def test_forward_and_backward_passes_may_share_one_autocast(build):
    model, src = build(sharing="layerwise"), torch.randn(2, LENGTH, WIDTH)
    with torch.autocast(torch.get_default_device().type, dtype=torch.bfloat16):
        found = torch.autograd.grad(model(src).sum(), [*model.parameters()])
        plain = torch.autograd.grad(model(src, need_layers=True).sum(), [*model.parameters()])
    assert_close(found, plain, rtol=0.1, atol=1.0)


def test_random_numbers_go_on_as_if_nothing_had_been_computed_again(build):
    model = build(dropout=0.25)
    src = torch.randn(2, LENGTH, WIDTH)
    torch.manual_seed(3)
    loss = model(src).sum()
    expected = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), expected)


class Living(TorchDispatchMode):
    """Bytes of what functions returned and somebody still holds: now, and at the most.

    Parameters are left out, and so are states of random numbers (5 kB a branch).
    """

    def __init__(self, model):
        super().__init__()
        self.parameters = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
        self.storages, self.most = {}, 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor) and tensor.dtype != torch.uint8:
                storage = tensor.untyped_storage()
                if storage.data_ptr() in self.parameters:
                    continue
                self.storages[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.most = max(self.most, self.now)
        return result

    @property
    def now(self):
        self.storages = {key: value for key, value in self.storages.items() if not value[0].expired()}
        return sum(size for _, size in self.storages.values())


def memory_of_a_step(model, src):
    """Bytes that live between the forward and the backward pass, at the most, and afterwards."""
    with Living(model) as living:
        output = model(src)
        between = living.now
        torch.autograd.grad(output.sum(), src)
        del output
        return between, living.most, living.now


@pytest.mark.cpu("elsewhere the backward pass has a thread of its own, which may free tensors later")
@pytest.mark.parametrize("chunk_size", [None, 4])
@pytest.mark.parametrize("sharing", ["headwise", "layerwise"])
def test_what_is_kept_does_not_grow_with_the_layers(build, sharing, chunk_size):
    src = torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    options = {"dropout": 0.25, "sharing": sharing, "chunk_size": chunk_size}
    four, sixteen = (memory_of_a_step(build(layers, **options), src) for layers in (4, 16))
    assert four == sixteen
    between, _, afterwards = four
    assert between <= 6 * src.nbytes and afterwards == 0
    kept = memory_of_a_step(build(4, 0.25, sharing=sharing, activation_memory="none"), src)
    assert kept[0] > 5 * between, "the other stacks keep what this one does not"


def test_a_weight_changed_before_the_backward_pass_is_noticed(build):
    model = build()
    loss = model(torch.randn(2, LENGTH, WIDTH)).sum()
    with torch.no_grad():
        model.layers[1].linear1.weight.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


def test_a_second_backward_pass_gives_the_same(build):
    model, src = build(dropout=0.25, chunk_size=4), torch.randn(2, LENGTH, WIDTH, requires_grad=True)
    loss = model(src).square().sum()
    first = torch.autograd.grad(loss, src, retain_graph=True)
    assert_close(torch.autograd.grad(loss, src, retain_graph=True), first, rtol=0, atol=0)


def test_second_derivatives_are_exact(build, gradients):
    model, src = build(**DOUBLE, activation="gelu"), torch.randn(2, LENGTH, WIDTH, **DOUBLE, requires_grad=True)
    found = []
    for run in (model, lambda x: keep_everything(model, x)):
        with sdpa_kernel(SDPBackend.MATH):  # the fused one has no second derivative
            (gradient,) = torch.autograd.grad(run(src).square().sum(), src, create_graph=True)
            found.append(gradients(gradient, [src, *model.layers.parameters()]))
    assert_close(*found)


@pytest.mark.parametrize("options", [{"dropout": 0.25}, {"sharing": "layerwise", "chunk_size": 4}], ids=str)
def test_functional_call_computes_with_the_tensors_it_is_given(build, gradients, options):
    model, src = build(**DOUBLE, **options), torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    lent = {name: (x * 1.5).detach().requires_grad_() for name, x in model.named_parameters()}
    torch.manual_seed(3)
    output = functional_call(model, lent, (src,))
    found = gradients(output, [*lent.values()])
    before = [parameter.clone() for parameter in model.parameters()]
    with torch.no_grad():
        for parameter, x in zip(model.parameters(), lent.values(), strict=True):
            parameter.copy_(x)
    torch.manual_seed(3)
    expected = keep_everything(model, src)
    assert_close((output, found), (expected, gradients(expected, [*model.parameters()])))
    assert not any(torch.equal(*pair) for pair in zip(before, model.parameters(), strict=True))


def test_transforms_of_functions_take_it_with_everything_kept(build):
    model, src = build(**DOUBLE), torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    found = torch.func.grad(lambda x: model(x).square().sum())(src)
    src.requires_grad_()
    assert_close(found, *torch.autograd.grad(keep_everything(model, src).square().sum(), src))


@pytest.mark.parametrize("asked", ["need_weights", "need_layers", "overwrite"])
def test_what_hooks_read_has_its_gradient(build, gradients, asked):
    model = build(**DOUBLE, dropout=0.25)
    src, means = torch.randn(2, LENGTH, WIDTH, **DOUBLE), []
    expected = results(lambda x: keep_everything(model, x), src, model, gradients)
    for layer in model.layers:
        layer.register_forward_hook(lambda module, args, output: means.append(output[0]))
    assert_close(results(lambda x: model(x, **{asked: True}), src, model, gradients), expected)
    assert len(means) == 3, "layers are called, and only their branches again"
    found = results(lambda x: (model(x, **{asked: True}), means[-3] * means[-2])[1], src, model, torch_grad)
    plain = results(lambda x: (model(x, need_weights=True), means[-3] * means[-2])[1], src, model, torch_grad)
    assert_close(found, plain)


def torch_grad(output, wanted):
    """Gradients of the sum of squares, zeros where there are none."""
    return torch.autograd.grad(output.square().sum(), wanted, materialize_grads=True)


def test_a_hook_may_put_others_in_the_place_of_the_streams(build, gradients):
    model, src = build(**DOUBLE), torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    model.layers[1].register_forward_hook(lambda module, args, output: (output[0], output[1] * 2, output[2] + 1))
    expected = results(lambda x: model(x, need_weights=True), src, model, gradients)
    assert_close(results(model, src, model, gradients), expected)
    model.layers[0].register_forward_hook(lambda module, args, output: (output[0], output[1].mul_(2), output[2]))
    with pytest.raises(RuntimeError, match="streams of a reversible stack have been modified by an inplace operation"):
        results(model, src, model, gradients)


def test_a_layer_that_is_not_the_same_when_computed_again_is_noticed(build):
    model, calls = build(), []
    model.layers[1].linear1.register_forward_hook(
        lambda module, args, output: (calls.append(1), output if len(calls) == 1 else output.exp())[1]
    )
    with pytest.raises(
        RuntimeError, match=r"did something else when it was computed again.* take activation_memory='none'"
    ):
        model(torch.randn(2, LENGTH, WIDTH)).sum().backward()


@pytest.mark.parametrize(("inference", "chunk_size"), [(False, None), (True, 4)])
def test_exported_program_is_the_stack(build, trailing_padding, inference, chunk_size):
    model = build(**DOUBLE, sharing="layerwise", chunk_size=chunk_size).eval()
    mask, src = trailing_padding([7, 5], 7), torch.randn(2, 7, WIDTH, **DOUBLE)
    sizes = {0: torch.export.Dim("batch", max=64), 1: torch.export.Dim("length", max=13)}
    shapes = {"src": sizes, "src_key_padding_mask": sizes}
    with torch.inference_mode() if inference else torch.enable_grad():
        program = torch.export.export(model, (src,), {"src_key_padding_mask": mask}, dynamic_shapes=shapes).module()
    src, mask = torch.randn(3, LENGTH, WIDTH, **DOUBLE), trailing_padding([11, 7, 3], LENGTH)
    assert_close(program(src, src_key_padding_mask=mask), model(src, src_key_padding_mask=mask))


@pytest.mark.filterwarnings(
    "ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"
)  # the compiler's own
def test_a_compiled_training_runs_the_stack_uncompiled(build, gradients):
    torch._dynamo.reset()
    model, src = build(**DOUBLE), torch.randn(2, LENGTH, WIDTH, **DOUBLE)
    compiled = torch.compile(model, backend="aot_eager")
    expected = results(lambda x: keep_everything(model, x), src, model, gradients)
    assert_close(results(compiled, src, model, gradients), expected)
    torch._dynamo.reset()


def test_layers_whose_norm_comes_last_are_refused(build):
    message = "^activation_memory='reversible' needs norm_first=True, got .* take activation_memory='checkpoint'"
    with pytest.raises(ValueError, match=message):
        build(norm_first=False)
    with pytest.raises(ValueError, match=message):
        Encoder([EncoderLayer(FullAttention(WIDTH, 4), 17)], activation_memory="reversible")
    with pytest.raises(
        ValueError, match=r"^activation_memory must be one of none, checkpoint, reversible, got 'reverse'$"
    ):
        build(activation_memory="reverse")


def test_the_feed_forward_is_asked_for_nothing_twice_in_a_backward_pass(build):
    model, calls = build(2, chunk_size=4), []
    for layer in model.layers:
        layer.linear1.register_forward_hook(lambda module, args, output: calls.append(output.shape[1]))
    model(torch.randn(2, LENGTH, WIDTH)).sum().backward()
    assert calls == [4, 4, 3] * 2 + [3, 4, 4] * 2
