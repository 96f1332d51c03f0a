"""The original as it is opened: exactly what it was, and what a folder or the hub says of its embeddings."""

import copy
import json
import shutil

import huggingface_hub.constants
import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoConfig,
    BertForMaskedLM,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertModel,
)

from torch_linformer.adaptation import distill
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.sentence_transformers import (
    copy_sentence_modules,
    document_vectors,
    write_sentence_modules,
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, save_source, tokenizer):
    return save_source(tmp_path_factory.mktemp("source") / "small", tokenizer, pooling="max_tokens")


def test_it_is_the_original(folder, tokenizer):
    source = load_encoder(str(folder))
    batch = tokenizer(["wet mud and the sea", "warm sand"], padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = BertModel.from_pretrained(folder).eval()(**batch, output_hidden_states=True).hidden_states
        ours = source.model.eval()(**batch, output_hidden_states=True).hidden_states
    real = batch["attention_mask"].bool()
    for own, wanted in zip(ours, theirs, strict=True):
        assert_close(own[real], wanted[real], atol=1e-5, rtol=1e-5)
    assert (source.usual_length, source.objective.pooling, source.sentences) == (16, "max", True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_learns_in_float32(tmp_path, save_source, tokenizer, dtype):
    """From a folder and in memory, as the same weights stored in float32 do; the original stays as it is."""
    path = save_source(tmp_path / "half", tokenizer)
    half = BertModel.from_pretrained(path).to(dtype)
    half.save_pretrained(path)
    assert BertModel.from_pretrained(path).dtype == dtype
    source = load_encoder(str(path))
    words = half.embeddings.word_embeddings.weight
    assert_close(source.model.embeddings.word_embeddings.weight, words.float(), rtol=0, atol=0)
    texts = [f"wet mud {number} and the sea" for number in range(200)]
    options = {"steps": 2, "device": "cpu", "precision": "fp32"}
    student = linearize(half, k=4, window=2, exact_below=0)
    expected = copy.deepcopy(student).float()
    assert student.dtype == dtype
    trained = distill(student, half, tokenizer, texts, **options)
    distill(expected, copy.deepcopy(half).float(), tokenizer, texts, **options)
    assert trained.dtype == torch.float32 and half.dtype == dtype
    assert all(torch.equal(*pair) for pair in zip(trained.parameters(), expected.parameters(), strict=True))


@pytest.mark.parametrize("mode", ["cls", ["cls"], ["cls", "mean"], "lasttoken"])
def test_what_sentence_transformers_6_saves(tmp_path, save_source, tokenizer, mode):
    path = save_source(tmp_path / "small", tokenizer, pooling="mean_tokens")
    (path / "1_Pooling" / "config.json").write_text(json.dumps({"embedding_dimension": 24, "pooling_mode": mode}))
    kinds = ("base.modules.transformer.Transformer", "sentence_transformer.modules.pooling.Pooling")
    modules = [
        {"idx": n, "name": str(n), "path": name, "type": f"sentence_transformers.{kind}"}
        for n, (name, kind) in enumerate(zip(("", "1_Pooling"), kinds, strict=True))
    ]
    (path / "modules.json").write_text(json.dumps(modules))
    if mode in ("cls", ["cls"]):
        source = load_encoder(str(path))
        assert (source.objective.pooling, source.sentences) == ("cls", True)
        return
    with pytest.raises(InputError, match=r"pools by (cls, mean|lasttoken); only mean, cls or max are"):
        load_encoder(str(path))


def test_pooling_is_that_of_the_hub_too(folder, tmp_path, monkeypatch):
    """A cache as the hub's client leaves it, and no network."""
    cached = tmp_path / "models--org--small"
    shutil.copytree(folder, cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = load_encoder("org/small")
    assert (source.path, source.objective.pooling, source.sentences) == ("org/small", "max", True)
    result = tmp_path / "result"
    result.mkdir()
    copy_sentence_modules("org/small", result, 32)
    for name in ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"):
        assert (result / name).read_bytes() == (folder / name).read_bytes()
    assert (result / "2_Normalize").is_dir()


def test_modules_of_ours_are_copied_whole_and_windows_refused(tmp_path, save_source, tokenizer):
    path = save_source(tmp_path / "small", tokenizer)
    config = AutoConfig.from_pretrained(path)
    lexical = LexicalVector(config.vocab_size, config.hidden_size, 8)
    lexical.weights[:3] = torch.tensor([1.0, 2.0, 3.0])
    write_sentence_modules(config, path, DocumentVectors("mean", lexical))
    assert load_encoder(str(path)).sentences
    (tmp_path / "copy").mkdir()
    copy_sentence_modules(str(path), tmp_path / "copy", 32)
    copied = document_vectors(str(tmp_path / "copy"), config).lexical
    assert torch.equal(copied.weights, lexical.weights)
    for window in (None, 16):
        pieces = PieceVectors(config.hidden_size, 3, window, [0], [1])
        write_sentence_modules(config, path, DocumentVectors("mean", lexical, pieces))
        if window is None:
            assert load_encoder(str(path)).objective.pooling == "mean"
    with pytest.raises(
        InputError, match="makes vectors of windows of 16 tokens, and what is adapted reads texts at once"
    ):
        load_encoder(str(path))


@pytest.mark.parametrize(
    ("model_class", "pooling", "task"),
    [
        (BertModel, None, "embed"),
        (BertForMaskedLM, None, "mlm"),
        (BertForPreTraining, None, "mlm"),
        (BertForQuestionAnswering, None, "embed"),
        (BertForSequenceClassification, None, "classify"),
        (BertForMaskedLM, "mean_tokens", "embed"),
    ],
)
def test_the_head_says_what_it_is_for(tmp_path, save_source, tokenizer, model_class, pooling, task):
    path = str(save_source(tmp_path / "small", tokenizer, model_class, pooling))
    source = load_encoder(path)
    kind = BertForMaskedLM if task == "mlm" else BertForSequenceClassification if task == "classify" else BertModel
    assert source.objective.name == task and type(source.model) is kind
    assert source.objective.pooling == ("cls" if task == "classify" else "mean")
    assert load_encoder(path, "embed").objective.name == "embed"
    for other in {"mlm", "classify"} - {task}:
        if not (other == "mlm" and model_class in (BertForMaskedLM, BertForPreTraining)):
            with pytest.raises(InputError, match=f"--task {other}: .* has no head for it; --task embed adapts only"):
                load_encoder(path, other)
