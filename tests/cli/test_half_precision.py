"""Folders with weights in half precision: every command gives what it gives of the same weights in float32."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModel, AutoTokenizer

from torch_linformer.cli.app import run
from torch_linformer.opening.model_folder import load_model


@pytest.fixture(scope="module", params=["bfloat16", "float16"])
def half_of(request, tmp_path_factory):
    """A function: two copies of a run's folder with its weights rounded to half precision, the second in float32."""

    def copies(finished):
        base = tmp_path_factory.mktemp(request.param)
        model = load_model(str(finished.folder)).to(getattr(torch, request.param))
        for name in ("half", "whole"):
            shutil.copytree(finished.folder, base / name)
            model.save_pretrained(base / name)
            model = model.float()
        assert str(AutoModel.from_pretrained(base / "half").dtype) == f"torch.{request.param}"
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


def test_a_classifier(half_of, lexical_run, quick, answer, tmp_path):
    """It is predicted with, embedded with, scored, inspected, trained further."""
    half, whole = half_of(lexical_run)
    cpu = ("--device", "cpu")
    fp32 = (*cpu, "--precision", "fp32")
    for command in (("predict", quick["test"]), ("evaluate", "--data", quick["test"])):
        texts = [answer(command[0], folder, *command[1:], *fp32).replace(str(folder), "") for folder in (half, whole)]
        assert texts[0] == texts[1] and len(texts[0]) > 100, command
    for folder in (half, whole):
        answer("embed", folder, quick["test"], "--output", tmp_path / f"{folder.name}.npy", *fp32)
        page = tmp_path / f"{folder.name}.html"
        answer("inspect", folder, "wet grey mud", "--output", page, *cpu)
        trained = {"from": str(folder), "max-steps": 2, "output": str(tmp_path / f"{folder.name}-trained")}
        same = ("--no-baseline", "--no-probe", "--validation", 0.2, "--max-length", 24, *fp32)
        given = [part for name, value in trained.items() for part in (f"--{name}", value)]
        answer("train", "--data", quick["data"], *given, *same)
    assert np.array_equal(*(np.load(tmp_path / f"{name}.npy") for name in ("half", "whole")))
    assert (tmp_path / "half.html").stat().st_size > 1000
    weights = [load_file(tmp_path / f"{name}-trained" / "model.safetensors") for name in ("half", "whole")]
    assert {tensor.dtype for tensor in weights[0].values()} == {torch.float32, torch.int64}
    assert all(torch.equal(tensor, weights[1][name]) for name, tensor in weights[0].items())


def test_a_program(half_of, lexical_run, answer):
    half, _ = half_of(lexical_run)
    assert "its scores differ from the model's by at most" in answer("export", half, "--format", "torch")


def test_a_language_model(half_of, clm_run, answer):
    half, whole = half_of(clm_run)
    options = ("--prompt", "wet grey", "--max-new-tokens", 8, "--seed", 4, "--device", "cpu")
    texts = [answer("generate", folder, *options) for folder in (half, whole)]
    assert texts[0] == texts[1] and texts[0].strip()


def test_an_encoder_decoder(half_of, seq2seq_run, write_csv, answer, tmp_path):
    half, whole = half_of(seq2seq_run)
    table = write_csv(tmp_path / "t.csv", [("wet grey mud",), ("warm sand",)], header=("article",))
    texts = [answer("predict", folder, table, "--device", "cpu", "--precision", "fp32") for folder in (half, whole)]
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
        answer("spectrum", tmp_path / name, *options, "--device", "cpu")
        spectra.append(json.loads((tmp_path / f"{name}-spectrum" / "spectrum.json").read_text())["spectra"])
    assert spectra[0] == spectra[1]
