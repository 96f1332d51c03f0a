"""Modules: every row of a batch is what it would be alone, without its padding, forward and every gradient."""

import copy
import dataclasses
import itertools

import pytest
import torch
from budgets import FUZZ_ROUNDINGS, MORE_ROUNDINGS
from fuzz_cases import padding_of
from fuzz_strategies import FUZZ, MODULES, attentions, cases, causal_cases
from hypothesis import assume, given
from hypothesis import strategies as st
from torch.testing import assert_close

from torch_linformer.nn import Past


def at_tokens(case, output):
    """``(B, N, C)`` to the outputs of the real tokens, row by row."""
    assert output.shape == (*case.padding.shape, case.width)
    assert output.isfinite().all(), "output at padding is to be finite too"
    return output[~case.padding]


def assert_nothing_at_padding(case, gradients):
    """Gradients are finite everywhere, and zero at padding."""
    for name, gradient in gradients.items():
        assert gradient.isfinite().all(), f"gradient to {name}"
    for name, (rows, _) in case.sequences().items():
        assert not gradients[name][padding_of(rows)].any(), f"gradient to {name} at padding"


@MODULES
@given(cases())
def test_output_and_every_gradient(case):
    module, tensors = case.build(), case.draw()
    output, expected = case.call(module, tensors), case.definition(module, tensors)
    assert_close(at_tokens(case, output), expected)
    actual = case.gradients_of(at_tokens(case, output), module, tensors)
    assert_nothing_at_padding(case, actual)
    assert_close(actual, case.gradients_of(expected, module, tensors))
    assert_nothing_at_padding(case, case.gradients_of(output, module, tensors))  # of a loss that reads padding


@MODULES
@given(cases())
def test_inference(case):
    module, tensors = case.build().eval(), case.draw()
    expected = case.definition(module, tensors)
    before = {name: x.clone() for name, x in tensors.items()}
    with torch.inference_mode():
        assert_close(at_tokens(case, case.call(module, tensors)), expected)
    assert_close(tensors, before, equal_nan=True, rtol=0, atol=0)


@FUZZ
@given(attentions(False) | attentions(True))
def test_attention_weights(case):
    module, tensors = case.build(), case.draw()
    output, weights = case.call(module, tensors, need_weights=True, average_attn_weights=False)
    assert_close(at_tokens(case, output), case.definition(module, tensors))
    weights = weights.unsqueeze(0) if case.unbatched else weights
    assert weights.isfinite().all()
    num_slots = case.options["k"]
    for row, real in enumerate(~case.padding):
        (_, expected), actual = case.output_and_weights(module, tensors, row), weights[row, :, real].flatten(0, 1)
        reached = len(expected[0]) if expected else 0
        assert_close(actual[:, :reached], torch.stack(expected) if expected else actual[:, :0])
        assert not (reached and actual[:, reached:num_slots].any())
        if reached:  # else there is nothing to attend to
            assert_close(actual.sum(dim=-1), torch.ones_like(actual[:, 0]))


@st.composite
def in_pieces(draw):
    """A causal case, and where it is cut: some pieces are empty, some are one position."""
    case = draw(causal_cases())
    length = case.padding.shape[1]
    return case, sorted(draw(st.lists(st.integers(0, length), max_size=6)))


def pasts_of(module):
    return [Past() for _ in range(len(getattr(module, "layers", [module])))]


@MODULES
@given(in_pieces(), st.booleans())
def test_pieces_are_the_whole(drawn, inference):
    case, cuts = drawn
    module, tensors = case.build().train(not inference), case.draw()
    expected, pasts, outputs = case.definition(module, tensors), pasts_of(module), []
    turned, turned_tensors = case.turned(), {name: x.flip(0) for name, x in tensors.items()}
    with torch.inference_mode(inference):
        for number, columns in enumerate(itertools.pairwise([0, *cuts, case.padding.shape[1]])):
            # After each piece the rows change places.
            if number % 2:
                outputs.append(turned.call(module, turned_tensors, slice(*columns), pasts).flip(0))
            else:
                outputs.append(case.call(module, tensors, slice(*columns), pasts))
            for past in pasts:
                past.select_rows(torch.arange(len(case.rows)).flip(0))
        output = torch.cat(outputs, dim=1)
    assert_close(at_tokens(case, output), expected)
    if not inference:
        actual = case.gradients_of(at_tokens(case, output), module, tensors)
        assert_nothing_at_padding(case, actual)
        assert_close(actual, case.gradients_of(expected, module, tensors))
    last = turned if len(outputs) % 2 else case  # whose rows would come next
    for past in pasts:
        assert past.state.tokens.tolist() == (~last.padding).sum(dim=1).tolist()


@FUZZ
@given(cases().filter(lambda case: case.is_smooth), st.sampled_from(["float32", "bfloat16", "float16", "autocast"]))
def test_low_precision_costs_no_more_than_in_the_definition(case, precision):
    dtype = torch.bfloat16 if precision == "autocast" else getattr(torch, precision)
    kept = torch.float32 if precision == "autocast" else dtype
    module = case.build().to(kept)
    tensors = {name: x.detach().to(kept).requires_grad_() for name, x in case.draw().items()}
    doubles = {name: x.detach().double().requires_grad_() for name, x in tensors.items()}
    exactly = copy.deepcopy(module).double()

    def run(function, module, tensors, autocast=precision == "autocast"):
        """The output, and all gradients as one vector: some of them are sums that come to nothing."""
        with torch.autocast(torch.get_default_device().type, torch.bfloat16, enabled=autocast):
            output = function(module, tensors)
        output = output if function == case.definition else at_tokens(case, output)
        gradients = case.gradients_of(output, module, tensors)
        assert_nothing_at_padding(case, gradients)
        return output.double(), torch.cat([x.flatten().double() for x in gradients.values()])

    actual, plain = run(case.call, module, tensors), run(case.definition, module, tensors)
    exact = run(case.definition, exactly, doubles, autocast=False)
    for of_call, of_definition, truth in zip(actual, plain, exact, strict=True):
        error, allowed = (of_call - truth).norm(), (of_definition - truth).norm()
        # The definition of a softmax over one slot is exact by chance: hence some roundings besides; more of them where
        # steep priors make scores of hundreds, whose last digits are digits of a weight.
        besides = FUZZ_ROUNDINGS * max(1.0, case.steepness) * torch.finfo(dtype).eps
        assert error <= MORE_ROUNDINGS * allowed + besides * truth.norm()


@FUZZ
@given(cases(), st.sampled_from(["nan", "inf", "1", "-1", "0.001", "-999"]), st.booleans())
def test_a_float_mask_of_other_numbers_is_refused(case, number, inference):
    masked = dataclasses.replace(case, mask=f"{number} float32")
    assume(any(padding_of(rows).any() for rows, _ in case.sequences().values()))
    with torch.inference_mode(inference), pytest.raises(ValueError, match="mask"):
        masked.call(masked.build(), masked.draw())
