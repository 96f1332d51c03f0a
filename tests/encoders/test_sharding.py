"""FSDP2: weights that are whole only while a module runs give the same gradients. And what cannot come in pieces."""

import copy

import pytest
import torch.distributed as dist
from encoders.families import TEXTS, hidden, linear, original, padded, padded_mask
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.testing import assert_close

from torch_linformer.distributed import context_parallel
from torch_linformer.encoders.encoder_context import EncoderContext

# FSDP2 warns of what linear maps return in float64.
pytestmark = [
    pytest.mark.usefixtures("one_process"),
    pytest.mark.filterwarnings("ignore:FSDP2-wrapped module:UserWarning"),
]


def step(model, batch):
    """The loss, and every gradient, whole."""
    real = batch["attention_mask"] == 1
    loss = hidden(model, **batch)[real].square().sum()
    loss.backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return loss, {name: x.full_tensor() if isinstance(x, DTensor) else x for name, x in gradients.items()}


@pytest.mark.parametrize("of_attentions", [False, True])
def test_a_sharded_encoder_is_the_encoder(of_attentions):
    """By layer, or what the attentions own by itself too."""
    family = TEXTS[0]
    model = linear(original(family), exact_below=12)
    batch, sharded = padded(family, padded_mask()), copy.deepcopy(model)
    contexts = [x for x in sharded.modules() if isinstance(x, EncoderContext)] if of_attentions else []
    for module in (*contexts, *sharded.encoder.layer, sharded):
        fully_shard(module)
    expected = step(model, batch)
    for _ in range(2):
        sharded.zero_grad()
        assert_close(step(sharded, batch), expected)
    assert all(isinstance(x, DTensor) for x in sharded.parameters())


def test_pieces_of_rows_are_refused():
    model = linear(original(TEXTS[0]))
    with pytest.raises(ValueError, match=r"LinearBertModel cannot be computed in pieces: only .*fully_shard"):
        context_parallel(model, dist.group.WORLD)
