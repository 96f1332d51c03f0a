"""Sequence to sequence, from pairs of texts to a scored model that writes targets."""

import json
import os
import shutil

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import TaskPredictor
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.models import LinformerForConditionalGeneration
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.tasks import sequence_to_sequence as seq2seq
from torch_linformer.tasks.sequence_to_sequence import SequenceToSequence

PAD, CLS, SEP = range(3)
SAME = {"device": "cpu", "precision": "fp32"}
FIRST = {"tokenizer": "bpe:8192", "k": None, "model": None, "max_length": None}  # options a first model decides


@pytest.fixture(scope="module")
def run(seq2seq_run):
    return seq2seq_run


@pytest.fixture(scope="module")
def byte_tokens():
    return build_tokenizer("bytes", [], max_length=16, goes_on=True)


# What is predicted


def test_targets_end_and_are_padded_with_what_takes_no_part(byte_tokens):
    task = SequenceToSequence(byte_tokens, max_target_length=6)
    documents = Dataset.from_dict({"text": ["abc", "a" * 40], "target": ["xy", "long enough"]})
    examples = task.examples(documents, task.encoder(16))
    assert examples.windows["target_tokens"][:] == [3, 12] and examples.num_tokens.tolist() == [4, 41]
    batch = task.collator(training=True)(list(examples.windows))
    x, y = byte_tokens.convert_tokens_to_ids(["x", "y"])
    assert batch["labels"][0].tolist() == [x, y, SEP, -100, -100, -100]
    assert len(batch["labels"][1]) == 6 and not {SEP, -100}.intersection(batch["labels"][1].tolist())
    assert batch["input_ids"].shape == (2, 16) and batch["input_ids"][:, 0].tolist() == [CLS, CLS]
    assert batch["attention_mask"].sum(dim=-1).tolist() == [4, 16]
    assert "labels" not in task.collate([{"input_ids": [CLS, 5]}])


def test_other_targets_of_the_same_sources_are_not_found_in_the_cache(byte_tokens):
    for target in ("x", "y"):
        task = SequenceToSequence(byte_tokens, max_target_length=6)
        documents = Dataset.from_dict({"text": ["abc"], "target": [target]})
        labels = task.examples(documents, task.encoder(16)).windows["labels"][:]
        assert labels == [[byte_tokens.convert_tokens_to_ids(target), SEP]]


def test_scores_by_hand(byte_tokens):
    task = SequenceToSequence(byte_tokens, max_target_length=6)
    labels = torch.tensor([[5, 6, SEP], [7, -100, -100]])
    logits = torch.full((2, 3, len(byte_tokens)), -1e4)
    for (row, place), token in {(0, 0): 5, (0, 1): 6, (0, 2): SEP, (1, 0): 7}.items():
        logits[row, place, [token, 9]] = 0.0  # each true token has the probability 1/2
        logits[row, place, token] += 0.0 if (row, place) == (0, 1) else 1e-3
    logits[0, 1, 9] = 1e-3
    reduced = task.reduce((logits, "the encoder's output"), labels)
    assert reduced[:, 1:].tolist() == [[3, 2], [1, 1]]
    scores = task.scores(reduced.numpy(), None)
    assert scores == pytest.approx({"perplexity": 2.0, "token_accuracy": 0.75}, rel=1e-3)


def test_the_baseline_is_the_beginning_of_the_source(byte_tokens):
    train = Dataset.from_dict({"text": ["a"] * 3, "target": ["12345678", "1234567", "1"]})
    test = Dataset.from_dict({"text": ["the cat sat", "a dog"], "target": ["the cat", "a cow"]})
    baseline = SequenceToSequence(byte_tokens, 6).baselines(train, test)["beginning"]
    assert baseline["rouge_l"] == pytest.approx((1 + 0.5) / 2) and 0.5 < baseline["chrf"] < 1


def test_many_documents_are_scored_on_some_from_end_to_end():
    assert seq2seq._drawn(3).tolist() == [0, 1, 2]
    drawn = seq2seq._drawn(10_000)
    assert len(set(drawn.tolist())) == seq2seq.WRITTEN and (drawn[0], drawn[-1]) == (0, 9_999)


def test_a_tokenizer_without_an_end_token(word_tokenizer):
    tokenizer = word_tokenizer(["[PAD]", "[CLS]", "[SEP]", "[UNK]", "a"], pad_token="[PAD]")
    with pytest.raises(InputError, match=r"^--task seq2seq needs a tokenizer with an end token; this one has none$"):
        SequenceToSequence(tokenizer, 8)


# A finished run


def test_it_learns_and_its_baseline_stands_beside_it(run):
    assert run.metrics["chrf"] > 0.8 and run.metrics["rouge_l"] > 0.8 and run.metrics["written_documents"] == 30
    assert 0 <= run.metrics["beginning_chrf"] < 0.4
    assert "beginning of the source" in run.shown and "validation loss" in run.shown
    assert "sources from column 'article' (by its name), targets from column 'summary' (by its name)" in run.shown
    assert "tokens a target: median " in run.shown and "token-accuracy" in run.shown


def test_the_folder_writes_targets(run):
    model = AutoModelForSeq2SeqLM.from_pretrained(run.folder)
    assert isinstance(model, LinformerForConditionalGeneration) and not list(run.folder.glob("checkpoint-*"))
    encoder, decoder = model.config.encoder, model.config.decoder
    assert (encoder.k, encoder.max_position_embeddings, encoder.position_embedding) == (6, 24, "learned")
    assert (decoder.k, decoder.max_position_embeddings, decoder.position_embedding) == (3, 12, "rotary")
    assert (encoder.window, decoder.window, model.config.memory_k) == (None, 64, 6)
    assert (model.generation_config.decoder_start_token_id, model.generation_config.eos_token_id) == (CLS, SEP)
    inputs = AutoTokenizer.from_pretrained(run.folder)("wet grey", return_tensors="pt")
    assert model.generate(inputs["input_ids"], max_new_tokens=3).shape[1] <= 4
    card = (run.folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: text2text-generation" in card and "beginning of the source" in card


def test_evaluation_gives_the_same_scores(run):
    _, scores = evaluate(str(run.folder), run.options["test"], batch_size=7, **SAME)
    for name in ("perplexity", "token_accuracy", "chrf", "rouge_l"):
        assert scores[name] == pytest.approx(run.metrics[name], rel=1e-4)
    with pytest.raises(InputError, match=r"^--label-column is for another task; this one reads a source column and "):
        evaluate(str(run.folder), run.options["test"], options=DataOptions(label_column="summary"), **SAME)


def test_predictions_are_what_was_scored(run):
    predictor = TaskPredictor(load_model(str(run.folder)), load_tokenizer(str(run.folder)), batch_size=4, **SAME)
    records = list(predictor.answers(Document(str(i), row["article"]) for i, row in enumerate(run.rows)))
    assert [record["document"] for record in records] == [str(i) for i in range(30)]
    scores = seq2seq.target_metrics([row["summary"] for row in run.rows], [record["target"] for record in records])
    assert scores == pytest.approx({name: run.metrics[name] for name in scores})
    with pytest.raises(InputError, match=r"^--overflow windows is not for --task seq2seq"):
        TaskPredictor(predictor.model, load_tokenizer(str(run.folder)), overflow="windows", batch_size=4, **SAME)


def test_a_killed_run_ends_as_if_it_had_not_been(run, train_quickly, tmp_path):
    output = shutil.copytree(run.moments / "32", tmp_path / "killed")
    train_quickly(output, resume=True, **run.options)
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (run.folder, output))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)
    assert sorted(os.listdir(output)) == sorted(os.listdir(run.folder))


def test_it_is_not_exported(run, tmp_path):
    with pytest.raises(InputError, match="an encoder-decoder writes token by token, which no single program can hold"):
        export_model(str(run.folder), tmp_path / "out", "torch")
    assert not os.listdir(tmp_path)


# Other models


@pytest.mark.parametrize(
    "options",
    [
        {"model": {"attention": "full"}},
        {"window": 4, "model": {"activation_memory": "checkpoint"}},
        {"model": {"activation_memory": "reversible", "chunk_size": 8}, "tokenizer": "bytes"},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_other_encoder_decoders(run, train_quickly, tmp_path, options):
    train_quickly(tmp_path / "run", **{**run.options, "max_steps": 2, **options})
    config = load_model(str(tmp_path / "run")).config
    fields = options["model"]
    for side in (config.encoder, config.decoder):
        assert (side.attention, side.chunk_size) == (fields.get("attention", "linformer"), fields.get("chunk_size"))
    kept = fields.get("activation_memory", "none")
    assert config.encoder.window == options.get("window") and config.encoder.activation_memory == kept
    assert config.decoder.activation_memory == ("none" if kept == "none" else "checkpoint")


def test_from_a_model_of_the_same_task(run, train_quickly, tmp_path):
    first = {**run.options, **FIRST, "from_model": str(run.folder), "max_steps": 1, "learning_rate": 1e-12}
    shown = train_quickly(tmp_path / "run", **{**first, "max_target_length": None})
    assert f"model from {run.folder}: " in shown
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (run.folder, tmp_path / "run"))
    assert all(torch.allclose(before[name], after[name], atol=1e-9) for name in {*before, *after})
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["chrf"] == pytest.approx(run.metrics["chrf"])
    train_quickly(tmp_path / "longer", **{**first, "max_length": 40, "max_target_length": 20})
    longer = load_model(str(tmp_path / "longer")).config
    assert (longer.encoder.max_position_embeddings, longer.decoder.max_position_embeddings) == (40, 20)


def test_models_that_cannot_begin(run, masked_run, train_quickly, tmp_path):
    for task, first, reason in (
        ("seq2seq", masked_run, "is no encoder-decoder; --task seq2seq begins with a model of --task seq2seq, or"),
        ("classify", run, "is an encoder-decoder, which only learns --task seq2seq; begin with another model"),
    ):
        with pytest.raises(InputError) as raised:
            trained = {"freeze": False} if task == "classify" else {}
            train_quickly(tmp_path / "run", from_model=str(first.folder), task=task, **trained, **FIRST)
        assert str(raised.value).startswith(f"--from {first.folder}: {reason}")
    assert not os.listdir(tmp_path)
