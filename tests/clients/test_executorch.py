"""ExecuTorch runs our models, lowered to XNNPACK where that has the operation."""

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from exported_models import EXPORTED, classifier, inputs_of

pytest.importorskip("executorch", reason="ExecuTorch is not installed: pip install executorch")
from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
from executorch.exir import to_edge_transform_and_lower
from executorch.runtime import Runtime


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("name", EXPORTED)
@torch.no_grad()
def test_executorch_computes_the_same(config, name, masked):
    model, inputs = classifier(config, name), inputs_of(config, 1, 32, masked)
    program = torch.export.export(model, (), inputs, strict=False)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (logits, *_) = Runtime.get().load_program(lowered.buffer).load_method("forward").execute(list(inputs.values()))
    assert (logits - model(**inputs).logits).abs().max() < 1e-5
