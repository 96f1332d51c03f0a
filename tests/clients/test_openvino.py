"""OpenVINO computes what our models do: from ONNX, a program of torch.export, and a trace."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from exported_models import EXPORTED, classifier, inputs_of

openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")


def error_of(compiled, model, inputs):
    logits = compiled([x.numpy() for x in inputs.values()])[0]
    return (torch.from_numpy(logits) - model(**inputs).logits).abs().max().item()


def converted(model, inputs, way, folder):
    """What OpenVINO makes of a model, for any batch and length."""
    if way == "trace":
        return openvino.convert_model(model, example_input=inputs)
    batch, length = torch.export.Dim("batch", max=64), torch.export.Dim("length", max=32)
    shapes = {name: {0: batch, 1: length} for name in inputs}
    if way == "torch.export":
        return openvino.convert_model(torch.export.export(model, (), inputs, dynamic_shapes=shapes, strict=False))
    torch.onnx.export(model, kwargs=inputs, f=folder / "model.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    return openvino.convert_model(folder / "model.onnx")


@pytest.mark.parametrize("way", ["onnx", "torch.export", "trace"])
@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_openvino_computes_the_same(config, tmp_path, name, way):
    model = classifier(config, name)
    read = converted(model, inputs_of(config, 2, 16), way, tmp_path)
    # It would take bfloat16 where a processor has it.
    compiled = openvino.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, length in ((2, 16), (3, 11), (1, 32)):
        assert error_of(compiled, model, inputs_of(config, batch, length)) < 1e-5
