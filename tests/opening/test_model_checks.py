"""What is refused of a model folder before it is built: sizes that cannot be, weights that lie elsewhere."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file
from transformers import AlbertConfig, BertConfig

from torch_linformer.errors import InputError
from torch_linformer.opening import load as model_checks
from torch_linformer.opening.load import check_model, load_backbone, load_model

INDEX = "model.safetensors.index.json"
ELSEWHERE = "which is not in the folder; nothing is read from there"


def edit_json(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


@pytest.mark.parametrize(
    "sizes",
    [
        {"num_hidden_layers": 10**7},
        {"vocab_size": 10**12},
        {"intermediate_size": 10**12},
        {"max_position_embeddings": 10**12},
    ],
    ids=str,
)
def test_sizes_that_no_memory_holds(model_copy, sizes):
    edit_json(model_copy / "config.json", **sizes)
    ((name, size),) = sizes.items()
    place = rf"^{model_copy}: config\.json asks for [\d,]+ weights or more \(.*{name} {size:,}.*\), "
    with pytest.raises(InputError, match=place + "which do not fit into the .* of this machine; correct it, or copy"):
        load_model(str(model_copy))


def test_sizes_that_the_weights_contradict(model_copy):
    edit_json(model_copy / "config.json", num_hidden_layers=2000)
    place = rf"^{model_copy}: config\.json asks for [\d,]+ weights or more \(num_hidden_layers 2,000, .*\), "
    with pytest.raises(InputError, match=place + "and its weights are .*; copy the folder again$"):
        load_model(str(model_copy))


def test_other_models_are_looked_at_too(tmp_path, monkeypatch):
    BertConfig(num_hidden_layers=10**7).save_pretrained(tmp_path / "bert")
    with pytest.raises(InputError, match=r"num_hidden_layers 10,000,000, .*which do not fit into"):
        load_backbone(str(tmp_path / "bert"))
    monkeypatch.setattr(model_checks, "memory_bytes", lambda: 4 * 12_000_000)
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
    index = json.loads((in_two_files / INDEX).read_text())
    names = {name: file for name in index["weight_map"]}
    shutil.copy(in_two_files / "model-00001-of-00002.safetensors", in_two_files.parent / "other.safetensors")
    edit_json(in_two_files / INDEX, weight_map=names)
    with pytest.raises(InputError) as raised:
        load_model(str(in_two_files))
    assert str(raised.value) == f"{in_two_files / INDEX}: {problem}"


@pytest.mark.parametrize("content", ["", "{", "[]", '{"weight_map": []}', "{}"])
def test_an_index_that_is_none(in_two_files, content):
    (in_two_files / INDEX).write_text(content)
    with pytest.raises(InputError, match="is no index of weights; copy the folder again"):
        load_model(str(in_two_files))
