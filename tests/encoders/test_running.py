"""How a linear encoder runs: checkpoints, autocast, dropout, compiled, exported."""

import copy

import pytest
import torch
from encoders.families import (
    FAMILIES,
    LENGTH,
    TEXTS,
    TOKENS,
    VOCABULARY,
    base_class,
    hidden,
    inputs_of,
    linear,
    original,
    padded,
    padded_mask,
    random_model,
)
from torch.testing import assert_close

EXACT = {"rtol": 0, "atol": 1e-9}  # float64
ROUNDING = 2.0**-8  # of bfloat16

every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)


def gradients_of(model, batch):
    """Of a step in training mode, with the dropout of a seed."""
    torch.manual_seed(3)
    hidden(model.train(), **batch).square().sum().backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


@pytest.mark.filterwarnings("ignore:.*is deprecated and will be removed in v6:FutureWarning")  # other names since 5.23
# Albert and MPNet have no checkpoints in transformers.
@pytest.mark.parametrize("family", [family for family in FAMILIES if family.name not in ("Albert", "MPNet")], ids=repr)
def test_checkpoints_give_the_same_gradients(family):
    batch = padded(family, padded_mask()[:2]) if family in TEXTS else inputs_of(family)
    model = linear(original(family), exact_below=TOKENS[1])
    recomputing = copy.deepcopy(model)
    recomputing.gradient_checkpointing_enable()
    assert recomputing.is_gradient_checkpointing
    assert_close(gradients_of(recomputing, batch), gradients_of(model, batch), rtol=1e-9, atol=1e-9)


@torch.no_grad()
@every_family
def test_autocast_rounds_as_the_original_does(family):
    """Errors against float64: of the linear encoder at most twice those of the original, which has no window."""
    errors = []
    whole = original(family)
    for model in (whole, linear(whole)):
        half = copy.deepcopy(model).float()
        expected = hidden(model, **inputs_of(family))
        with torch.autocast("cpu", torch.bfloat16):
            output = hidden(half, **inputs_of(family, dtype=torch.float32))
        errors.append(((output.double() - expected).square().mean() / expected.square().mean()).sqrt().item())
    assert errors[1] <= 2 * errors[0] + ROUNDING, errors


@torch.no_grad()
@pytest.mark.parametrize("exact_below", [0, LENGTH])
def test_dropout_of_weights_leaves_their_mean(exact_below):
    """Of slots, exact tokens and window, and of all tokens of a short row."""
    family = TEXTS[0]
    config = family.config
    config.attention_probs_dropout_prob = 0.4
    model = linear(random_model(base_class(family), config), exact_below=exact_below)
    attention = model.encoder.layer[0].attention.self
    states = torch.randn(1, LENGTH, 24, dtype=torch.float64)
    expected, _ = attention(states)
    attention.train()
    torch.manual_seed(0)
    outputs, _ = attention(states.expand(2000, -1, -1))
    deviation = outputs.std(0) / 2000**0.5
    assert outputs.std(0).mean() > 0.1
    assert ((outputs.mean(0) - expected[0]).abs() < 6 * deviation).all()


@torch.no_grad()
def test_a_graph_without_breaks():
    """Recorded whole, and run as it is: what a compiler makes of it is tested with the other packages."""
    family = TEXTS[-1]  # with rotary positions and a local layer
    model, mask = linear(original(family)), padded_mask()
    compiled, batch = torch.compile(model, backend="eager", fullgraph=True), padded(family, mask)
    assert_close(hidden(compiled, **batch)[mask == 1], hidden(model, **batch)[mask == 1], **EXACT)
    torch.compiler.reset()


class Hidden(torch.nn.Module):
    """An encoder whose output is one tensor."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        return hidden(self.encoder, input_ids=input_ids, attention_mask=attention_mask)


@torch.no_grad()
def test_an_exported_program_takes_other_sizes():
    """Some of its rows are read exactly, some by slots."""
    config = TEXTS[0].config
    config.num_hidden_layers = 1
    model = Hidden(linear(random_model(base_class(TEXTS[0]), config), exact_below=10)).eval()
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", max=50)}

    def texts(rows, length):
        ids = torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(length))
        mask = torch.ones_like(ids)
        mask[0, length // 3 :] = 0
        return ids, mask

    program = torch.export.export(model, texts(3, 24), dynamic_shapes=(sizes, sizes), strict=False).module()
    for rows, length in ((3, 24), (2, 47), (5, 9)):
        inputs = texts(rows, length)
        real = inputs[1] == 1
        assert_close(program(*inputs)[real], model(*inputs)[real], **EXACT)
