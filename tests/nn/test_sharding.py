"""Parameters sharded by ``fully_shard`` (FSDP2) are whole only while their module runs: the gradients stay the same."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from torch_linformer.nn import LinformerAttention, LinformerDecoder, LinformerEncoder
from torch_linformer.nn.layer import TransformerLayer

# FSDP2 warns of what linear maps return in float64.
pytestmark = [
    pytest.mark.cpu("gloo"),
    pytest.mark.usefixtures("one_process"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]
DOUBLE = {"dtype": torch.float64}


def each(*kinds):
    """Function: shard every module of these kinds by itself, the inner ones first, and what is left with the stack."""

    def shard(model):
        for module in reversed([*model.modules()]):
            if isinstance(module, kinds) or module is model:
                fully_shard(module)

    return shard


WAYS = {
    "maps": each(nn.Linear),
    "attentions": each(LinformerAttention),
    "layers": each(TransformerLayer),
    "layers and maps": each(TransformerLayer, nn.Linear, nn.LayerNorm),
}


def step(model, *inputs, **masks):
    """The loss and every gradient, whole, with the random numbers of a seed."""
    torch.manual_seed(3)
    loss = model(*inputs, **masks).square().sum()
    loss.backward()
    found = {name: parameter.grad for name, parameter in model.named_parameters()}
    return loss, {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in found.items()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"activation_memory": "checkpoint", "sharing": "none", "projection": "conv"},
        {"activation_memory": "reversible"},
        {"activation_memory": "reversible", "sharing": "layerwise", "chunk_size": 16},
        {"causal": True, "window": 3, "chunk_size": 16},
        {"slot_bias": True, "window": 4, "chunk_size": 16},
    ],
    ids=str,
)
def test_a_sharded_stack_is_the_stack(randomize, options, way):
    # Long enough for the sequence to be compressed before the channels are mixed.
    model = randomize(LinformerEncoder(12, 4, 2, 17, 0.25, max_len=53, k=5, norm_first=True, **options, **DOUBLE))
    sharded, src = copy.deepcopy(model), torch.randn(2, 47, 12, **DOUBLE)
    WAYS[way](sharded)
    expected = step(model, src)
    for _ in range(2):
        sharded.zero_grad()
        assert_close(step(sharded, src), expected)
    assert all(isinstance(parameter, DTensor) for parameter in sharded.layers.parameters())
    with torch.no_grad():
        assert_close(sharded.eval()(src), model.eval()(src))


@pytest.mark.parametrize(("way", "chunk_size"), [("maps", None), ("attentions", 16), ("layers and maps", None)])
def test_a_sharded_decoder_is_the_decoder(randomize, chunk_size, way):
    model = randomize(LinformerDecoder(12, 4, 2, 17, 0.0, max_len=53, k=5, chunk_size=chunk_size, **DOUBLE))
    sharded, target, memory = copy.deepcopy(model), torch.randn(2, 23, 12, **DOUBLE), torch.randn(2, 47, 12, **DOUBLE)
    mask = torch.arange(47) >= torch.tensor([[47], [31]])
    WAYS[way](sharded)
    expected, found = (step(x, target, memory, memory_key_padding_mask=mask) for x in (model, sharded))
    assert_close(found, expected)
    with torch.no_grad():
        whole, gathered = (x.eval()(target, memory, memory_key_padding_mask=mask) for x in (model, sharded))
    assert_close(gathered, whole)
