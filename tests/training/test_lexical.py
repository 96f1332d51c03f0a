"""A lexical head is fitted, weighed on the validation documents, and kept where they are better for it."""

import html
import json
import re
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.tasks.registry import task_of
from torch_linformer.training import lexical, prepared
from torch_linformer.training.document_trainer import AHEAD, ERROR, DocumentTrainer
from torch_linformer.training.lexical import _is_worse, fit_heads, give_head, head_answers, weigh
from torch_linformer.training.trainer import quiet_arguments


@pytest.fixture
def trainer(classifier_run, quick, tmp_path):
    """A trained classifier without a lexical head; a function that gives it one and returns both its test sets."""
    folder = str(classifier_run.folder)
    model = load_model(folder)
    task = task_of(model, load_tokenizer(folder))
    arguments = quiet_arguments(tmp_path / "scratch", batch_size=16, device="cpu", precision="fp32")
    found = DocumentTrainer(model=model, args=arguments, task=task)

    def prepare():
        data, test = (load_documents(quick[name], task.record).dataset for name in ("data", "test"))
        encoder = task.encoder(quick["max_length"])
        parts = (data.select(range(100)), data.select(range(100, 160)))
        found.heads = fit_heads(model.config, task, *parts, encoder, seed=0, balanced=False)
        give_head(model, task, found.heads.first)
        whole = task.encoder(quick["max_length"])
        return task.examples(data.select(range(100, 160)), whole), task.examples(test, whole)

    found.prepare = prepare
    return found


def assert_same_scores(one, other):
    for score in one["tallies"]:
        assert np.array_equal(one["tallies"][score], other["tallies"][score])
    rounded = dict.fromkeys(("tallies", "nll", "ece", "reliability"))  # what is made of probabilities
    assert {**one, **rounded} == {**other, **rounded}


def test_the_weights_have_the_least_loss_and_are_those_of_the_model(trainer):
    validation, test = trainer.prepare()
    trainer.model.lexical.weight.data[::3] = 0  # so that it does not know everything
    before = trainer.parts_of(validation)
    labels = torch.tensor(validation.windows["labels"][:])
    found = weigh(trainer, validation, test, trainer.model.lexical, always=True)

    def loss(a, b):
        penalty = ((a - 1) ** 2 + b**2) / len(labels)
        return float(trainer.model.loss_of(a * before.lexical + b * before.rest, labels)) + penalty

    lexical, rest = found.factors
    least = loss(lexical, rest)
    assert found.kept and lexical > 0 and rest > 0
    assert all(least < loss(lexical * a, rest * b) for a, b in [(0.9, 1), (1.1, 1), (1, 0.9), (1, 1.1)])
    after = trainer.parts_of(validation)
    torch.testing.assert_close(after.lexical, lexical * before.lexical)
    torch.testing.assert_close(after.rest, rest * before.rest, rtol=1e-4, atol=1e-5)
    assert found.scores is found.test["both"]
    assert_same_scores(trainer.scores_of(test), found.scores)


@pytest.mark.parametrize("always", [False, True])
def test_a_head_that_says_the_opposite_is_left_out(trainer, always):
    validation, test = trainer.prepare()
    model = trainer.model
    with torch.no_grad():
        model.lexical.weight.neg_()
        model.lexical.bias.neg_()
    found = weigh(trainer, validation, test, trainer.model.lexical, always=always)
    assert found.factors[0] == 0 and found.kept == always
    left_out = model.lexical is None, model.config.lexical_buckets is None, not trainer.task.lexical
    assert left_out == (not always,) * 3
    assert_same_scores(trainer.scores_of(test), found.scores)
    reason = ", as it adds 0.00 to the log-likelihood on validation and has to add more than 1 (Akaike's criterion)"
    fate = "kept" if always else f"left out{reason}"
    assert found.describe().startswith(f"lexical head {fate}: validation loss of the head alone ")
    assert found.name("Linformer") == ("Linformer with its lexical head" if always else "Linformer")


@pytest.mark.parametrize("kept", [True, False])
def test_the_last_answers_that_are_tuned_for_are_those_of_the_model(trainer, monkeypatch, kept):
    validation, test = trainer.prepare()
    tuned = []
    monkeypatch.setattr(trainer.task, "tune", lambda answers, documents: tuned.append((answers, documents)))
    trainer.model.lexical.weight.data *= 1 if kept else -1
    assert weigh(trainer, validation, test, trainer.model.lexical, always=kept).kept == kept
    answers, documents = tuned[-1]
    assert documents is validation.documents
    assert np.allclose(answers, trainer.answers_to(validation), atol=1e-5)


def test_what_adds_too_little_gets_no_weight(trainer):
    """A head that knows all the answers needs no other logits, and its model is the head."""
    validation, test = trainer.prepare()
    model = trainer.model
    model.lexical.weight.data *= 50
    model.classifier.weight.data *= 0.01
    found = weigh(trainer, validation, test, trainer.model.lexical, always=False)
    assert found.kept and found.factors[1] == 0 and found.factors[0] > 0
    assert "kept, and nothing else, as the rest of the model adds too little (TF-IDF head only): " in found.describe()
    assert found.alone and found.name("Linformer") == "TF-IDF head only"
    assert not model.classifier.weight.any()
    assert_same_scores(trainer.scores_of(test), found.test["lexical"])


def test_a_head_that_lowers_the_score_by_more_than_chance_is_left_out(trainer, monkeypatch):
    validation, test = trainer.prepare()
    known = trainer.parts_of(validation)
    right = torch.nn.functional.one_hot(torch.tensor(validation.windows["labels"][:]), 3).float()
    assert _is_worse(trainer, validation, known.lexical, 9 * right)
    assert not _is_worse(trainer, validation, 9 * right, known.lexical)
    assert not _is_worse(trainer, validation, known.rest, 2 * known.rest)
    monkeypatch.setattr(lexical, "_is_worse", lambda *parts: True)
    found = weigh(trainer, validation, test, trainer.model.lexical, always=False)
    assert not found.kept and found.helps
    worse = "macro-f1 on validation, which picks the checkpoint, is worse with it by more than chance"
    assert f"lexical head left out, as {worse}: " in found.describe()


def test_the_head_that_stays_has_learned_the_validation_documents_too(trainer):
    validation, test = trainer.prepare()
    heads, model = trainer.heads, trainer.model
    assert not torch.equal(heads.first.weight, heads.last.weight)
    expected = heads.last.weight.clone()
    found = weigh(trainer, validation, test, heads.last, always=True)
    torch.testing.assert_close(model.lexical.weight, found.factors[0] * expected)
    assert_same_scores(trainer.scores_of(test), found.scores)


def test_the_answers_of_the_head_alone_are_those_of_its_logits(trainer):
    validation, _ = trainer.prepare()
    alone = trainer.answers_of_logits(trainer.parts_of(validation).lexical, validation)
    np.testing.assert_allclose(head_answers(trainer, trainer.heads.first, validation), alone, atol=1e-5)


@pytest.mark.parametrize(
    ("ahead", "error", "stops"),
    [
        ([0.5, 0.5, 0.5], 0.1, True),
        ([0.5, 0.5, 0.19], 0.1, False),  # it is catching up
        ([0.5, 0.5, 0.19], 0.0, False),
        ([0.5, 0.45, 0.4], 0.03, False),  # 0.05 are left at the end, which may be chance
        ([0.5, 0.45, 0.4], 0.02, True),
        ([0.2, 0.3, 0.4], 0.19, True),
        ([0.5, 0.5], 0.1, False),  # too early
        ([-0.1, -0.1, -0.1], 0.01, False),
    ],
)
def test_a_training_stops_where_it_cannot_catch_up_at_its_pace(trainer, ahead, error, stops):
    trainer.state.max_steps, trainer.patience = 100, 9
    names = (f"eval_{AHEAD}", f"eval_{ERROR}", "eval_macro_f1")
    trainer.state.log_history = [
        {"step": 10 * number, **dict(zip(names, (gap, error, number / 100), strict=True))}
        for number, gap in enumerate(ahead, 1)
    ]
    trainer.args.metric_for_best_model, trainer.args.greater_is_better = "macro_f1", True
    assert bool(trainer.reason_to_stop) == stops
    trainer.patience = None
    assert trainer.reason_to_stop == ""


def test_a_run_says_what_the_head_is_worth(finish_run):
    run = finish_run(lexical="always", seed=5)  # of which head and rest both have weight
    metrics = json.loads((run.folder / "metrics.json").read_text())
    assert 0 < metrics["lexical_accuracy"] <= 1 and 0 < metrics["rest_macro_f1"] <= 1
    assert metrics["method"] == "Linformer with its lexical head" and metrics["verdict"][:5] in (
        "Bette",
        "Worse",
        "As go",
    )
    assert len(re.findall("^lexical head kept: validation loss of the head", run.shown, re.MULTILINE)) == 1
    for page in ("report.html", "README.md"):
        text = (run.folder / page).read_text(encoding="utf-8")
        assert all(row in text for row in ("with its lexical head", "lexical head alone", "without the lexical head"))


def test_a_model_of_which_only_the_head_has_weight_is_called_that(lexical_run):
    shown = lexical_run.shown
    assert "lexical head kept, and nothing else, as the rest of the model adds too little (TF-IDF head only): " in shown
    metrics = json.loads((lexical_run.folder / "metrics.json").read_text())
    assert metrics["method"] == "TF-IDF head only" and "TF-IDF head only: " in metrics["verdict"]
    assert {"lexical_accuracy", "rest_accuracy"} <= metrics.keys()
    pages = [html.unescape((lexical_run.folder / name).read_text("utf-8")) for name in ("report.html", "README.md")]
    for page in (shown, *pages):
        assert "TF-IDF head only" in page and metrics["verdict"].split(".")[0] in " ".join(page.split())
        assert "with its lexical head" not in page and "lexical head alone" not in page
    assert "<h1>TF-IDF head only on " in pages[0]


def test_what_takes_long_before_the_first_step_is_told(lexical_run, train_quickly, tmp_path, monkeypatch):
    assert re.search(
        r"\nfitting the lexical head: about \d\S* \S+ \(--lexical none leaves it out\)\n", lexical_run.shown
    )
    monkeypatch.setattr(prepared, "WORTH_TELLING", 0.0)
    shown = train_quickly(tmp_path / "run", max_steps=1, baseline=False)
    assert re.search(r"\ntokenizing 210 documents: about \d\S* \S+\n", shown)


def test_a_killed_run_gets_the_same_head(lexical_run, train_quickly, tmp_path):
    """Killed in the training, and after it: the head is fitted and weighed once."""
    whole = load_file(lexical_run.folder / "model.safetensors")
    for moment in ("20", "trained"):
        output = shutil.copytree(lexical_run.moments / moment, tmp_path / moment)
        train_quickly(output, resume=True, lexical="auto")
        resumed = load_file(output / "model.safetensors")
        assert whole.keys() == resumed.keys() and all(torch.equal(whole[name], resumed[name]) for name in whole)


@pytest.mark.parametrize("lexical", ["always", "none"])
def test_always_or_not_at_all(train_quickly, tmp_path, lexical):
    shown = train_quickly(tmp_path / "run", lexical=lexical, max_steps=1, baseline=False)
    assert (load_model(str(tmp_path / "run")).lexical is not None) == (lexical == "always")
    assert ("lexical head kept" in shown, "lexical" in shown) == (lexical == "always",) * 2
    assert "measuring" not in shown and "TF-IDF + linear" not in shown


def test_numbers_keep_their_unit(train_quickly, write_csv, weather, tmp_path):
    degrees = {"sun": "30", "rain": "12", "snow": "-6"}
    rows = [(text, degrees[label]) for text, label in weather(120, seed=2)]
    data = write_csv(tmp_path / "degrees.csv", rows)
    train_quickly(tmp_path / "run", task="regress", data=data, test="0.2", lexical="always", max_steps=5)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["mse"] < 0.7 * metrics["mean_mse"] and metrics["lexical_mse"] < 0.7 * metrics["mean_mse"]
    model, tokenizer = load_model(str(tmp_path / "run")), load_tokenizer(str(tmp_path / "run"))
    warm, cold = (model(**tokenizer(text, return_tensors="pt")).logits.item() for text in ("warm sand sea", "ice cold"))
    assert warm > 15 > cold
