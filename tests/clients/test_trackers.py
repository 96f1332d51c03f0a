"""What a run logs to a tracker, read back."""

import re

import pytest


def test_losses_rates_and_scores_are_in_tensorboard(train_quickly, tmp_path):
    accumulators = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    shown = train_quickly(tmp_path / "run", report_to="tensorboard", baseline=False)
    (folder,) = (tmp_path / "run" / "runs").iterdir()
    reader = accumulators.EventAccumulator(str(folder)).Reload()
    found = {tag: {each.step: each.value for each in reader.Scalars(tag)} for tag in reader.Tags()["scalars"]}
    told = re.findall(r"^step (\d+): validation .*macro-f1 ([\d.]+)", shown, re.MULTILINE)
    assert len(told) == 10
    assert {step: f"{value:.4f}" for step, value in found["eval/macro_f1"].items()} == {int(a): b for a, b in told}
    assert found["eval/loss"].keys() == found["eval/macro_f1"].keys()
    assert found["train/loss"].keys() == found["train/learning_rate"].keys() and max(found["train/loss"]) == 40
    assert max(found["train/learning_rate"].values()) == pytest.approx(0.003)
