import json
import shutil

import pytest
import torch
from transformers import AutoTokenizer, BertConfig

from torch_linformer import LinformerForMaskedLM, LinformerForSequenceClassification
from torch_linformer.errors import InputError
from torch_linformer.opening.load import load_config, load_model, load_tokenizer


def shorten(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def test_a_model_comes_in_the_class_it_was_saved_as(classifier_run, masked_run):
    for run, cls in ((classifier_run, LinformerForSequenceClassification), (masked_run, LinformerForMaskedLM)):
        folder = str(run.folder)
        model, tokenizer = load_model(folder), load_tokenizer(folder)
        assert type(model) is cls and not model.training
        assert load_config(folder).vocab_size == len(tokenizer)
        expected = cls.from_pretrained(folder)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
        assert tokenizer("naïve mud").input_ids == AutoTokenizer.from_pretrained(folder)("naïve mud").input_ids


DAMAGES = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "is no model folder: it has no config.json"),
    "config cut off": (lambda folder: shorten(folder / "config.json"), "config.json cannot be read: "),
    "config of another kind": (lambda folder: BertConfig().save_pretrained(folder), "holds a bert model, not a lin"),
    "config that cannot be": (
        lambda folder: edit_json(folder / "config.json", k=10_000),
        "config.json cannot be read: k",
    ),
    "a word for a number": (
        lambda folder: edit_json(folder / "config.json", window="wide"),
        "config.json cannot be read: Validation error for field 'window': TypeError: Field 'window' with value 'wide'",
    ),
    "no class": (
        lambda folder: edit_json(folder / "config.json", architectures=["LinformerForTelepathy"]),
        "config.json names no known model class (LinformerForTelepathy)",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "the weights cannot be read: "),
    "weights cut off": (lambda folder: shorten(folder / "model.safetensors"), "the weights cannot be read: "),
    "weights cut at the header": (
        lambda folder: shorten(folder / "model.safetensors", 0.001),
        "the weights cannot be read: ",
    ),
    "weights that are text": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1"),
        "the weights cannot be read: ",
    ),
    "another width": (
        lambda folder: edit_json(folder / "config.json", intermediate_size=7),
        "the weights lack linformer.",
    ),
    "more layers": (
        lambda folder: edit_json(folder / "config.json", num_hidden_layers=9),
        "the weights lack linformer.",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_folder(model_copy, damage):
    hurt, message = DAMAGES[damage]
    hurt(model_copy)
    with pytest.raises(InputError) as raised:
        load_model(str(model_copy))
    assert str(raised.value).startswith(f"{model_copy}: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("damage", ["missing", "cut off", "both files missing"])
def test_a_damaged_tokenizer(model_copy, damage):
    path = model_copy / "tokenizer.json"
    if damage == "cut off":
        shorten(path)
    else:
        path.unlink()
    if damage == "both files missing":
        (model_copy / "tokenizer_config.json").unlink()
    with pytest.raises(InputError) as raised:
        load_tokenizer(str(model_copy))
    assert str(raised.value).startswith(f"{model_copy}: ") and "\n" not in str(raised.value)
    assert "tokenizer" in str(raised.value)


def test_a_folder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("nowhere", "./nowhere", str(tmp_path / "a" / "b")):
        with pytest.raises(InputError) as raised:
            load_model(path)
        assert str(raised.value) == f"{path}: no such folder, and no model of that name could be fetched"
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(InputError, match=r"^model\.bin: is no model folder: it has no config\.json$"):
        load_model("model.bin")


def test_a_folder_that_was_moved(classifier_run, tmp_path):
    moved = shutil.copytree(classifier_run.folder, tmp_path / "a place with spaces")
    assert load_model(str(moved)).config.num_labels == 3
