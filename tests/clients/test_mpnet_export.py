"""A linear MPNet as one ONNX file for every length, read by onnxruntime."""

import numpy as np
import onnxruntime
import pytest
import torch
from torch import nn
from torch.export import Dim
from transformers import MPNetConfig, MPNetModel

from torch_linformer.encoders import linearize

PAD = 1


class LastHiddenState(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, input_ids, attention_mask):
        return self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def draw(rows, length):
    """Ids and mask: rows padded on the right, on the left, and not at all."""
    ids, mask = torch.randint(2, 97, (rows, length)), torch.ones(rows, length, dtype=torch.long)
    mask[0, length // 2 + 1 :] = 0
    mask[1, : length // 3] = 0
    return ids.masked_fill(mask == 0, PAD), mask


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered in:RuntimeWarning")  # MPNet's log of 0
@torch.no_grad()
def test_onnxruntime_reads_every_length(tmp_path):
    """Rows of up to 20 tokens exactly, and longer ones."""
    torch.manual_seed(0)
    config = MPNetConfig(
        vocab_size=97,
        hidden_size=24,
        num_hidden_layers=1,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=152,
        initializer_range=0.3,
    )
    model = LastHiddenState(linearize(MPNetModel(config), k=5, window=8, exact_below=20)).eval()
    sizes = {0: Dim("rows", max=64), 1: Dim("tokens", max=150)}
    program = torch.export.export(model, draw(2, 50), dynamic_shapes=(sizes, sizes))
    torch.onnx.export(program, (), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    for length in (3, 20, 33, 150):
        ids, mask = draw(3, length)
        expected, real = model(ids, mask).numpy(), mask.bool().numpy()
        torch_output = program.module()(ids, mask).numpy()
        names = [node.name for node in session.get_inputs()]
        [output] = session.run(None, dict(zip(names, (ids.numpy(), mask.numpy()), strict=True)))
        for exported in (output, torch_output):
            np.testing.assert_allclose(exported[real], expected[real], atol=2e-5)
