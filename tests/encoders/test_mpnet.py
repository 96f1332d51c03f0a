"""MPNet, linear, beside what it has in common with every family: its bias of distances, in modules of their own."""

import copy
import pickle
import re

import pytest
import torch
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModel,
    MPNetConfig,
    MPNetModel,
)

from torch_linformer.encoders import linearize
from torch_linformer.encoders.linearize import with_options

HEADS, LENGTH, PAD = 3, 37, 1
OPTIONS = {"k": 5, "window": 8, "max_length": 150, "exact_below": 0}
TOLERANCE = {"rtol": 0, "atol": 1e-5}


def build(model_class=MPNetModel, **fields):
    """An MPNet whose bias of distances matters, in float64."""
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=97,
        hidden_size=24,
        num_attention_heads=HEADS,
        intermediate_size=40,
        max_position_embeddings=402,
        initializer_range=0.3,
        **{"num_hidden_layers": 2, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, **fields},
    )
    model = model_class(config).eval().double()
    with torch.no_grad():
        model.base_model.encoder.relative_attention_bias.weight.normal_(std=2.0)
    return model


def draw_ids(rows=2, length=LENGTH):
    return torch.randint(2, 97, (rows, length), generator=torch.Generator().manual_seed(length))


def read(model, ids, mask=None):
    return model(input_ids=ids, attention_mask=mask).last_hidden_state


@pytest.mark.parametrize("length", [1, 300])
def test_short_rows_are_those_of_the_original(length):
    """Beyond 128 positions all distances are one, on either side."""
    model, ids = build(), draw_ids(length=length)
    assert_close(read(linearize(model, k=5, exact_below=length), ids), read(model, ids), **TOLERANCE)


def test_in_a_window_over_everything_the_bias_is_exact():
    model, ids = build(), draw_ids(length=200)
    linear = linearize(model, k=0, window=400, exact_below=0, exact_first=0, exact_last=0)
    assert_close(read(linear, ids), read(model, ids), **TOLERANCE)


def test_slots_get_the_bias_of_far_distances():
    """The far buckets far above all others: what is far counts most, and slots stand for it."""
    model, ids = build(), draw_ids(length=300)
    with torch.no_grad():
        table = model.encoder.relative_attention_bias.weight
        table.zero_()
        table[[15, 31]] = 8.0
    linear = linearize(model, **OPTIONS | {"max_length": 300})
    weights = linear(input_ids=ids, output_attentions=True).attentions[0]
    assert weights.shape == (2, HEADS, 300, 5 + 2 + 9)
    assert_close(weights.sum(dim=-1), torch.ones(2, HEADS, 300).double())
    assert weights[..., :7].sum(dim=-1).mean() > 0.95


@pytest.mark.parametrize("exact_below", [0, 64])
def test_every_parameter_learns(exact_below):
    linear = linearize(build(), **OPTIONS | {"exact_below": exact_below}).train()
    ids = draw_ids()
    (read(linear, ids).square().mean() + linear(ids).pooler_output.sum()).backward()
    still = {name for name, x in linear.named_parameters() if x.grad is None or not x.grad.any()}
    slots = {name for name, _ in linear.named_parameters() if ".linformer." in name}
    assert all(x.grad is None or x.grad.isfinite().all() for x in linear.parameters())
    keys = {f"encoder.layer.{layer}.attention.attn.k.bias" for layer in range(2)}  # no softmax notices those
    assert still - keys == (slots if exact_below else set())


def test_gradients_of_short_rows_are_those_of_the_original():
    model, ids = build(), draw_ids()
    linear = linearize(model, k=5, exact_below=64)
    for encoder in (model, linear):
        read(encoder, ids).square().mean().backward()
    gradients = {name: x.grad for name, x in linear.named_parameters()}
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            assert_close(gradients[name], parameter.grad, msg=name)


def test_no_tensor_has_as_many_numbers_as_pairs_of_positions():
    class Largest(TorchDispatchMode):
        numbers = 0

        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            made = function(*args, **kwargs or {})
            for x in made if isinstance(made, (tuple, list)) else [made]:
                if isinstance(x, torch.Tensor):
                    self.numbers = max(self.numbers, x.numel())
            return made

    length = 1200
    linear = linearize(build(), **OPTIONS | {"max_length": length, "exact_below": 100})
    with Largest() as largest:
        read(linear, draw_ids(1, length)).sum().backward()
    assert largest.numbers < length * length / 2


def test_copies_are_linear_too():
    linear, ids = linearize(build(), **OPTIONS), draw_ids()
    again = with_options(linear, linear.config.linear_options)
    for copied in (copy.deepcopy(linear), pickle.loads(pickle.dumps(linear)), again):
        assert_close(read(copied, ids), read(linear, ids))


def test_the_original_stays_as_it_is():
    model, ids = build(), draw_ids()
    before = read(model, ids)
    linearize(model, **OPTIONS)
    assert not [x for x in model.modules() if "Linear" in type(x).__name__ and type(x) is not torch.nn.Linear]
    assert_close(read(model, ids), before)


def test_dropout_drops_weights_and_keeps_the_mean():
    linear, ids = linearize(build(attention_probs_dropout_prob=0.2), **OPTIONS), draw_ids(1)
    attention = linear.encoder.layer[0].attention.attn
    bias, hidden = linear.encoder.compute_position_bias(ids), torch.randn(1, LENGTH, 24).double()
    whole = attention(hidden, position_bias=bias)[0]
    attention.train()
    draws = torch.stack([attention(hidden, position_bias=bias)[0] for _ in range(200)])
    assert draws[0].ne(draws[1]).any()
    assert (draws.mean(dim=0) - whole).abs().max() < 6 * draws.std(dim=0).max() / 200**0.5


def test_a_model_that_is_not_made_linear_is_refused():
    with pytest.raises(ValueError, match=re.escape("make it linear by torch_linformer.linearize")):
        AutoModel.from_config(build().config, attn_implementation="linformer")


@torch.no_grad()
def test_a_compiled_model_reads_what_it_reads():
    linear = linearize(build(num_hidden_layers=1), **OPTIONS | {"exact_below": 20})
    compiled = torch.compile(linear, backend="eager", fullgraph=True, dynamic=True)
    for length in (50, 33):
        ids, mask = draw_ids(2, length), torch.ones(2, length, dtype=torch.bool)
        mask[1, length // 2 :] = False
        ids = ids.masked_fill(~mask, PAD)
        assert_close(read(compiled, ids, mask.long())[mask], read(linear, ids, mask.long())[mask])
