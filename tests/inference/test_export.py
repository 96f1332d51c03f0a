import importlib.util
import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn import functional as F
from transformers import AutoConfig, AutoTokenizer

from torch_linformer.errors import InputError
from torch_linformer.inference import export
from torch_linformer.inference.export import export_model
from torch_linformer.models import LinformerForQuestionAnswering, LinformerForTokenClassification, LinformerModel
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.load import load_model
from torch_linformer.opening.sentence_transformers import sentence_pooling


@pytest.mark.parametrize("kind", ["lexical_run", "masked_run"])
def test_a_program_of_torch(request, tmp_path, kind):
    folder = request.getfixturevalue(kind).folder
    assert export_model(str(folder), tmp_path / "program", "torch") < 1e-5
    names = ["config.json", "model.pt2", "modeling_linformer.py", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(os.listdir(tmp_path / "program")) == names and os.listdir(tmp_path) == ["program"]
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "program")
    model = load_model(str(folder)).eval().requires_grad_(False)
    for texts in (["wet mud"], ["sea", "ice cold white the of", "the naïve sand of the warm sea"]):
        rows = tokenizer(texts, padding=True, return_tensors="pt")
        (found,) = program(rows["input_ids"], rows["attention_mask"])
        assert torch.allclose(found, model(rows["input_ids"], rows["attention_mask"]).logits, atol=1e-5)
    assert AutoConfig.from_pretrained(tmp_path / "program").id2label == model.config.id2label


CHOSEN = {"projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        (LinformerForQuestionAnswering, CHOSEN),
        (LinformerForTokenClassification, {"k": 0, "window": 4, "exact_first": 2}),
    ],
    ids=["slots of the content", "no slots"],
)
@torch.no_grad()
def test_what_other_models_say(classifier_run, tmp_path, model_class, fields):
    torch.manual_seed(0)
    model = model_class(AutoConfig.from_pretrained(classifier_run.folder, type_vocab_size=2, **fields)).eval()
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(classifier_run.folder).save_pretrained(tmp_path / "model")
    assert export_model(str(tmp_path / "model"), tmp_path / "program", "torch") < 1e-5
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    rows = AutoTokenizer.from_pretrained(tmp_path / "program")(["who?"], ["wet mud"], return_tensors="pt")
    scores = program(rows["input_ids"], rows["attention_mask"], rows["token_type_ids"])
    for one, other in zip(scores, model(**rows).to_tuple(), strict=True):
        assert torch.allclose(one, other, atol=1e-5)
    untyped = program(rows["input_ids"], rows["attention_mask"], torch.zeros_like(rows["input_ids"]))
    assert not torch.allclose(scores[0], untyped[0], atol=1e-3)  # the types count


@torch.no_grad()
def test_a_program_of_words_only_has_no_encoder(lexical_run, tmp_path):
    model = load_model(str(lexical_run.folder)).eval()
    model.classifier.weight.zero_()
    model.save_pretrained(tmp_path / "model")
    AutoTokenizer.from_pretrained(lexical_run.folder).save_pretrained(tmp_path / "model")
    assert export_model(str(tmp_path / "model"), tmp_path / "program", "torch") < 1e-5
    program = torch.export.load(tmp_path / "program" / "model.pt2")
    assert {name.split(".")[1] for name in program.state_dict} == {"classifier", "lexical"}


@torch.no_grad()
def test_an_embedder_keeps_its_pooling(classifier_run, save_source, tmp_path):
    """That of the folder of sentence-transformers, which need not be that of the configuration; prompts stay too."""
    config = AutoConfig.from_pretrained(classifier_run.folder)
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    folder = save_source(tmp_path / "model", tokenizer, pooling="cls_token")
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "find: "}}')
    torch.manual_seed(0)
    model = LinformerModel(config).eval()
    assert config.pooling != "cls"
    model.save_pretrained(folder)
    assert export_model(str(folder), tmp_path / "program", "torch") < 1e-5
    names = ["1_Pooling", "config.json", "config_sentence_transformers.json", "model.pt2", "modeling_linformer.py"]
    names += ["modules.json", "sentence_bert_config.json", "tokenizer.json", "tokenizer_config.json"]
    assert sorted(os.listdir(tmp_path / "program")) == names
    assert sentence_pooling(str(tmp_path / "program")) == "cls"
    assert "find: " in (tmp_path / "program" / "config_sentence_transformers.json").read_text()
    rows = tokenizer(["wet mud", "the naïve sand of the warm sea"], padding=True, return_tensors="pt")
    ids, mask = rows["input_ids"], rows["attention_mask"]
    hidden, vectors = torch.export.load(tmp_path / "program" / "model.pt2").module()(ids, mask)
    assert torch.allclose(vectors, F.normalize(hidden[:, 0], dim=-1), atol=1e-5)


def refusal(*arguments):
    with pytest.raises(InputError) as raised:
        export_model(*arguments)
    return str(raised.value)


def test_what_cannot_be_written(classifier_run, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else name)
    for format, message in (
        ("tflite", "--format must be one of onnx, torch, got 'tflite'"),
        ("onnx", '--format onnx needs onnxruntime: pip install "torch-linformer[onnx]"'),
    ):
        assert refusal(str(classifier_run.folder), tmp_path / "out", format) == message
    assert not os.listdir(tmp_path)


def test_a_folder_that_is_taken(classifier_run, tmp_path):
    (tmp_path / "thesis.doc").write_text("years of work")
    for taken in (tmp_path, tmp_path / "thesis.doc"):
        message = f"--output {taken}: is not empty; name another folder"
        assert refusal(str(classifier_run.folder), taken, "torch") == message
    assert os.listdir(tmp_path) == ["thesis.doc"]


def test_scores_that_differ_leave_nothing(classifier_run, tmp_path, monkeypatch):
    write = export._write

    def write_another(scores, file, screen):
        write(scores, file, screen)
        with torch.no_grad():
            scores.model.classifier.bias += 0.01

    monkeypatch.setattr(export, "_write", write_another)
    message = refusal(str(classifier_run.folder), tmp_path / "out", "torch")
    assert "exported scores differ by " in message and message.endswith("; nothing is kept")
    assert not os.listdir(tmp_path)


def test_nan_is_no_agreement(classifier_run, tmp_path):
    broken = shutil.copytree(classifier_run.folder, tmp_path / "broken")
    weights = load_file(broken / "model.safetensors")
    weights["classifier.bias"][0] = float("nan")
    save_file(weights, broken / "model.safetensors", metadata={"format": "pt"})
    assert "differ by nan" in refusal(str(broken), tmp_path / "out", "torch")
    assert os.listdir(tmp_path) == ["broken"]


def test_what_is_compared(classifier_run):
    """The longest and the shortest input, and both types of tokens."""
    config = AutoConfig.from_pretrained(classifier_run.folder)
    config.type_vocab_size = 2
    model = LinformerForQuestionAnswering(config)
    assert {(1, 1), (3, config.max_position_embeddings)} <= set(export._shapes(model))
    batch = export._batch(export.Scores(model, DocumentVectors("mean")), 3, 24)
    assert [set(tensor.unique().tolist()) for tensor in batch[1:]] == [{0, 1}, {0, 1}]
