from collections import Counter

import pytest
import torch
from transformers import AutoConfig, AutoTokenizer

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.opening.load import write_model
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.initial_model import build_model
from torch_linformer.training.prepared import new_task
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import TrainSettings


def built(settings, tokenizer):
    """The model that a training with these settings begins with."""
    first, splits = FirstModel.of(settings), load_splits(settings)
    task = new_task(settings, first, tokenizer, splits.names, splits.train)
    return build_model(settings, first, task, splits)


def test_balanced_class_weights_by_hand(tmp_path, write_csv):
    labels = ["a"] * 12 + ["b"] * 6 + ["c"] * 2
    data = write_csv(tmp_path / "a.csv", [(f"text {i}", label) for i, label in enumerate(labels)])
    tokenizer = build_tokenizer("bytes", [], max_length=32)

    def weights(**options):
        settings = TrainSettings(data=data, test=data, validation=data, max_length=32, **options)
        return built(settings, tokenizer).config.class_weights

    balanced = weights(class_weights="balanced")
    assert balanced == pytest.approx([20 / (3 * 12), 20 / (3 * 6), 20 / (3 * 2)])
    mean = sum(Counter(labels)[name] * weight for name, weight in zip("abc", balanced, strict=True)) / 20
    assert mean == pytest.approx(1)
    assert weights() is None


@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_classifier_for_other_labels_keeps_its_pooler(classifier_run, tmp_path, write_csv, task):
    config = AutoConfig.from_pretrained(classifier_run.folder, classifier_hidden_act="tanh", lexical_features=None)
    source = LinformerForSequenceClassification(config)
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    write_model(source, tokenizer, tmp_path / "source")
    data = write_csv(tmp_path / "a.csv", [(f"text {i}", i % 2) for i in range(10)])
    options = {"data": data, "test": data, "validation": data, "task": task, "max_length": 24}
    settings = TrainSettings(**options, from_model=str(tmp_path / "source"))
    model = built(settings, tokenizer)
    assert torch.equal(model.pooler.dense.weight, source.pooler.dense.weight)
    assert torch.equal(model.get_input_embeddings().weight, source.get_input_embeddings().weight)
    assert model.num_labels == (2 if task == "classify" else 1) and source.num_labels == 3
