"""``torch.jit.trace``: a graph recorded at one length computes what the model does, at every other one."""

import warnings

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.models import LinformerModel

MAX_LEN = 29  # of the tiny models
MODELS = {
    "linear": {},
    "random, a map a head": {"projection": "random", "sharing": "none"},
    "conv": {"projection": "conv"},
    "mean": {"projection": "mean", "slot_mass": "learned"},
    "max": {"projection": "max"},
    "dynamic": {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "fixed"},
    "mean, window, exact tokens": {"projection": "mean", "window": 4, "exact_first": 2, "exact_last": 1},
    "dynamic, window": {"projection": "dynamic", "window": 4},
    "only a window": {"k": 0, "window": 4},
    "chunks": {"chunk_size": 5},
    "full": {"attention": "full"},
    "causal": {"causal": True},
    "causal, window": {"causal": True, "window": 3},
    "causal, full": {"causal": True, "attention": "full"},
}


class HiddenStates(torch.nn.Module):
    """A model whose results are tensors, as a trace takes them."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *inputs):
        return self.model(*inputs, use_cache=False).last_hidden_state


def draw(token_ids, batch, length, masked):
    ids, mask = token_ids(batch, length), torch.ones(batch, length, dtype=torch.long)
    mask[0, length - length // 2 :] = 0
    mask[-1, : length // 3] = 0
    return (ids, mask) if masked else (ids,)


@pytest.mark.parametrize(("length", "masked"), [(11, True), (MAX_LEN, False)], ids=["padded", "whole"])
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_traced_model_serves_every_length(build, token_ids, name, length, masked):
    model = HiddenStates(build(LinformerModel, dtype=torch.float32, num_hidden_layers=1, **MODELS[name]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that were compared, and of the age of TorchScript
        traced = torch.jit.trace(model, draw(token_ids, 2, length, masked), check_trace=False)
    for batch, other in ((2, 11), (3, 5), (1, 1), (2, MAX_LEN)):
        inputs = draw(token_ids, batch, other, masked)
        real = inputs[1] == 1 if masked else torch.ones(batch, other, dtype=torch.bool)
        assert_close(traced(*inputs)[real], model(*inputs)[real], rtol=1e-4, atol=1e-5)
