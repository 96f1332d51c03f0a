"""Folders with weights in half precision: every command gives what it gives of the same weights in float32."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from torch_linformer.cli.app import run
from torch_linformer.opening.load import load_model


@pytest.fixture
def half_of(tmp_path):
    """A function: two copies of a run's folder with its weights rounded to half precision, the second in float32."""

    def copies(finished, kind):
        base = tmp_path / kind
        model = load_model(str(finished.folder)).to(getattr(torch, kind))
        for name in ("half", "whole"):
            shutil.copytree(finished.folder, base / name)
            model.save_pretrained(base / name)
            model = model.float()
        assert str(AutoModel.from_pretrained(base / "half").dtype) == f"torch.{kind}"
        return base / "half", base / "whole"

    return copies


@pytest.fixture
def answer(capsys):
    """A function: what a command that succeeds prints."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run([str(argument) for argument in arguments])
        shown, error = capsys.readouterr()
        assert exit_.value.code == 0, error
        return shown

    return call


CPU = ("--device", "cpu")
FP32 = (*CPU, "--precision", "fp32")


@pytest.mark.parametrize("kind", ["bfloat16", "float16"])
def test_a_classifier(half_of, lexical_run, quick, answer, tmp_path, kind):
    """It is predicted with, scored and embedded with."""
    half, whole = half_of(lexical_run, kind)
    for command in (("predict", quick["test"]), ("evaluate", "--data", quick["test"])):
        texts = [answer(command[0], folder, *command[1:], *FP32).replace(str(folder), "") for folder in (half, whole)]
        assert texts[0] == texts[1] and len(texts[0]) > 100, command
    for folder in (half, whole):
        answer("embed", folder, quick["test"], "--output", tmp_path / f"{folder.name}.npy", *FP32)
    assert np.array_equal(*(np.load(tmp_path / f"{name}.npy") for name in ("half", "whole")))


def test_a_classifier_goes_on_and_is_looked_into(half_of, lexical_run, quick, answer, tmp_path):
    folders = half_of(lexical_run, "bfloat16")
    for folder in folders:
        options = {"from": folder, "max-steps": 2, "output": f"{folder}-trained", "validation": 0.2, "max-length": 24}
        arguments = [part for name, value in options.items() for part in (f"--{name}", value)]
        answer("train", "--data", quick["data"], *arguments, "--no-freeze", "--no-baseline", "--no-probe", *FP32)
    weights = [load_file(f"{folder}-trained/model.safetensors") for folder in folders]
    assert {tensor.dtype for tensor in weights[0].values()} == {torch.float32, torch.int64, torch.bool}
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())
    answer("inspect", folders[0], "wet grey mud", "--output", tmp_path / "page.html", *CPU)
    assert (tmp_path / "page.html").stat().st_size > 1000
    assert "its scores differ from the model's by at most" in answer("export", folders[0], "--format", "torch")


def test_a_language_model(half_of, clm_run, answer):
    half, whole = half_of(clm_run, "float16")
    options = ("--prompt", "wet grey", "--max-new-tokens", 8, "--seed", 4, *CPU)
    texts = [answer("generate", folder, *options) for folder in (half, whole)]
    assert texts[0] == texts[1] and texts[0].strip()


def test_an_encoder_decoder(half_of, seq2seq_run, write_csv, answer, tmp_path):
    half, whole = half_of(seq2seq_run, "bfloat16")
    table = write_csv(tmp_path / "t.csv", [("wet grey mud",), ("warm sand",)], header=("article",))
    texts = [answer("predict", folder, table, *FP32) for folder in (half, whole)]
    assert texts[0] == texts[1] and texts[0].count("\n") == 2


def test_a_spectrum(save_source, lexical_run, quick, answer, tmp_path):
    tokenizer, spectra = AutoTokenizer.from_pretrained(lexical_run.folder), []
    source = save_source(tmp_path / "source", tokenizer)
    model = AutoModel.from_pretrained(source).half()
    for name in ("half", "whole"):
        shutil.copytree(source, tmp_path / name)
        model.save_pretrained(tmp_path / name)
        model = model.float()
        options = ("--data", quick["test"], "--length", 8, "--documents", 2, "--output", tmp_path / f"{name}-spectrum")
        answer("spectrum", tmp_path / name, *options, *CPU)
        spectra.append(json.loads((tmp_path / f"{name}-spectrum" / "spectrum.json").read_text())["spectra"])
    assert spectra[0] == spectra[1]
