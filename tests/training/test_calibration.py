"""A temperature is fitted to the validation documents, and becomes a part of the weights where it helps."""

import json

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.whole_documents import multiply
from torch_linformer.training.calibration import calibrate
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.lexical import fit_heads, give_head
from torch_linformer.training.trainer import quiet_arguments


@pytest.fixture
def trainer(classifier_run, quick, tmp_path):
    """A trained classifier, its documents for validation and its test documents."""
    model = load_model(str(classifier_run.folder))
    task = task_of(model, load_tokenizer(str(classifier_run.folder)))
    arguments = quiet_arguments(tmp_path / "scratch", batch_size=16, device="cpu", precision="fp32")
    found = DocumentTrainer(model=model, args=arguments, task=task)
    found.read = lambda name: task.examples(load_documents(quick[name], task.record).dataset, task.encoder(24))
    found.parts = found.read("data"), found.read("test")
    return found


def loss_of(trainer, logits):
    return float(F.cross_entropy(logits, torch.tensor(trainer.parts[0].windows["labels"][:])))


def logits_of(trainer, number):
    return torch.from_numpy(trainer.logits_of(trainer.parts[number].windows))


@pytest.mark.parametrize("factor", [6.0, 0.5])  # too sure of itself, and not sure enough
def test_it_takes_back_what_makes_a_model_too_sure(trainer, factor):
    first = calibrate(trainer, None, *trainer.parts).temperature
    multiply(trainer.model.classifier, factor)
    before, weights = [logits_of(trainer, number) for number in (0, 1)], trainer.model.classifier.weight.clone()
    found = calibrate(trainer, None, *trainer.parts)
    assert found.temperature == pytest.approx(first * factor, rel=0.15)  # the penalty is that of another 1 / T
    torch.testing.assert_close(trainer.model.classifier.weight * found.temperature, weights)
    after = [logits_of(trainer, number) for number in (0, 1)]
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other * found.temperature, one, rtol=1e-4, atol=1e-4)
        assert torch.equal(one.argmax(dim=1), other.argmax(dim=1))
    least = loss_of(trainer, after[0])
    assert least < loss_of(trainer, before[0]) and least < min(loss_of(trainer, after[0] * by) for by in (0.8, 1.25))
    scores = trainer.scores_of(trainer.parts[1])
    assert found.scores["ece"] == pytest.approx(scores["ece"]) and found.scores["ece"] < found.before["ece"]
    assert found.scores["accuracy"] == found.before["accuracy"] == scores["accuracy"]
    assert f"logits divided by {found.temperature:.2f}, fitted to" in found.describe()


def test_what_adds_too_little_is_left_as_it_is(trainer):
    calibrate(trainer, None, *trainer.parts)
    weights = trainer.model.classifier.weight.clone()
    found = calibrate(trainer, None, *trainer.parts)
    assert found.temperature == 1 and torch.equal(trainer.model.classifier.weight, weights)
    assert found.scores is found.before and "and has to add more than 1 (Akaike's criterion)" in found.describe()


def test_documents_that_are_all_right_do_not_ask_for_certainty(trainer):
    labels = torch.tensor(trainer.parts[0].windows["labels"][:])
    logits = F.one_hot(labels, 3).float()
    found = calibrate(trainer, (logits, logits_of(trainer, 1)), *trainer.parts)
    assert 0.1 < found.temperature < 1


def test_a_lexical_head_is_divided_too(trainer, quick):
    model, task = trainer.model, trainer.task
    data = trainer.parts[0].documents
    parts = data.select(range(100)), data.select(range(100, 160))
    heads = fit_heads(model.config, task, *parts, task.encoder(24), seed=0, balanced=False)
    give_head(model, task, heads.first)
    trainer.parts = trainer.read("data"), trainer.read("test")
    for head in (model.classifier, model.lexical):
        multiply(head, 5.0)
    known, unseen = (sum(trainer.parts_of(part)) for part in trainer.parts)
    found = calibrate(trainer, (known, unseen), *trainer.parts)
    assert found.temperature > 1.5
    after = sum(trainer.parts_of(trainer.parts[1]))
    torch.testing.assert_close(after * found.temperature, unseen, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("run", ["classifier_run", "lexical_run"])
def test_a_run_says_what_its_probabilities_are_worth(run, request, quick, read_page):
    run = request.getfixturevalue(run)
    metrics = json.loads((run.folder / "metrics.json").read_text())
    assert metrics["temperature"] > 0 and 0 <= metrics["ece"] <= 1 and metrics["nll"] > 0
    assert metrics["temperature"] != 1 or metrics["uncalibrated_ece"] == metrics["ece"]
    told = [line for line in run.shown.splitlines() if line.startswith("probabilities ")]
    assert len(told) == 1 and f"{metrics['ece']:.4f}" in told[0]
    text = read_page((run.folder / "report.html").read_text("utf-8")).text
    assert "Calibration" in text and any(told[0][1:] in part for part in text)
    test = load_documents(quick["test"], task_of(load_model(str(run.folder)), None).record).dataset
    answers = Predictor(str(run.folder), device="cpu", precision="fp32")({"text": test["text"][:]})["probabilities"]
    nll = -np.mean([np.log(given[label]) for given, label in zip(answers, test["label"][:], strict=True)])
    assert nll == pytest.approx(metrics["nll"], rel=1e-3)
