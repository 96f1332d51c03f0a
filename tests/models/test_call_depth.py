"""A hidden state's way from the model to the softmax is short: a reader can follow it."""

import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from torch.nn import functional as F

import torch_linformer
from torch_linformer.functional import attention

PACKAGE = str(Path(torch_linformer.__file__).parent)
DECORATORS = {"known_arguments.<locals>.decorate.<locals>.checked"}
MOST = 10


def functions_above_the_softmax(model, input_ids, monkeypatch):
    """Our functions that are running when the first layer computes its softmax, the outermost first."""
    stacks = []

    def look(original, *args, **kwargs):
        frame, names = sys._getframe(1), []
        while frame is not None:
            code = frame.f_code
            if code.co_filename.startswith(PACKAGE) and code.co_qualname not in DECORATORS:
                names.append(code.co_qualname)
            frame = frame.f_back
        stacks.append(names[::-1])
        return original(*args, **kwargs)

    # With a window the softmax is an operation of our own.
    for place, name in ((F, "scaled_dot_product_attention"), (attention.JoinedSoftmaxes, "apply")):
        monkeypatch.setattr(place, name, partial(look, getattr(place, name)))
    model(input_ids)
    return stacks[0]


@pytest.mark.parametrize(("padded", "training"), [(False, False), (True, True)], ids=["whole", "padded"])
@pytest.mark.parametrize(
    "options",
    [
        {"sharing": "headwise"},
        {"sharing": "layerwise"},
        {"sharing": "none", "norm_first": True},
        {"window": 4},
        {"projection": "mean"},
        {"attention": "full"},
        {"attention": "full", "causal": True, "position_embedding": "rotary"},
    ],
    ids=str,
)
def test_few_functions_lie_between_the_model_and_the_softmax(options, training, padded, monkeypatch):
    sizes = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8, "k": 8}
    config = torch_linformer.LinformerConfig(
        num_hidden_layers=2, max_position_embeddings=64, attention_probs_dropout_prob=0.0, **sizes, **options
    )
    model = torch_linformer.LinformerModel(config).train(training)
    input_ids = torch.randint(1, 20, (2, 33))
    if padded:
        mask = torch.ones(2, 33, dtype=torch.long)
        mask[0, :5] = 0
        names = functions_above_the_softmax(lambda ids: model(ids, attention_mask=mask), input_ids, monkeypatch)
    else:
        names = functions_above_the_softmax(model, input_ids, monkeypatch)
    assert names[0] == "LinformerModel.forward"
    assert len(names) <= MOST and len(set(names)) == len(names), names
