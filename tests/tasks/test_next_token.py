"""Causal language modeling, from text to a scored model that goes on with text."""

import json
import math
import os
import shutil

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import TaskPredictor
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.models import LinformerForCausalLM
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.tasks.language_modeling import CausalLanguageModeling
from torch_linformer.training.train_settings import TrainSettings

PAD, CLS, SEP = range(3)
NEW = {"tokenizer": "bpe:8192", "k": None, "model": None, "max_length": None}  # options a first model decides
SAME = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def byte_tokens():
    return build_tokenizer("bytes", [], max_length=16, goes_on=True)


def rows_of(tokenizer, texts, length=16, **options):
    task = CausalLanguageModeling(tokenizer, seed=0, **options)
    windows = task.examples(Dataset.from_dict({"text": texts}), DocumentEncoder(tokenizer, length)).windows
    return task, [windows[i] for i in range(len(windows))]


# What is predicted


def test_every_token_but_the_first_and_the_end_of_a_row_that_is_no_end_of_a_text(byte_tokens):
    task, rows = rows_of(byte_tokens, ["abcdefghijklmnopqrstuvwxyz"], length=16)
    assert [row["ends"] for row in rows] == [False, True]
    batch = task.collator(training=True)(rows)
    assert batch["input_ids"][0, 0] == CLS and batch["input_ids"][0, -1] == SEP
    first, last = batch["labels"].tolist()
    assert first == [-100, *batch["input_ids"][0, 1:-1].tolist(), -100]
    tokens = int(batch["attention_mask"][1].sum())
    assert last == [-100, *batch["input_ids"][1, 1:tokens].tolist(), *[-100] * (len(last) - tokens)]
    assert last[tokens - 1] == SEP


def test_a_separator_between_texts_is_predicted_and_padding_on_the_left_is_not(byte_tokens):
    task, (row,) = rows_of(byte_tokens, ["ab", "cd", "ef"])
    assert row["input_ids"].count(SEP) == 3 and row["ends"]
    task.pad.tokenizer.padding_side = "left"
    short = {"input_ids": [CLS, 10, SEP], "ends": True}
    batch = task.collate([row, short])
    task.pad.tokenizer.padding_side = "right"
    assert batch["labels"][0].tolist() == [-100, *row["input_ids"][1:]]
    assert batch["labels"][1].tolist() == [-100] * (len(row["input_ids"]) - 2) + [10, SEP]


def test_a_row_that_is_full_to_the_last_token_may_have_been_cut(byte_tokens):
    _, rows = rows_of(byte_tokens, ["a"] * 40, length=16)
    full = [row for row in rows if len(row["input_ids"]) == 16]
    assert full and not any(row["ends"] for row in full)


def test_without_packing_every_text_ends_with_a_row_of_its_own(byte_tokens):
    _, rows = rows_of(byte_tokens, ["a" * 30, "b" * 3], packing=False)
    found = sorted((len(row["input_ids"]), row["ends"]) for row in rows)
    assert found == [(4, True), (5, True), (16, False), (16, False)]


def test_scores_count_the_predicted_tokens_and_their_bytes_by_hand():
    tokenizer = build_tokenizer("bpe:262", ["na\u00efve"] * 9, max_length=16, goes_on=True)
    task = CausalLanguageModeling(tokenizer, seed=0)
    rows = [{"input_ids": tokenizer("na\u00efve\u00efx")["input_ids"] + [SEP], "ends": ends} for ends in (True, False)]
    batch = task.collate(rows)
    ids, length = batch["input_ids"], batch["input_ids"].shape[1]
    assert length < 1 + 8 + 1  # a token stands for several bytes
    # At each place, the token behind it has the probability 1/2.
    logits = torch.full((2, length, len(tokenizer)), -math.inf)
    for place in range(length):
        following = int(ids[0, place + 1]) if place + 1 < length else PAD
        logits[:, place, [following, 3 if following != 3 else 4]] = 0.0
    reduced = task.reduce(logits, batch["labels"])
    tokens = [length - 1, length - 2]
    assert reduced[:, 1].tolist() == tokens and reduced[:, 2].tolist() == [9, 9]
    scores = task.scores(reduced.numpy(), None)
    assert scores == pytest.approx({"perplexity": 2.0, "bits_per_byte": sum(tokens) / 18})


@torch.no_grad()
def test_the_scores_are_those_of_the_loss(clm_run):
    model, tokenizer = load_model(str(clm_run.folder)).eval(), load_tokenizer(str(clm_run.folder))
    task, rows = rows_of(tokenizer, ["wet mud", "naïve sea and sand", "ice"], length=24)
    batch = task.collate(rows)
    outputs = model(**batch)
    nats, tokens, _ = task.reduce(outputs.logits, batch["labels"]).sum(dim=0).tolist()
    assert nats / tokens == pytest.approx(outputs.loss.item(), rel=1e-5)


# A finished run


def test_the_folder_goes_on_with_text(clm_run):
    model = AutoModelForCausalLM.from_pretrained(clm_run.folder)
    assert isinstance(model, LinformerForCausalLM) and not list(clm_run.folder.glob("checkpoint-*"))
    config = model.config
    assert config.causal and config.position_embedding == "rotary" and not config.lm_head_transform
    assert (config.k, config.window, config.projection) == (6, 64, "linear")
    tokenizer = AutoTokenizer.from_pretrained(clm_run.folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<cls>", "<sep>")
    assert (model.generation_config.bos_token_id, model.generation_config.eos_token_id) == (CLS, SEP)
    ids = tokenizer("wet grey")["input_ids"]
    assert ids[0] == CLS and SEP not in ids
    card = (clm_run.folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text-generation" in card and "model.generate(" in card


def test_the_code_of_the_card_goes_on_with_its_text(clm_run, run_card):
    done = run_card(clm_run.folder)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Once upon a time")


def test_it_learns_and_its_baseline_stands_beside_it(clm_run, quick):
    metrics = json.loads((clm_run.folder / "metrics.json").read_text())
    assert 1 < metrics["perplexity"] < 40 and 0 < metrics["bits_per_byte"] < 4
    assert 0 < metrics["bzip2_bits_per_byte"] < 8
    assert "bzip2 after training documents" in clm_run.shown
    assert "K 6, causal, window 64" in clm_run.shown
    assert f"are longer than --max-length {quick['max_length']}; " in clm_run.shown


def test_evaluation_gives_the_same_scores(clm_run, quick):
    _, scores = evaluate(str(clm_run.folder), quick["test"], batch_size=7, seed=quick["seed"], **SAME)
    metrics = json.loads((clm_run.folder / "metrics.json").read_text())
    for name in ("perplexity", "bits_per_byte"):
        assert scores[name] == pytest.approx(metrics[name], rel=1e-4)


def test_a_killed_run_ends_as_if_it_had_not_been(clm_run, train_quickly, tmp_path):
    output = shutil.copytree(clm_run.moments / "32", tmp_path / "killed")
    train_quickly(output, resume=True, **clm_run.options)
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (clm_run.folder, output))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert sorted(os.listdir(output)) == sorted(os.listdir(clm_run.folder))


def test_it_predicts_nothing_of_a_document(clm_run):
    path = str(clm_run.folder)
    with pytest.raises(InputError, match=r"predicts nothing of a document: linformer generate goes on with a text$"):
        TaskPredictor(load_model(path), load_tokenizer(path), batch_size=1, **SAME)


# Other models


@pytest.mark.parametrize(
    "options",
    [{"k": "0"}, {"window": 0}, {"model": {"attention": "full"}}, {"tokenizer": "bytes", "packing": False}],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_other_causal_models(train_quickly, tmp_path, options):
    train_quickly(tmp_path / "run", task="clm", **{"model": None, "max_steps": 2, **options})
    config = load_model(str(tmp_path / "run")).config
    assert (config.k, config.window, config.attention) == (
        int(options.get("k", 6)),
        None if options.keys() & {"window", "model"} else 64,
        "full" if "model" in options else "linformer",
    )


def test_an_encoder_with_a_window(train_quickly, tmp_path):
    train_quickly(tmp_path / "run", window=4, max_steps=2)
    config = load_model(str(tmp_path / "run")).config
    assert config.window == 4 and not config.causal


@pytest.mark.parametrize("task", ["clm", "classify"])
def test_from_a_causal_model(clm_run, train_quickly, tmp_path, task):
    options = {**NEW, "max_steps": 1, "learning_rate": 1e-12, "task": task}
    shown = train_quickly(tmp_path / "run", from_model=str(clm_run.folder), **options)
    assert f"model from {clm_run.folder}: " in shown
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (clm_run.folder, tmp_path / "run"))
    carried = [name for name in after if task == "clm" or name.startswith("linformer.")]
    assert carried and all(torch.allclose(before[name], after[name], atol=1e-9) for name in carried)
    found = load_model(str(tmp_path / "run"))
    assert found.config.causal and found.config.window == 64
    if task == "clm":
        assert found.generation_config.eos_token_id == SEP
        metrics = [json.loads((f / "metrics.json").read_text()) for f in (clm_run.folder, tmp_path / "run")]
        assert metrics[0]["bits_per_byte"] == pytest.approx(metrics[1]["bits_per_byte"])
    else:
        _, scores = evaluate(str(tmp_path / "run"), TrainSettings(**clm_run.settings).test, **SAME)
        assert 0 <= scores["accuracy"] <= 1


def test_models_that_cannot_begin(clm_run, masked_run, train_quickly, tmp_path):
    for task, first, reason in (
        ("clm", masked_run, "its tokens see those after them; --task clm begins with a model of --task clm, or with"),
        ("mlm", clm_run, "its tokens do not see those after them, as --task mlm needs; take --task clm, or begin"),
    ):
        with pytest.raises(InputError) as raised:
            train_quickly(tmp_path / "run", from_model=str(first.folder), task=task, **NEW)
        assert str(raised.value).startswith(f"--from {first.folder}: {reason}")
    assert not os.listdir(tmp_path)


def test_a_causal_model_reads_rows_longer_than_it_learnt_on(clm_run):
    model = load_model(str(clm_run.folder))
    length = model.config.max_position_embeddings
    assert model(torch.ones(1, 2 * length, dtype=torch.long)).logits.isfinite().all()
