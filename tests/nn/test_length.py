"""Any length up to `max_len`, and models that are taken to another `max_len`."""

import pytest
import torch
from map_choices import PROJECTIONS, owned_maps
from torch.testing import assert_close

from torch_linformer.nn import (
    LinformerAttention,
    LinformerEncoder,
    LinformerEncoderLayer,
    SequenceProjection,
)

SHARINGS = ("none", "headwise", "layerwise")
MODES = ("interpolate", "keep")
DOUBLE = {"dtype": torch.float64}


def encoder(**options):
    sizes = {"dim_feedforward": 17, "dropout": 0.0, "max_len": 13, "k": 5, **DOUBLE}
    return LinformerEncoder(12, 2, 2, **{**sizes, **options})


@pytest.mark.parametrize("projection", PROJECTIONS)
def test_every_length_up_to_max_len_works_and_one_more_is_refused(projection):
    module = encoder(projection=projection)
    for length in (1, 2, 5, 13):
        assert module(torch.randn(2, length, 12, **DOUBLE)).isfinite().all()
    with pytest.raises(ValueError, match=r"14 positions but max_len is 13.*resize_max_len\(14\)"):
        module(torch.randn(2, 14, 12, **DOUBLE))


@pytest.mark.parametrize(("projection", "sharing"), owned_maps(sharings=SHARINGS))
@pytest.mark.parametrize(("mode", "new"), [("interpolate", 26), ("interpolate", 5), ("keep", 19)])
def test_resized_models_take_the_new_length_and_no_more(trailing_padding, sharing, projection, mode, new):
    module = encoder(projection=projection, sharing=sharing)
    learned = [name for name, _ in module.named_parameters()]
    saved = list(module.state_dict())
    module.resize_max_len(new, mode)
    assert [name for name, _ in module.named_parameters()] == learned
    assert list(module.state_dict()) == saved
    output = module(torch.randn(2, new, 12, **DOUBLE), src_key_padding_mask=trailing_padding([new, 2], new))
    output.square().sum().backward()
    assert output.isfinite().all()
    assert all(parameter.grad is not None for parameter in module.parameters())
    with pytest.raises(ValueError, match=f"{new + 1} positions but max_len is {new}"):
        module(torch.randn(2, new + 1, 12, **DOUBLE))
    encoder(projection=projection, sharing=sharing, max_len=new).load_state_dict(module.state_dict())


@pytest.mark.parametrize("length_scaling", [True, False], ids=["scaled", "bare"])
@pytest.mark.parametrize("sharing", SHARINGS)
@pytest.mark.parametrize("projection", ["linear", "random"])
@pytest.mark.parametrize("new", [7, 29])
def test_keep_changes_nothing_for_inputs_that_fit(trailing_padding, projection, sharing, length_scaling, new):
    module = encoder(projection=projection, sharing=sharing, length_scaling=length_scaling)
    batch, mask = torch.randn(2, 7, 12, **DOUBLE), trailing_padding([7, 3], 7)
    before, before_padded = module(batch), module(batch, src_key_padding_mask=mask)
    module.resize_max_len(new, "keep")
    assert_close(module(batch), before)
    assert_close(module(batch, src_key_padding_mask=mask), before_padded)


@pytest.mark.parametrize("num_heads", [None, 3], ids=["one-for-all", "per-head"])
@pytest.mark.parametrize("projection", ["linear", "random"])
@pytest.mark.parametrize("mode", MODES)
def test_size_of_a_slot_survives_resizing(projection, num_heads, mode):
    module = SequenceProjection(512, 64, projection=projection, num_heads=num_heads)
    with torch.no_grad():
        # A trained E is smooth: rows 64 apart alike, so that stretching does not average noise away.
        module.weight.copy_(module.weight[..., ::64, :].repeat_interleave(64, dim=-2))
    module.resize_max_len(2048, mode)
    slots = module(torch.randn(4, 3, 2048, 32))
    assert slots.std().item() == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("num_heads", [None, 2], ids=["one-for-all", "per-head"])
def test_interpolated_rows_by_hand(num_heads):
    module = SequenceProjection(2, 2, num_heads=num_heads, **DOUBLE)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[1.0, 10.0], [3.0, 50.0]]))
    module.resize_max_len(4)
    # Rows lie at the middles of their spans; √(2 / 4) keeps the size of a slot.
    expected = torch.tensor([[1.0, 10.0], [1.5, 20.0], [2.5, 40.0], [3.0, 50.0]], **DOUBLE) / 2**0.5
    assert_close(module.weight.detach(), expected.expand_as(module.weight))
    module.resize_max_len(2)
    expected = torch.tensor([[1.25, 15.0], [2.75, 45.0]], **DOUBLE)
    assert_close(module.weight.detach(), expected.expand_as(module.weight))


@pytest.mark.parametrize("num_heads", [None, 2], ids=["one-for-all", "per-head"])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        # the window grows from 2 to 4
        ("interpolate", [1.0 / 2**0.5, 1.5 / 2**0.5, 2.5 / 2**0.5, 3.0 / 2**0.5]),
        ("keep", [1.0, 3.0]),
    ],
)
def test_kernel_of_the_convolution_is_resized_by_hand(num_heads, mode, expected):
    module = SequenceProjection(6, 3, projection="conv", num_heads=num_heads, **DOUBLE)
    with torch.no_grad():
        module.weight.copy_(torch.tensor([1.0, 3.0]))
    module.resize_max_len(12, mode)
    assert module.weight.shape[-1] == 4
    kept = module.weight.detach()[..., : len(expected)]
    assert_close(kept, torch.tensor(expected, **DOUBLE).expand_as(kept))


@pytest.mark.parametrize("projection", ["linear", "random", "conv"])
@pytest.mark.parametrize("num_heads", [None, 2], ids=["one-for-all", "per-head"])
@pytest.mark.parametrize("mode", MODES)
def test_a_resized_weight_stays_what_it_was(projection, num_heads, mode):
    for frozen in (False, True):
        module = SequenceProjection(16, 3, projection=projection, num_heads=num_heads, dtype=torch.bfloat16)
        is_buffer = projection == "random"
        module.weight.requires_grad_(not (frozen or is_buffer))
        module.resize_max_len(31, mode)
        assert ("weight" in dict(module.named_buffers())) == is_buffer
        assert ("weight" in dict(module.named_parameters())) == (not is_buffer)
        assert module.weight.requires_grad == (not (frozen or is_buffer))
        assert module.weight.dtype == torch.bfloat16
        assert module.weight.is_contiguous()  # as savers of weights demand
        assert module.weight.grad_fn is None
        rows = 11 if projection == "conv" else 31
        assert module.weight.shape == (
            *([2] if num_heads else []),
            rows,
            *([] if projection == "conv" else [3]),
        )


@pytest.mark.parametrize("projection", ["linear", "conv"])
def test_rows_drawn_by_keep_are_as_large_as_those_of_a_fresh_model(projection):
    module = SequenceProjection(64, 32 if projection == "linear" else 1, projection=projection)
    torch.nn.init.zeros_(module.weight)
    module.resize_max_len(4096, "keep")
    fresh = module.weight.detach()[64:]
    assert not module.weight[:64].any()
    assert fresh.std().item() * 64 == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize(
    "build",
    [
        lambda: SequenceProjection(13, 5),
        lambda: LinformerAttention(12, 2, 13, 5),
        lambda: LinformerEncoderLayer(12, 2, 17, max_len=13, k=5),
        lambda: encoder(),
        lambda: encoder(sharing="layerwise"),
    ],
    ids=["projection", "attention", "layer", "encoder", "layerwise"],
)
def test_resizing_that_cannot_be_is_refused_and_changes_nothing(build):
    module = build()
    shapes = [tensor.shape for tensor in module.state_dict().values()]
    with pytest.raises(ValueError, match="mode must be 'interpolate' or 'keep', got 'stretch'"):
        module.resize_max_len(17, "stretch")
    with pytest.raises(ValueError, match="max_len must be at least k = 5, got 4"):
        module.resize_max_len(4)
    assert [tensor.shape for tensor in module.state_dict().values()] == shapes


def test_a_stack_is_resized_whole_or_not_at_all():
    module = encoder(k=[5, 9])
    with pytest.raises(ValueError, match="max_len must be at least k = 9, got 7"):
        module.resize_max_len(7)
    assert [layer.self_attn.context.proj_k.max_len for layer in module.layers] == [13, 13]
    assert [layer.self_attn.context.proj_k.weight.shape for layer in module.layers] == [(13, 5), (13, 9)]


def weight_norm(module):
    torch.nn.utils.parametrizations.weight_norm(module)


def weight_norm_of_old(module):
    with pytest.warns(FutureWarning):
        torch.nn.utils.weight_norm(module)


@pytest.mark.parametrize("computed", [weight_norm, weight_norm_of_old])
def test_a_map_computed_from_other_parameters_is_refused_before_anything_changes(computed):
    module = encoder()
    computed(module.layers[1].self_attn.context.proj_v)
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with pytest.raises(ValueError, match=r"computed from other parameters .*: remove that, resize_max_len, and put it"):
        module.resize_max_len(17)
    assert module.layers[0].self_attn.context.proj_k.max_len == 13
    assert all(torch.equal(tensor, before[name]) for name, tensor in module.state_dict().items())
    assert module(torch.randn(2, 13, 12, dtype=torch.float64)).isfinite().all()
