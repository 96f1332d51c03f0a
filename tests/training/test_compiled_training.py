"""``linformer train --compile``: the run of the same options without it, but for its first batches."""

import shutil

import torch
from safetensors.torch import load_file


def test_a_run_goes_on_compiled_and_ends_with_the_weights_of_the_other(
    classifier_run, train_quickly, tmp_path, graph_counter, measured_once
):
    """An interrupted run without it, resumed with it: the graphs are for all lengths, and names stay as they were."""
    steps = sorted(int(path.name) for path in classifier_run.moments.iterdir() if path.name.isdigit())
    folder = shutil.copytree(classifier_run.moments / str(steps[len(steps) // 2]), tmp_path / "run")
    shown = train_quickly(folder, resume=True, compile=True, probe=False)
    assert "--compile: the first batches wait for the compiler" in shown
    assert 2 <= graph_counter.frame_count <= 6  # training and inference, full batches and the last ones
    compiled, plain = (load_file(each / "model.safetensors") for each in (folder, classifier_run.folder))
    assert list(compiled) == list(plain)
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, rtol=1e-3, atol=1e-4)
