"""Linear encoders of every text family as ONNX, at other numbers of rows and tokens than they were exported with."""

import warnings

import onnxruntime
import pytest
import torch
from encoders.families import TEXTS, VOCABULARY, base_class, linear, random_model
from torch import nn

from torch_linformer.opening.devices import why_not_compile

NEAR = 1e-4  # float32, of numbers of about 1


class Hidden(nn.Module):
    """An encoder whose output is one tensor."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def texts(rows, length, seed):
    """Ids and a mask with padding after the first row and before the last; the longest row is whole."""
    ids = torch.randint(5, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
    mask = torch.ones_like(ids)
    mask[0, length // 3 :] = 0
    mask[-1, : length // 2] = 0
    return ids, mask


@pytest.mark.parametrize("family", TEXTS, ids=repr)
def test_onnxruntime_computes_the_same(family, tmp_path):
    """Rows that are read exactly (of at most 8 tokens) and rows with slots. Optimizing takes onnxscript a minute."""
    encoder = linear(random_model(base_class(family), family.config, torch.float32), exact_below=8)
    model, example = Hidden(encoder).eval(), texts(3, 24, seed=1)
    sizes = {0: torch.export.Dim("rows"), 1: torch.export.Dim("tokens", max=50)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=(sizes, sizes), optimize=False)
        program.save(tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    names = [x.name for x in session.get_inputs()]
    for rows, length in ((3, 24), (2, 47), (5, 19), (2, 9)):
        inputs = texts(rows, length, seed=length)
        (output,) = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
        with torch.no_grad():
            expected = model(*inputs)
        real = inputs[1] == 1
        assert (torch.from_numpy(output) - expected)[real].abs().max() < NEAR


reason = why_not_compile("cpu")


@pytest.mark.skipif(reason is not None, reason=reason or "")
@pytest.mark.parametrize("family", [TEXTS[0], TEXTS[-1]], ids=repr)
@torch.no_grad()
def test_a_compiler_computes_the_same(family):
    """One graph; absolute positions, and rotary ones with a local layer."""
    encoder = linear(random_model(base_class(family), family.config, torch.float32), exact_below=8)
    model, inputs = Hidden(encoder).eval(), texts(3, 24, seed=1)
    output, real = torch.compile(model, fullgraph=True)(*inputs), inputs[1] == 1
    assert (output - model(*inputs))[real].abs().max() < NEAR
