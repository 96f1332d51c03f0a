"""A context is a module by itself: given heads that another module has made, it attends as a whole attention does."""

import re

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.nn.attention import FullAttention, LinformerAttention, Past
from torch_linformer.nn.attention.context import Call, HeadSizes
from torch_linformer.nn.attention.slot_context import SlotContext
from torch_linformer.nn.options import AttentionConfig

DOUBLE = {"dtype": torch.float64}
WIDTH, HEADS, LENGTH = 12, 4, 11
EXACT = {"exact_first": 1, "exact_last": 2}
KINDS = {
    "linear": {},
    "linear of heads": {"sharing": "none", "num_kv_heads": 2},
    "mean, window": {"projection": "mean", "window": 4, "slot_mass": "fixed"},
    "max": {"projection": "max", **EXACT},
    "dynamic of heads": {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", **EXACT},
    "dynamic, window": {"projection": "dynamic", "sharing": "none", "window": 3, **EXACT, "num_kv_heads": 1},
    "window": {"k": 0, "window": 4, "exact_first": 1},
    "causal": {"causal": True},
    "causal, window": {"causal": True, "window": 3, "rotary_dim": 2, "exact_first": 2},
    "full": None,
    "causal full": {"attention": "full", "causal": True},
}


def build(kind):
    options = KINDS[kind]
    if options is None or "attention" in options:
        return FullAttention(WIDTH, HEADS, causal=options is not None, **DOUBLE)
    return LinformerAttention(WIDTH, HEADS, **{"max_len": 13, "k": 5, **options}, **DOUBLE)


def heads_of(module, x):
    queries = module.q_proj(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
    keys, values = (
        linear(x).unflatten(-1, (module.num_kv_heads, -1)).transpose(1, 2) for linear in (module.k_proj, module.v_proj)
    )
    return queries, keys, values


@pytest.mark.parametrize("side", ["whole", "left", "holes"])
@pytest.mark.parametrize("kind", KINDS)
def test_it_attends_as_the_attention_that_owns_it(gradients, randomize, trailing_padding, kind, side):
    """Where heads are compressed and not inputs: a bias is then padding too, which the context takes for nothing."""
    torch.manual_seed(0)
    module = randomize(build(kind))
    mask = {
        "whole": None,
        "left": trailing_padding([LENGTH, 6, 1], LENGTH).flip(-1),
        "holes": trailing_padding([LENGTH, 6, 1], LENGTH)[:, torch.randperm(LENGTH)],
    }[side]
    x = torch.randn(3, LENGTH, WIDTH, requires_grad=True, **DOUBLE)
    real = torch.ones(3, LENGTH, dtype=torch.bool) if mask is None else ~mask
    expected, expected_weights = module(
        x, key_padding_mask=mask, need_weights=True, average_attn_weights=False, is_causal=module.causal
    )
    attended, weights = module.context(*heads_of(module, x), mask, call=Call(need_weights=True))
    actual = module.out_proj(attended.transpose(1, 2).flatten(2))
    assert_close(actual[real], expected[real])
    assert_close(weights.transpose(1, 2)[real], expected_weights.transpose(1, 2)[real])
    parameters = [x, *module.parameters()]
    assert_close(gradients(actual[real], parameters), gradients(expected[real], parameters))


@pytest.mark.parametrize("kind", KINDS)
def test_what_stands_at_padding_changes_nothing(randomize, trailing_padding, kind):
    context = randomize(build(kind)).context
    mask = trailing_padding([LENGTH, 6], LENGTH).flip(-1)
    heads = [torch.randn(2, number, LENGTH, 3, **DOUBLE) for number in (HEADS, context.sizes.num_kv_heads)]
    query, key, value = (x.requires_grad_() for x in (heads[0], heads[1], heads[1].clone()))
    hidden = mask[:, None, :, None]
    expected, _ = context(query, key, value, mask)
    poisoned = [x.masked_fill(hidden, float("nan")).detach().requires_grad_() for x in (query, key, value)]
    actual, _ = context(*poisoned, mask)
    real = ~mask[:, None, :, None].expand_as(actual)
    assert_close(actual[real], expected[real])
    for grad in torch.autograd.grad(actual[real].sum(), poisoned):
        assert grad.isfinite().all() and not grad.masked_fill(~hidden, 0.0).any()


def test_it_owns_its_parameters_and_begins_them_anew():
    module = LinformerAttention(WIDTH, HEADS, 13, 5, slot_bias=True, slot_mass="learned", projection="mean")
    names = {name for name, _ in module.context.named_parameters()}
    assert names == {"slot_terms.bias_k", "slot_terms.bias_v", "slot_terms.mass"}
    torch.nn.init.ones_(module.context.slot_terms.mass)
    module.context.reset_parameters()
    assert not module.context.slot_terms.mass.any()
    causal = LinformerAttention(WIDTH, HEADS, 13, 5, causal=True).context
    assert "running.address" in causal.state_dict() and "CausalProjection" in repr(causal)


def test_pieces_go_on_from_what_was_read(randomize):
    context = randomize(build("causal, window")).context
    heads = [torch.randn(2, HEADS, LENGTH, 3, **DOUBLE) for _ in range(3)]
    past = Past()
    pieces = [
        context(*piece, call=Call(past=past))[0] for piece in zip(*(x.split(4, dim=2) for x in heads), strict=True)
    ]
    assert_close(torch.cat(pieces, dim=2), context(*heads)[0])


def test_shapes_that_do_not_fit_are_named():
    context = SlotContext(HeadSizes.of_heads(HEADS, 3), AttentionConfig(), 13, 5)
    x = torch.randn(2, HEADS, LENGTH, 3)
    with pytest.raises(ValueError, match=re.escape("(B, H, N, D) of one sequence, got (2, 4, 11, 3), (2")):
        context(x, x[:, :, :7], x[:, :, :7])
