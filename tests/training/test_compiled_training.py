"""``linformer train --compile``: the run of the same options without it, but for its first batches."""

import shutil

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch._dynamo.testing import CompileCounterWithBackend

from torch_linformer.opening import compiling


@pytest.fixture
def counter(monkeypatch):
    """Counts graphs that are recorded and run as they are; kernels are made in tests/clients."""
    torch._dynamo.reset()
    counting, compile_module = CompileCounterWithBackend("eager"), nn.Module.compile
    monkeypatch.setattr(
        nn.Module, "compile", lambda module, **options: compile_module(module, backend=counting, **options)
    )
    monkeypatch.setattr(compiling, "why_not_compile", lambda device: None)
    yield counting
    torch._dynamo.reset()


def test_a_run_goes_on_compiled_and_ends_with_the_weights_of_the_other(
    classifier_run, train_quickly, tmp_path, counter, no_fresh_process
):
    """An interrupted run without it, resumed with it: the graphs are for all lengths, and names stay as they were."""
    steps = sorted(int(path.name) for path in classifier_run.moments.iterdir() if path.name.isdigit())
    folder = shutil.copytree(classifier_run.moments / str(steps[len(steps) // 2]), tmp_path / "run")
    shown = train_quickly(folder, resume=True, compile=True, probe=False)
    assert "--compile: the first batches wait for the compiler" in shown
    assert 2 <= counter.frame_count <= 6  # training and inference, full batches and the last ones
    compiled, plain = (load_file(each / "model.safetensors") for each in (folder, classifier_run.folder))
    assert list(compiled) == list(plain)
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, rtol=1e-3, atol=1e-4)
