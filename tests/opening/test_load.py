"""Model folders: opened in the class they were saved as, and refused in one line where they are damaged."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AlbertConfig, AutoTokenizer, BertConfig

from torch_linformer import LinformerForMaskedLM, LinformerForSequenceClassification
from torch_linformer.errors import InputError
from torch_linformer.opening import load as loading
from torch_linformer.opening.load import (
    check_model,
    load_backbone,
    load_config,
    load_model,
    load_tokenizer,
    longest_input,
    read_length,
)

LABELS = {"id2label": {0: "rain", 1: "snow", 2: "sun"}}
INDEX = "model.safetensors.index.json"


def edit(folder, change, name="config.json"):
    """Change what a JSON file says: ``change`` is fields, or a function of all of them."""
    fields = json.loads((folder / name).read_text())
    fields.update(change) if isinstance(change, dict) else change(fields)
    (folder / name).write_text(json.dumps(fields))


def shorten(path, share=0.5):
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])


def refusal(load, folder):
    with pytest.raises(InputError) as raised:
        load(str(folder))
    assert "\n" not in str(raised.value)
    return str(raised.value)


# Whole folders


def test_a_model_comes_in_the_class_it_was_saved_as(classifier_run, masked_run, tmp_path):
    for run, cls in ((classifier_run, LinformerForSequenceClassification), (masked_run, LinformerForMaskedLM)):
        folder = str(run.folder)
        model, tokenizer = load_model(folder), load_tokenizer(folder)
        assert type(model) is cls and not model.training
        assert load_config(folder).vocab_size == len(tokenizer)
        expected = cls.from_pretrained(folder)
        assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
        assert tokenizer("naïve mud").input_ids == AutoTokenizer.from_pretrained(folder)("naïve mud").input_ids
    moved = shutil.copytree(classifier_run.folder, tmp_path / "a place with spaces")
    assert load_model(str(moved)).config.num_labels == 3


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "ModernBert"])
def test_an_encoder_comes_in_the_class_it_was_saved_as(linear_folder, family, head):
    folder = str(linear_folder(family, head))
    model = load_model(folder)
    assert type(model).__name__ == f"Linear{family}{head}" and not model.training
    assert read_length(model.config) == longest_input(model) == 96
    assert model.config.vocab_size == len(load_tokenizer(folder))
    backbone = load_backbone(folder)
    assert type(backbone).__name__ == f"Linear{family}Model" and longest_input(backbone) == 96
    saved = backbone.state_dict()
    for name, tensor in model.base_model.state_dict().items():
        assert torch.equal(saved[name], tensor)


def test_a_folder_that_is_not_there(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in ("nowhere", "./nowhere", str(tmp_path / "a" / "b")):
        nowhere = f"{path}: no such folder, and no model of that name could be fetched"
        assert refusal(load_model, path) == nowhere
    (tmp_path / "model.bin").write_text("")
    assert refusal(load_model, "model.bin") == "model.bin: is no model folder: it has no config.json"


# Damaged ones

UNREADABLE, LACKING, TOO_LARGE = "the weights cannot be read: ", "the weights lack ", "config.json asks for "
OF_LINFORMER = {
    "no config": (lambda folder: (folder / "config.json").unlink(), "is no model folder: it has no config.json"),
    "config cut off": (lambda folder: shorten(folder / "config.json"), "config.json cannot be read: "),
    "config of another kind": (lambda folder: BertConfig().save_pretrained(folder), "holds a bert model, not a lin"),
    "config that cannot be": (lambda folder: edit(folder, {"k": 10_000}), "config.json cannot be read: k"),
    "a word for a number": (
        lambda folder: edit(folder, {"window": "wide"}),
        "config.json cannot be read: Validation error for field 'window': TypeError: Field 'window' with value 'wide'",
    ),
    "no class": (
        lambda folder: edit(folder, {"architectures": ["LinformerForTelepathy"]}),
        "config.json names no known model class (LinformerForTelepathy)",
    ),
    "no model's class": (
        lambda folder: edit(folder, {"architectures": ["convert"]}),
        "config.json names no known model class (convert)",
    ),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), UNREADABLE),
    "weights cut off": (lambda folder: shorten(folder / "model.safetensors"), UNREADABLE),
    "weights cut at the header": (lambda folder: shorten(folder / "model.safetensors", 0.001), UNREADABLE),
    "weights that are text": (
        lambda folder: (folder / "model.safetensors").write_text("version https://git-lfs.github.com/spec/v1"),
        UNREADABLE,
    ),
    "another width": (lambda folder: edit(folder, {"intermediate_size": 7}), f"{LACKING}linformer."),
    "more layers": (lambda folder: edit(folder, {"num_hidden_layers": 9}), f"{LACKING}linformer."),
    "more layers than the file holds": (lambda folder: edit(folder, {"num_hidden_layers": 2000}), TOO_LARGE),
}


@pytest.mark.parametrize("damage", OF_LINFORMER)
def test_a_damaged_folder(model_copy, damage):
    hurt, message = OF_LINFORMER[damage]
    hurt(model_copy)
    assert refusal(load_model, model_copy).startswith(f"{model_copy}: {message}")


POSITIONS = "config.json has no positions of a linear encoder"
NOTHING = "config.json has no options and attentions of a linear encoder; copy the folder again"
OF_ENCODERS = {
    "no class": (
        lambda config: config.pop("encoder_class"),
        "config.json cannot be read: config.json: encoder_class None is no model of transformers",
    ),
    "a class of another package": (
        lambda config: config.update(encoder_class="os.path.join"),
        "config.json cannot be read: config.json: encoder_class 'os.path.join' is no model of transformers",
    ),
    "an unknown option": (
        lambda config: config["linformer"]["options"].update(colour=1),
        "config.json: colour is no option of a linear encoder here: update torch-linformer",
    ),
    "k too large": (
        lambda config: config["linformer"]["options"].update(k=97),
        "config.json: k must be at most the 96 tokens read at once, got 97",
    ),
    "a word for a number": (
        lambda config: config["linformer"]["options"].update(window="wide"),
        "config.json: window must be a whole number, got 'wide'",
    ),
    "no options": (lambda config: config["linformer"].pop("options"), NOTHING),
    "no linformer": (lambda config: config.pop("linformer"), "config.json says nothing of linformer: make such"),
    "no attentions": (lambda config: config["linformer"].update(attentions={}), NOTHING),
    "an attention without sizes": (lambda config: config["linformer"].update(attentions={"encoder": []}), NOTHING),
    "no positions": (lambda config: config.pop("positions"), POSITIONS),
    "positions of another kind": (lambda config: config["positions"].update(tables=3), POSITIONS),
    "an offset in words": (lambda config: config["positions"].update(offset="two"), POSITIONS),
    "a reach in words": (
        lambda config: config["linformer"]["attentions"].update({"encoder.layer.0.attention.self": [4, 4, 6, "far"]}),
        NOTHING,
    ),
    "a size of nothing": (
        lambda config: config["linformer"]["attentions"].update({"encoder.layer.0.attention.self": [4, 4, 0, None]}),
        NOTHING,
    ),
    "more layers": (lambda config: config.update(num_hidden_layers=3), LACKING),
    "more layers than the file holds": (lambda config: config.update(num_hidden_layers=10**5), TOO_LARGE),
    "fewer positions": (lambda config: config.update(max_position_embeddings=30), LACKING),
}
OF_WHOLE_ENCODERS = {  # what only the whole model shows
    "another attention": (
        lambda config: config["linformer"]["attentions"].update({"encoder.layer.7.attention": [4, 4, 6, None]}),
        "attentions has encoder.layer.7.attention, and LinearBertForSequenceClassification has none",
    ),
    "another table": (
        lambda config: config["positions"].update(tables=["embeddings.nothing.weight"]),
        "positions has embeddings.nothing.weight, and LinearBertForSequenceClassification has none",
    ),
    "no such head": (
        lambda config: config.update(architectures=["LinearBertForTelepathy"]),
        "names no known model class",
    ),
    "longer than its positions": (
        lambda config: config["linformer"]["options"].update(max_length=4096),
        "lets the model read 4,096 tokens, and it has 96 positions; copy the folder again",
    ),
}


@pytest.fixture
def encoder_copy(linear_folder, tmp_path):
    return shutil.copytree(linear_folder("Bert", "ForSequenceClassification", **LABELS), tmp_path / "model")


@pytest.mark.parametrize("damage", OF_ENCODERS)
def test_a_damaged_encoder(encoder_copy, damage):
    change, message = OF_ENCODERS[damage]
    edit(encoder_copy, change)
    for load in (load_model, load_backbone):
        assert refusal(load, encoder_copy).startswith(f"{encoder_copy}: {message}")


@pytest.mark.parametrize("damage", OF_WHOLE_ENCODERS)
def test_what_only_the_whole_encoder_shows(encoder_copy, damage):
    change, message = OF_WHOLE_ENCODERS[damage]
    edit(encoder_copy, change)
    assert message in refusal(load_model, encoder_copy)


def test_missing_weights(encoder_copy):
    weights = load_file(encoder_copy / "model.safetensors")
    lost = "bert.encoder.layer.1.attention.self.linformer.proj_k.weight"
    del weights[lost]
    save_file(weights, encoder_copy / "model.safetensors", metadata={"format": "pt"})
    for load, name in ((load_model, lost), (load_backbone, lost.removeprefix("bert."))):
        assert refusal(load, encoder_copy).endswith(f"{LACKING}{name} as config.json has it; copy the folder again")


@pytest.mark.parametrize("damage", ["missing", "cut off", "both files missing"])
def test_a_damaged_tokenizer(model_copy, damage):
    path = model_copy / "tokenizer.json"
    shorten(path) if damage == "cut off" else path.unlink()
    if damage == "both files missing":
        (model_copy / "tokenizer_config.json").unlink()
    message = refusal(load_tokenizer, model_copy)
    assert message.startswith(f"{model_copy}: ") and "tokenizer" in message


# Sizes that cannot be, and weights that lie elsewhere


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("num_hidden_layers", 10**7),
        ("vocab_size", 10**12),
        ("intermediate_size", 10**12),
        ("max_position_embeddings", 10**12),
    ],
)
def test_sizes_that_no_memory_holds(model_copy, name, size):
    edit(model_copy, {name: size})
    place = rf"^{model_copy}: config\.json asks for [\d,]+ weights or more \(.*{name} {size:,}.*\), "
    with pytest.raises(InputError, match=place + "which do not fit into the .* of this machine; correct it, or copy"):
        load_model(str(model_copy))


def test_other_models_are_looked_at_too(tmp_path, monkeypatch):
    BertConfig(num_hidden_layers=10**7).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match=r"num_hidden_layers 10,000,000, .*which do not fit into"):
        load_backbone(str(tmp_path / "bert"))
    monkeypatch.setattr(loading, "memory_bytes", lambda: 4 * 12_000_000)
    check_model("albert", AlbertConfig(hidden_size=768, intermediate_size=3072, num_hidden_layers=12))  # 11.7 million


@pytest.fixture
def in_two_files(model_copy):
    """A folder whose weights lie in two files, and its index."""
    state = load_file(model_copy / "model.safetensors")
    (model_copy / "model.safetensors").unlink()
    names = {name: f"model-0000{1 + number % 2}-of-00002.safetensors" for number, name in enumerate(state)}
    for file in set(names.values()):
        save_file({name: state[name] for name in state if names[name] == file}, model_copy / file, {"format": "pt"})
    (model_copy / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": names}))
    return model_copy


def test_weights_in_two_files(in_two_files, classifier_run):
    found, expected = load_model(str(in_two_files)), load_model(str(classifier_run.folder))
    assert all((a == b).all() for a, b in zip(found.parameters(), expected.parameters(), strict=True))


ELSEWHERE = "which is not in the folder; nothing is read from there"


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        ("../other.safetensors", f"names '../other.safetensors', {ELSEWHERE}"),
        ("/etc/passwd", f"names '/etc/passwd', {ELSEWHERE}"),
        ("a/../../b.safetensors", f"names 'a/../../b.safetensors', {ELSEWHERE}"),
        ("model-3.safetensors", "names 'model-3.safetensors', which is missing; copy the folder again"),
        (7, "is no index of weights; copy the folder again"),
    ],
)
def test_an_index_of_files_elsewhere(in_two_files, file, problem):
    shutil.copy(in_two_files / "model-00001-of-00002.safetensors", in_two_files.parent / "other.safetensors")
    edit(in_two_files, lambda index: index.update(weight_map=dict.fromkeys(index["weight_map"], file)), INDEX)
    assert refusal(load_model, in_two_files) == f"{in_two_files / INDEX}: {problem}"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"weight_map": []}', "{}"])
def test_an_index_that_is_none(in_two_files, content):
    (in_two_files / INDEX).write_text(content)
    assert "is no index of weights; copy the folder again" in refusal(load_model, in_two_files)
