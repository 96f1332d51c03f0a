"""`linformer adapt` from an encoder and texts to a folder that the others open, also after it was killed."""

import csv
import io
import json
import os
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer, BertConfig, BertModel

from torch_linformer.models import LinformerModel
from torch_linformer.training.adaptation.run import run_adaptation
from torch_linformer.training.adaptation.settings import AdaptSettings
from torch_linformer.training.errors import InputError
from torch_linformer.training.screen import Screen

LONGEST, READ = 16, 32  # tokens of the original, and of the adapted
FILES = [
    "1_Pooling",
    "2_Normalize",
    "README.md",
    "adaptation.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "report.html",
    "run.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
]
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


@pytest.fixture(scope="module")
def source(tmp_path_factory, classifier_run):
    """A folder of sentence-transformers with a small BERT, whose embeddings are those of its first tokens."""
    folder = tmp_path_factory.mktemp("source") / "small"
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=32,
        max_position_embeddings=LONGEST,
        initializer_range=0.2,
        pad_token_id=tokenizer.pad_token_id,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "modules.json").write_text(json.dumps(MODULES))
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {}}')
    (folder / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 24, "pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    return folder


@pytest.fixture(scope="module")
def options(tmp_path_factory, weather):
    path = tmp_path_factory.mktemp("texts") / "texts.csv"
    rows = [[text] for text, _ in weather(400, seed=5)]
    with open(path, "w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["text"], *rows])
    return {
        "data": str(path),
        "max_length": READ,
        "k": 4,
        "window": 4,
        "steps": 40,
        "batch_size": 8,
        "learning_rate": 3e-3,
        "device": "cpu",
        "precision": "fp32",
    }


@pytest.fixture(scope="module")
def adapt(source, options):
    """A function: adapt with the options above, changed as told; returns what the screen showed."""

    class Watcher(Screen):
        def __init__(self, output, moments):
            super().__init__(Console(file=io.StringIO(), width=200))
            self.output, self.moments = output, moments

        def evaluated(self, step, metrics):
            super().evaluated(step, metrics)
            if self.moments is not None:
                shutil.copytree(self.output, self.moments / str(step))

    def run(output, *, resume=False, moments=None, path=source, **changed):
        screen = Watcher(output, moments)
        settings = AdaptSettings(**{**options, **changed, "output": str(output)})
        run_adaptation(str(path), settings, resume=resume, command="linformer adapt small <&>", screen=screen)
        return screen.console.file.getvalue()

    return run


@pytest.fixture(scope="module")
def finished(adapt, tmp_path_factory):
    base = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", shutil.which("false"))  # no speed figures
        shown = adapt(base / "run", moments=base / "moments")
    result = json.loads((base / "run" / "adaptation.json").read_text())
    return SimpleNamespace(folder=base / "run", moments=base / "moments", shown=shown, result=result)


def test_the_student_comes_near_its_teacher(finished):
    start, end = finished.result["start"], finished.result["end"]
    assert end["cosine"] > start["cosine"] + 0.05 and end["rank_correlation"] > start["rank_correlation"]
    assert end["cosine"] > 0.95


def test_the_folder_is_whole(finished):
    assert sorted(os.listdir(finished.folder)) == FILES
    assert json.loads((finished.folder / "sentence_bert_config.json").read_text())["max_seq_length"] == READ
    pooling = json.loads((finished.folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    assert "linformer adapt small &lt;&amp;&gt;" in (finished.folder / "report.html").read_text()
    assert "SentenceTransformer" in (finished.folder / "README.md").read_text()


def test_transformers_opens_it_and_it_is_what_was_scored(finished, source, weather):
    tokenizer, model = AutoTokenizer.from_pretrained(finished.folder), AutoModel.from_pretrained(finished.folder)
    config = model.config
    assert isinstance(model, LinformerModel)
    assert (config.k, config.window, config.pooling, config.projection) == (4, 4, "cls", "mean")
    assert (config.hidden_dropout_prob, config.max_position_embeddings) == (0.1, READ)
    assert tokenizer.model_max_length == READ
    texts = [text for text, _ in weather(60, seed=8) if len(tokenizer(text).input_ids) <= LONGEST]
    assert len(texts) > 10
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = model.eval()(**batch).last_hidden_state[:, 0]
        theirs = BertModel.from_pretrained(source).eval()(**batch).last_hidden_state[:, 0]
    assert F.cosine_similarity(ours, theirs).mean() > 0.9


def test_costs_that_cannot_be_measured_are_missing(finished):
    costs = finished.result["costs"]
    assert [row["tokens"] for row in costs] == [128, 512, 2048, 8192]
    assert all(row["ours"] is None is row["full_attention"] for row in costs)
    assert "failed" in finished.shown


def test_a_forward_pass_is_measured_beside_full_attention(finished, adapt, tmp_path, monkeypatch):
    monkeypatch.setattr("torch_linformer.training.adaptation.run.COST_LENGTHS", (64,))
    killed = shutil.copytree(finished.moments / "40", tmp_path / "run")
    shown = adapt(killed, resume=True)
    (row,) = json.loads((tmp_path / "run" / "adaptation.json").read_text())["costs"]
    assert row["tokens"] == 64  # more than the model reads: its positions do not cost anything
    assert row["ours"]["tokens_per_second"] > 0 < row["full_attention"]["peak_memory_mb"]
    assert "measuring a text of 64 tokens beside full attention" in shown


@pytest.mark.usefixtures("no_fresh_process")
@pytest.mark.parametrize("moment", ["4", "20", "40"])
def test_a_killed_adaptation_ends_as_if_it_had_not_been(finished, adapt, tmp_path, moment):
    output = shutil.copytree(finished.moments / moment, tmp_path / "killed")
    shown = adapt(output, resume=True)
    resumed, whole = (load_file(folder / "model.safetensors") for folder in (output, finished.folder))
    assert resumed.keys() == whole.keys() and all(torch.equal(resumed[name], whole[name]) for name in whole)
    result = json.loads((output / "adaptation.json").read_text())
    assert result["end"] == finished.result["end"] and result["start"] == finished.result["start"]
    assert ("going on from" in shown) == (moment != "4")
    assert sorted(os.listdir(output)) == FILES


def test_resume_of_a_finished_adaptation_says_so(finished, adapt):
    before = sorted(path.stat().st_mtime_ns for path in finished.folder.rglob("*"))
    assert "it is finished" in adapt(finished.folder, resume=True)
    assert sorted(path.stat().st_mtime_ns for path in finished.folder.rglob("*")) == before


def test_another_adaptation_is_not_gone_on_with(finished, adapt):
    with pytest.raises(InputError, match=r"holds another run \(--k 4 there, 5 here\)"):
        adapt(finished.folder, resume=True, k=5)


@pytest.mark.usefixtures("no_fresh_process")
@pytest.mark.parametrize("sharing", ["none", "kv", "layerwise"])
def test_learned_maps_of_every_sharing(adapt, tmp_path, sharing):
    adapt(tmp_path / "run", projection="linear", sharing=sharing, steps=2, k=8)
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert (model.config.sharing, model.config.projection, model.config.k) == (sharing, "linear", 8)


@pytest.mark.usefixtures("no_fresh_process")
def test_a_plain_encoder_and_minutes(source, adapt, tmp_path):
    plain = shutil.copytree(source, tmp_path / "plain")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (plain / name).unlink()
    shutil.rmtree(plain / "1_Pooling")
    shown = adapt(tmp_path / "run", path=plain, steps=None, minutes=0.02, max_length=None)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert 1 < result["seconds"] < 20 and "distilled in" in shown
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert (model.config.max_position_embeddings, model.config.pooling) == (LONGEST, "mean")
    assert not (tmp_path / "run" / "modules.json").exists()


@pytest.mark.usefixtures("no_fresh_process")
def test_our_own_model_with_full_attention_is_adapted_too(adapt, tmp_path, train_quickly):
    train_quickly(tmp_path / "full", attention="full", max_steps=2, projection="mean", k=None)
    adapt(tmp_path / "run", path=tmp_path / "full", steps=2, max_length=24)
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert model.config.attention == "linformer" and model.config.k == 4
