"""What our configurations tell the Auto classes, and what lies in a folder for them."""

import json

import pytest
import torch
import transformers
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import Trainer, TrainingArguments

from torch_linformer import LinformerSeq2SeqConfig
from torch_linformer.models import LinformerConfig, LinformerForCausalLM
from torch_linformer.models.configuration import AUTO_CLASSES


@pytest.fixture
def seq2seq(tiny):
    part = {name: value for name, value in tiny().to_dict().items() if name != "model_type"}
    return LinformerSeq2SeqConfig(encoder=part, decoder={**part, "causal": True})


@pytest.mark.parametrize("model_type", AUTO_CLASSES)
def test_every_auto_class_that_a_folder_names_opens_it(tiny, seq2seq, tmp_path, model_type):
    config = tiny(causal=True) if model_type == "linformer" else seq2seq
    config.save_pretrained(tmp_path)
    named = json.loads((tmp_path / "config.json").read_text())["auto_map"]
    code = (tmp_path / "modeling_linformer.py").read_text()
    assert named.keys() == AUTO_CLASSES[model_type].keys()
    for auto, reference in named.items():
        module, _, name = reference.rpartition(".")
        assert module == "modeling_linformer" and name in code
        opened = getattr(transformers, auto).from_pretrained(tmp_path) if auto == "AutoConfig" else None
        made = opened or getattr(transformers, auto).from_config(config)
        assert type(made).__name__ == name
    scope = {}
    exec(code, scope)
    assert all(reference.rpartition(".")[2] in scope for reference in named.values())


def test_parts_of_a_configuration_name_nothing(seq2seq):
    fields = json.loads(seq2seq.to_json_string())
    assert "auto_map" in fields and not any("auto_map" in fields[part] for part in ("encoder", "decoder"))


def test_code_of_a_subclass_is_copied_as_transformers_does_it(tmp_path, monkeypatch, tiny):
    (tmp_path / "mine.py").write_text("from torch_linformer import LinformerConfig\nclass Mine(LinformerConfig): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    from mine import Mine

    Mine.register_for_auto_class()
    Mine(k=7).save_pretrained(tmp_path / "saved")
    fields = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert fields["auto_map"]["AutoConfig"] == "mine.Mine" and (tmp_path / "saved" / "mine.py").exists()
    LinformerConfig.register_for_auto_class()
    assert tiny().auto_map["AutoConfig"] == "modeling_linformer.LinformerConfig"


@pytest.mark.cpu("the Trainer moves the model there")
def test_labels_that_the_trainer_smooths_are_those_of_the_next_token(build, token_ids, tmp_path):
    model = build(LinformerForCausalLM)
    arguments = TrainingArguments(tmp_path, label_smoothing_factor=0.1, report_to=[], use_cpu=True)
    ids = token_ids(3, 11)
    with torch.no_grad():
        loss = Trainer(model, arguments).compute_loss(model, {"input_ids": ids, "labels": ids.clone()})
        logits = model(ids).logits
    assert_close(loss, F.cross_entropy(logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), label_smoothing=0.1))
