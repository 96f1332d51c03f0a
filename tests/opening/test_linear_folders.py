"""Folders of linear encoders of transformers: opened, compiled, and refused in a line where they are damaged."""

import copy
import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

from torch_linformer.errors import InputError
from torch_linformer.opening import devices as compiling
from torch_linformer.opening.load import load_backbone, load_model, load_tokenizer, longest_input, read_length

LABELS = {"id2label": {0: "rain", 1: "snow", 2: "sun"}}
FAMILIES = ("Bert", "Roberta", "DistilBert", "ModernBert")


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_comes_in_the_class_it_was_saved_as(linear_folder, family, head):
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


def options(**changed):
    return lambda config: config["linformer"]["options"].update(changed)


POSITIONS = "config.json has no positions of a linear encoder"
NOTHING = "config.json has no options and attentions of a linear encoder; copy the folder again"
DAMAGES = {
    "no class": (
        lambda config: config.pop("encoder_class"),
        "config.json cannot be read: config.json: encoder_class None is no model of transformers",
    ),
    "a class of another package": (
        lambda config: config.update(encoder_class="os.path.join"),
        "config.json cannot be read: config.json: encoder_class 'os.path.join' is no model of transformers",
    ),
    "an unknown option": (
        options(colour=1),
        "config.json: colour is no option of a linear encoder here: update torch-linformer",
    ),
    "k too large": (options(k=97), "config.json: k must be at most the 96 tokens read at once, got 97"),
    "a word for a number": (options(window="wide"), "config.json: window must be a whole number, got 'wide'"),
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
    "more layers": (lambda config: config.update(num_hidden_layers=3), "the weights lack "),
    "more layers than the file holds": (lambda config: config.update(num_hidden_layers=10**5), "config.json asks for "),
    "fewer positions": (lambda config: config.update(max_position_embeddings=30), "the weights lack "),
}


@pytest.fixture
def damaged(linear_folder, tmp_path):
    """A function: the copy of a folder whose config.json is changed."""

    def damage(change):
        folder = shutil.copytree(linear_folder("Bert", "ForSequenceClassification", **LABELS), tmp_path / "model")
        config = json.loads((folder / "config.json").read_text())
        change(config)
        (folder / "config.json").write_text(json.dumps(config))
        return str(folder)

    return damage


@pytest.mark.parametrize("load", [load_model, load_backbone])
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_configuration(damaged, damage, load):
    change, message = DAMAGES[damage]
    folder = damaged(change)
    with pytest.raises(InputError) as raised:
        load(folder)
    assert str(raised.value).startswith(f"{folder}: {message}")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda config: config["linformer"]["attentions"].update({"encoder.layer.7.attention": [4, 4, 6, None]}),
            "attentions has encoder.layer.7.attention, and LinearBertForSequenceClassification has none",
        ),
        (
            lambda config: config["positions"].update(tables=["embeddings.nothing.weight"]),
            "positions has embeddings.nothing.weight, and LinearBertForSequenceClassification has none",
        ),
        (lambda config: config.update(architectures=["LinearBertForTelepathy"]), "names no known model class"),
        (options(max_length=4096), "lets the model read 4,096 tokens, and it has 96 positions; copy the folder again"),
    ],
    ids=["another attention", "another table", "no such head", "longer than its positions"],
)
def test_what_the_model_shows(damaged, change, message):
    folder = damaged(change)
    with pytest.raises(InputError) as raised:
        load_model(folder)
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_missing_weights(damaged):
    folder = damaged(lambda config: None)
    weights = load_file(f"{folder}/model.safetensors")
    lost = "bert.encoder.layer.1.attention.self.linformer.proj_k.weight"
    del weights[lost]
    save_file(weights, f"{folder}/model.safetensors", metadata={"format": "pt"})
    with pytest.raises(InputError, match=rf"the weights lack {lost} as config.json has it; copy the folder again$"):
        load_model(folder)
    with pytest.raises(InputError, match=rf"the weights lack {lost.removeprefix('bert.')} as config.json has it"):
        load_backbone(folder)


def test_a_compiled_model_computes_and_saves_what_it_did(linear_folder, graph_counter):
    model = load_model(str(linear_folder("Bert", "ForSequenceClassification", num_hidden_layers=1)))
    plain = copy.deepcopy(model)
    assert compiling.compile_backbone(model, "cuda") == "--compile: the first batches wait for the compiler"
    with torch.inference_mode():
        for rows, length in ((2, 40), (4, 96), (3, 12)):
            inputs = {"input_ids": torch.randint(4, 260, (rows, length)), "attention_mask": torch.ones(rows, length)}
            inputs["attention_mask"][0, length // 2 :] = 0  # which leaves some long rows short
            torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits, rtol=0, atol=1e-4)
    assert graph_counter.frame_count == 2, "one graph for long batches, and one for those of short rows"
    assert list(model.state_dict()) == list(plain.state_dict())
