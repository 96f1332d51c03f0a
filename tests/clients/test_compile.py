"""``--compile`` with the real compiler: a small run, and what it predicts. A minute, most of it the compiler's."""

import json
import subprocess

import pytest
from safetensors import safe_open

from torch_linformer.opening.devices import why_not_compile

reason = why_not_compile("cpu")


@pytest.mark.skipif(reason is not None, reason=reason or "")
def test_a_compiled_run_and_its_predictions(start_command, quick, as_arguments, tmp_path):
    def command(*arguments):
        process = start_command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        output, error = process.communicate(timeout=900)
        assert process.returncode == 0, error
        return output, error

    options = {**quick, "max_steps": 4, "compile": True, "baseline": False, "output": tmp_path / "run"}
    shown, _ = command("train", *as_arguments(options))
    assert "--compile: the first batches wait for the compiler" in shown
    with safe_open(tmp_path / "run" / "model.safetensors", "pt") as weights:
        assert not any("_orig_mod" in name for name in weights.keys())  # noqa: SIM118 - no dict
    texts = ["predict", str(tmp_path / "run"), quick["test"], "--device", "cpu", "--precision", "fp32"]
    plain, _ = command(*texts)
    compiled, said = command(*texts, "--compile")
    assert "--compile: the first batches wait" in " ".join(said.split())
    assert len(plain.splitlines()) == 50
    for one, other in zip(map(json.loads, plain.splitlines()), map(json.loads, compiled.splitlines()), strict=True):
        assert one["label"] == other["label"]
        assert one["probabilities"] == pytest.approx(other["probabilities"], abs=1e-4)
