"""The original as it is imported: exactly what it was, and what a folder or the hub says of its embeddings."""

import shutil

import huggingface_hub.constants
import pytest
import torch
from torch.testing import assert_close
from transformers import BertForMaskedLM, BertForSequenceClassification, BertModel

from torch_linformer.training.adaptation.source import copy_sentence_modules, load_source
from torch_linformer.training.errors import InputError


@pytest.fixture(scope="module")
def folder(tmp_path_factory, save_source, tokenizer):
    return save_source(tmp_path_factory.mktemp("source") / "small", tokenizer, pooling="max_tokens")


def test_it_is_the_original(folder, tokenizer):
    source = load_source(str(folder))
    batch = tokenizer(["wet mud and the sea", "warm sand"], padding=True, return_tensors="pt")
    with torch.no_grad():
        theirs = BertModel.from_pretrained(folder).eval()(**batch, output_hidden_states=True).hidden_states
        ours = source.model.eval()(**batch, output_hidden_states=True).hidden_states
    real = batch["attention_mask"].bool()
    for own, wanted in zip(ours, theirs, strict=True):
        assert_close(own[real], wanted[real], atol=1e-5, rtol=1e-5)
    assert (source.longest, source.use.pooling, source.sentences) == (16, "max", True)


def test_pooling_is_that_of_the_hub_too(folder, tmp_path, monkeypatch):
    """A cache as the hub's client leaves it, and no network."""
    cached = tmp_path / "models--org--small"
    shutil.copytree(folder, cached / "snapshots" / "abc")
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    source = load_source("org/small")
    assert (source.path, source.use.pooling, source.sentences) == ("org/small", "max", True)
    result = tmp_path / "result"
    result.mkdir()
    copy_sentence_modules("org/small", result, 32)
    for name in ("modules.json", "config_sentence_transformers.json", "1_Pooling/config.json"):
        assert (result / name).read_bytes() == (folder / name).read_bytes()
    assert (result / "2_Normalize").is_dir()


@pytest.mark.parametrize(
    ("model_class", "pooling", "task"),
    [
        (BertModel, None, "embed"),
        (BertForMaskedLM, None, "mlm"),
        (BertForSequenceClassification, None, "classify"),
        (BertForMaskedLM, "mean_tokens", "embed"),
    ],
)
def test_the_head_says_what_it_is_for(tmp_path, save_source, tokenizer, model_class, pooling, task):
    path = str(save_source(tmp_path / "small", tokenizer, model_class, pooling))
    source = load_source(path)
    assert source.use.name == task and type(source.model) is source.use.model_class
    assert source.use.pooling == ("cls" if task == "classify" else "mean")
    assert load_source(path, "embed").use.name == "embed"
    for other in {"mlm", "classify"} - {task}:
        if not (other == "mlm" and model_class is BertForMaskedLM):
            with pytest.raises(InputError, match=f"--task {other}: .* has no head for it; --task embed adapts the enc"):
                load_source(path, other)
