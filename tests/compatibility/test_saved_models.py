"""Folders that `save_pretrained` left open as they did, and give the outputs that they gave."""

import json
import runpy

import pytest
import transformers
from recorded import EXPECTED, FLOAT32, FLOAT64, RUNS, SAVED, open_model, record_model
from safetensors import safe_open
from safetensors.torch import load_file
from torch.testing import assert_close

import torch_linformer

FOLDERS = [*sorted(SAVED.iterdir()), RUNS / "adapted"]
# A field of config.json that has another name by now, which is where its value is found: "old name": "name".
RENAMED = {"memory": "activation_memory"}
TIED = {
    "LinformerForMaskedLM": {"lm_head.decoder.weight"},
    "LinformerForCausalLM": {"lm_head.decoder.weight"},
    "LinformerForConditionalGeneration": {"lm_head.weight", "encoder.embeddings.word_embeddings.weight"},
}

# An old folder may call a field by its old name.
pytestmark = [
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.parametrize("folder", FOLDERS, ids=[folder.name for folder in FOLDERS]),
]


@pytest.fixture
def config(folder):
    """What `config.json` says."""
    return json.loads((folder / "config.json").read_text(encoding="utf-8"))


def shapes_in(folder):
    with safe_open(folder / "model.safetensors", "pt") as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118 - no dict


def missing_fields(fields, config):
    """Names in `fields` that the configuration does not know, or of which it says something else."""
    known, missing = type(config)().to_dict(), []
    for name, value in fields.items():
        name = RENAMED.get(name, name)
        found = getattr(config, name, None)
        if isinstance(found, transformers.PretrainedConfig):
            missing += [f"{name}.{each}" for each in missing_fields(value, found)]
        elif name not in known or json.loads(json.dumps(found, default=str)) != value:
            missing.append(name)
    return missing


def test_every_field_of_the_configuration_is_read(folder, config):
    opened = transformers.AutoConfig.from_pretrained(folder)
    about_the_file = ("model_type", "transformers_version", "dtype", "auto_map")  # the last is tested below
    fields = {name: value for name, value in config.items() if name not in about_the_file}
    assert missing_fields(fields, opened) == []


def test_the_auto_class_that_it_names_opens_it_whole(folder, config):
    (class_name,) = config["architectures"]
    autos = [auto for auto, name in config["auto_map"].items() if name == f"modeling_linformer.{class_name}"]
    assert autos
    for auto in autos:
        model, report = getattr(transformers, auto).from_pretrained(folder, output_loading_info=True)
        assert type(model) is getattr(torch_linformer, class_name)
        assert not any(report.values()), report


def test_the_module_that_it_names_still_imports_its_class(folder, config):
    (class_name,) = config["architectures"]
    assert runpy.run_path(folder / "modeling_linformer.py")[class_name] is getattr(torch_linformer, class_name)


def test_parameters_are_named_and_shaped_as_in_the_file(folder, config, tmp_path):
    (class_name,) = config["architectures"]
    model = getattr(torch_linformer, class_name).from_pretrained(folder)
    saved = shapes_in(folder)
    shapes = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    assert {name: shapes.get(name) for name in saved} == saved
    assert shapes.keys() - saved.keys() <= TIED.get(class_name, set())
    model.save_pretrained(tmp_path)
    assert shapes_in(tmp_path) == saved


def test_outputs_and_gradients_are_those_recorded(folder, config):
    record = load_file(EXPECTED / f"{folder.name}.safetensors")
    parts = {"inputs": {}, "outputs": {}}
    for name, tensor in record.items():
        part, _, name = name.partition(".")
        parts[part][name] = tensor
    found, expected = record_model(open_model(folder), parts["inputs"]), parts["outputs"]
    losses = found.pop("loss", None), expected.pop("loss", None)
    if config["architectures"] != ["LinformerForQuestionAnswering"]:  # recorded when padding was a choice in this loss
        assert_close(*losses, **FLOAT32)
    sinusoidal = config.get("position_embedding") == "sinusoidal"
    assert_close(found, expected, **(FLOAT32 if sinusoidal else FLOAT64))
