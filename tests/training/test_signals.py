"""Signals in the middle of a step or of an evaluation: what they leave, and that nothing is lost by them."""

import functools
import os
import signal
from pathlib import Path

import pytest

from torch_linformer.errors import Stopped
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.opening.folder import checkpoints, is_whole
from torch_linformer.training import trainer
from torch_linformer.training.trainer import Interrupted, RunTrainer

# Epochs of seven steps, of several parts of at least four documents; scored, with a checkpoint, every second step.
OPTIONS = {"max_steps": 11, "batch_size": 16, "validation": "0.3", "baseline": False}


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module", autouse=True)
def in_parts():
    """As where memory is short."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunTrainer, "most_at_once", 96)
        yield


@pytest.fixture(scope="module")
def whole(in_parts, finish_run):
    """A run that no signal has reached."""
    return finish_run(**OPTIONS).folder


@pytest.fixture
def send_in(monkeypatch):
    """A function: get signals in a forward pass after so many steps, of the training or of an evaluation.

    Returns the passes after those steps that there have been, which are counted on.
    """
    forward = LinformerForSequenceClassification.forward

    def arrange(steps, number, *signals, training=True):
        passes = []

        @functools.wraps(forward)
        def counted(model, *args, **kwargs):
            outputs = forward(model, *args, **kwargs)
            callback = getattr(signal.getsignal(signal.SIGTERM), "__self__", None)
            if callback is not None and (callback.trainer.state.global_step, model.training) == (steps, training):
                passes.append(outputs)
                if len(passes) == number:
                    for signum in signals:
                        os.kill(os.getpid(), signum)
            return outputs

        monkeypatch.setattr(LinformerForSequenceClassification, "forward", counted)
        return passes

    return arrange


MOMENTS = {  # steps that are over, and the forward pass after them; an evaluation has three
    "first step": (0, 2, True),
    "a step": (5, 1, True),
    "first step of an epoch": (7, 1, True),
    "evaluation": (4, 2, False),
    "last evaluation": (11, 1, False),
}


@pytest.mark.parametrize("moment", MOMENTS)
def test_a_signal_ends_a_run_at_the_next_part_and_it_goes_on_as_if_there_had_been_none(
    train_quickly, send_in, whole, tmp_path, moment
):
    steps, number, training = MOMENTS[moment]
    passes = send_in(steps, number, signal.SIGTERM, signal.SIGTERM, training=training)  # as torchrun passes it on
    with pytest.raises(Interrupted) as error:
        train_quickly(tmp_path / "run", **OPTIONS)
    assert error.value.signum == signal.SIGTERM and len(passes) == number
    newest = checkpoints(tmp_path / "run")[-1]
    assert newest.name == f"checkpoint-{steps}" and is_whole(newest)
    shown = train_quickly(tmp_path / "run", resume=True, **OPTIONS)
    assert f"going on from {newest}" in shown
    assert weights(tmp_path / "run") == weights(whole)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_second_signal_ends_a_run_at_once_and_leaves_its_folder(
    train_quickly, send_in, tmp_path, monkeypatch, signum
):
    monkeypatch.setattr(trainer, "SAME_SIGNAL", 0.0)
    passes = send_in(0, 1, signal.SIGTERM, signum)
    with pytest.raises(Stopped) as error:
        train_quickly(tmp_path / "run", **OPTIONS)
    assert error.value.signum == signum and len(passes) == 1
    assert [path.name for path in Path(tmp_path / "run").iterdir()] == ["run.json"]
    assert "starting afresh" in train_quickly(tmp_path / "run", resume=True, **{**OPTIONS, "max_steps": 1})
