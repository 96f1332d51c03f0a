"""The best head for what the weights of --from make of documents: instead of a training (--freeze), or before it."""

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional as F

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.errors import InputError
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening import processes
from torch_linformer.opening.model_folder import load_config, load_model, load_tokenizer
from torch_linformer.tasks.registry import task_of
from torch_linformer.training import fitted_head
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.fitted_head import RIDGES, best_head, fit_first_head, fit_head, fit_linear, pooled_states
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.trainer import quiet_arguments
from torch_linformer.training.training_screen import TrainingScreen


@pytest.fixture(scope="module")
def kept(quick):
    """Options of a frozen run, but the data and the model."""
    names = ("validation", "batch_size", "seed", "lexical", "device", "precision")
    return {"freeze": True, **{name: quick[name] for name in names}}


@pytest.fixture(scope="module")
def run(kept, quick, masked_run, tmp_path_factory):
    """A finished frozen run on documents with one label, its folder and its metrics. Not to be changed."""
    folder = tmp_path_factory.mktemp("frozen") / "run"
    data = {name: quick[name] for name in ("data", "test")}
    train(TrainSettings(**data, **kept, from_model=str(masked_run.folder), output=str(folder)))
    return folder, json.loads((folder / "metrics.json").read_text())


def test_the_weights_of_the_first_model_stay_and_the_head_learns(run, masked_run):
    folder, metrics = run
    first, weights = (load_file(each / "model.safetensors") for each in (masked_run.folder, folder))
    encoder = [name for name in weights if name.startswith("linformer.")]
    assert len(encoder) > 10 and all(torch.equal(weights[name], first[name]) for name in encoder)
    assert metrics["accuracy"] > 0.8
    assert metrics["train_seconds"] > 0 and metrics["training_tokens_per_second"] > 0


def test_the_saved_model_gives_the_scores_of_the_report(run, quick):
    folder, metrics = run
    rows = pd.read_csv(quick["test"])
    predictor = Predictor(str(folder), precision="fp32", device="cpu")
    given = predictor({"text": rows["text"].tolist()})["label"]
    assert np.mean(np.array(given) == rows["label"]) == pytest.approx(metrics["accuracy"])


def test_the_report_says_what_was_not_trained(run):
    page = (run[0] / "report.html").read_text()
    assert "--freeze" in page and "--max-steps" not in page and "--patience" not in page
    assert "without --freeze" in run[1]["verdict"] or "better than" in run[1]["verdict"]


@pytest.fixture
def trainer(run, quick, tmp_path):
    """A trainer of the finished classifier, and its documents as examples."""
    folder, _ = run
    model, tokenizer = load_model(str(folder)), load_tokenizer(str(folder))
    task = task_of(model, tokenizer)
    arguments = quiet_arguments(tmp_path / "scratch", batch_size=8, device="cpu", precision="fp32")
    found = DocumentTrainer(model=model, args=arguments, task=task)
    documents = load_documents(quick["data"], task.record).dataset
    found.documents, found.examples = documents, task.examples(documents, task.encoder(24))
    return found


def test_states_are_those_of_their_own_document_whatever_is_in_the_batch(trainer):
    states = pooled_states(trainer, trainer.examples.windows)
    model = trainer.model
    assert states.shape == (len(trainer.documents), model.classifier.in_features)
    assert len(set(trainer.examples.windows["length"])) > 3  # so that batches hold padding
    with torch.no_grad():
        for row in (0, 7, 100):
            ids = torch.tensor([trainer.examples.windows[row]["input_ids"]])
            torch.testing.assert_close(model.classifier(states[row : row + 1]), model(input_ids=ids).logits)


def test_the_head_is_the_one_of_scikit_learn(trainer, capsys):
    model, examples = trainer.model, trainer.examples
    fit_head(trainer, examples, examples, TrainingScreen())
    ridge = float(capsys.readouterr().out.split("ridge ")[1].split(",")[0])
    assert ridge in RIDGES
    states, labels = pooled_states(trainer, examples.windows).double(), torch.tensor(examples.windows["labels"][:])
    mean, std = states.mean(dim=0), states.std(dim=0, correction=0)
    best = LogisticRegression(C=1 / (ridge * len(labels)), tol=1e-8, max_iter=10_000)  # all labels at once, as here
    best.fit(((states - mean) / std).numpy(), labels.numpy())
    with torch.no_grad():
        ours = model.double().classifier(states).softmax(-1)
    theirs = best.predict_proba(((states - mean) / std).numpy())
    np.testing.assert_allclose(ours.numpy(), theirs, atol=2e-3)


def test_the_ridge_with_the_least_validation_loss_is_taken(trainer, capsys):
    """Labels that are noise are best told by their frequencies, so by the strongest ridge."""
    windows = trainer.examples.windows
    noise = np.random.default_rng(0).integers(2, size=len(windows)).tolist()
    windows = windows.remove_columns("labels").add_column("labels", noise)
    halves = [replace(trainer.examples, windows=windows.select(range(begin, begin + 80))) for begin in (0, 80)]
    fit_head(trainer, *halves, TrainingScreen())
    assert f"ridge {max(RIDGES):g}, " in capsys.readouterr().out


def test_a_linear_fit_of_numbers_is_a_ridge_regression():
    torch.manual_seed(0)
    states, numbers = torch.randn(50, 4, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    start = torch.zeros(1, 4, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)

    def loss_of(logits, labels):
        return F.mse_loss(logits.squeeze(-1), labels)

    weight, bias = fit_linear(states, numbers, 0.1, loss_of, *start)
    best = Ridge(alpha=0.1 / 2 * 50).fit(states.numpy(), numbers.numpy())
    np.testing.assert_allclose(weight[0], best.coef_, atol=1e-4)
    assert bias.item() == pytest.approx(best.intercept_, abs=1e-4) and not start[0].any()


def test_a_channel_that_is_all_but_constant_has_no_weight():
    """Rounding errors that happen to tell the labels apart would otherwise have weights of thousands."""
    torch.manual_seed(0)
    labels = torch.arange(60) % 2
    states = torch.randn(60, 6) + 0.3 * labels[:, None]
    states[:, 1] = 1e-6 * labels
    states[:, 2] = 0.125
    weight, bias, _, loss = best_head(states, labels, states, labels, 2, F.cross_entropy)
    assert not weight[:, 1:3].any() and weight[:, 3:].any() and weight.abs().max() < 10
    assert F.cross_entropy(states @ weight.T + bias, labels).item() == pytest.approx(loss, rel=1e-4)


@pytest.mark.parametrize("task", ["multilabel", "regress"])
def test_several_labels_and_numbers(task, kept, masked_run, weather, tmp_path):
    rows = {name: weather(number, seed=seed) for name, number, seed in (("data", 160, 0), ("test", 50, 1))}
    for name, each in rows.items():
        known = [300.0 + 10 * text.count("warm") for text, _ in each]
        if task == "multilabel":
            known = [[label, "long"] if len(text) > 60 else [label] for text, label in each]
        pd.DataFrame({"text": [text for text, _ in each], "label": known}).to_json(
            tmp_path / f"{name}.jsonl", orient="records", lines=True
        )
    data = {name: str(tmp_path / f"{name}.jsonl") for name in rows}
    folder = tmp_path / "run"
    settings = {**data, **kept, "baseline": True, "task": task, "from_model": str(masked_run.folder)}
    train(TrainSettings(**settings, output=str(folder)))
    metrics = json.loads((folder / "metrics.json").read_text())
    if task == "regress":
        assert metrics["mse"] < 0.6 * metrics["mean_mse"]
    else:
        assert metrics["micro_f1"] > 0.7


def test_rare_labels_may_weigh_more(kept, masked_run, weather, write_csv, tmp_path):
    rows = weather(600, seed=0)
    few = [row for number, row in enumerate(rows) if row[1] != "sun" or number % 10 == 0]
    data = {"data": write_csv(tmp_path / "few.csv", few), "test": write_csv(tmp_path / "test.csv", weather(60, seed=1))}
    recalls = []
    for weights in ("none", "balanced"):
        folder = tmp_path / weights
        settings = {**data, **kept, "from_model": str(masked_run.folder), "class_weights": weights}
        train(TrainSettings(**settings, output=str(folder)))
        labels = json.loads((folder / "metrics.json").read_text())["per_label"]
        recalls.append(next(row["recall"] for row in labels if row["label"] == "sun"))
    assert recalls[1] > recalls[0]


def test_several_processes_are_refused(kept, quick, masked_run, monkeypatch, tmp_path):
    monkeypatch.setattr(processes, "count", lambda: 2)
    monkeypatch.setattr(processes, "join", lambda *args: None)
    settings = {"data": quick["data"], **kept, "from_model": str(masked_run.folder)}
    with pytest.raises(InputError, match="--freeze is for a single process: start it without torchrun"):
        train(TrainSettings(**settings, output=str(tmp_path / "run")))


@pytest.fixture
def small_parts(monkeypatch):
    """Documents are read a few at a time."""
    monkeypatch.setattr(fitted_head, "READ_TOGETHER", 200)


def test_progress_is_that_of_the_tokens_longest_documents_first(trainer, monkeypatch):
    shown = []
    monkeypatch.setattr(TrainingScreen, "is_due", lambda screen: True)
    monkeypatch.setattr(TrainingScreen, "read", lambda screen, tokens, seconds: shown.append((tokens, screen.steps)))
    fit_head(trainer, trainer.examples, trainer.examples, TrainingScreen())
    lengths = sorted(trainer.examples.windows["length"], reverse=True)
    assert shown == [(sum(lengths[:end]), sum(lengths)) for end in range(8, 168, 8)]


def test_what_is_read_in_parts_has_its_own_labels(trainer, small_parts, monkeypatch):
    shown = []
    monkeypatch.setattr(TrainingScreen, "is_due", lambda screen: True)
    monkeypatch.setattr(TrainingScreen, "read", lambda screen, tokens, seconds: shown.append((tokens, screen.steps)))
    windows = trainer.examples.windows
    fit_head(trainer, trainer.examples, trainer.examples, TrainingScreen())
    with torch.no_grad():
        found = trainer.model.classifier(pooled_states(trainer, windows)).argmax(-1)
    assert np.mean(found.numpy() == np.array(windows["labels"])) > 0.95
    assert shown == sorted(shown) and shown[-1] == (sum(windows["length"]),) * 2


# Before a training


def test_a_training_from_another_model_begins_with_it(run, quick, masked_run, train_quickly, tmp_path):
    """With steps too small to change a weight it has the scores of --freeze, and the first of them counts."""
    options = {"tokenizer": "bpe:8192", "k": None, "projection": "mean", "learning_rate": 1e-12}
    options |= {"max_length": None, "from_model": str(masked_run.folder), "max_steps": 16}
    shown = train_quickly(tmp_path / "run", moments=tmp_path / "moments", **options)
    assert "head fitted to 128 rows" in shown and "step 1: validation" in shown
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["accuracy"] == run[1]["accuracy"] > 0.8
    first, config = (load_config(str(folder)) for folder in (masked_run.folder, tmp_path / "run"))
    assert first.hidden_dropout_prob > 0 == config.hidden_dropout_prob == config.classifier_dropout
    assert sorted(path.name for path in (tmp_path / "moments" / "trained").glob("checkpoint-*")) == [
        "checkpoint-1",
        "checkpoint-16",
    ]


def test_a_head_that_is_there_already_is_trained_on(classifier_run, train_quickly, tmp_path):
    options = {"tokenizer": "bpe:8192", "k": None, "projection": "mean", "learning_rate": 1e-12, "max_steps": 1}
    options |= {"max_length": None, "from_model": str(classifier_run.folder)}
    shown = train_quickly(tmp_path / "run", **options)
    folders = (classifier_run.folder, tmp_path / "run")
    first, after = (load_file(folder / "model.safetensors") for folder in folders)
    torch.testing.assert_close(first["classifier.weight"], after["classifier.weight"])
    assert "head fitted" not in shown
    before, config = (load_config(str(folder)) for folder in folders)
    assert before.hidden_dropout_prob == config.hidden_dropout_prob > 0 and config.classifier_dropout is None


def test_a_resumed_training_keeps_its_head(quick, masked_run, train_quickly, tmp_path):
    options = {"tokenizer": "bpe:8192", "k": None, "projection": "mean", "max_length": None}
    options |= {"from_model": str(masked_run.folder), "max_steps": 10}
    train_quickly(tmp_path / "run", moments=tmp_path / "moments", **options)
    folder = tmp_path / "moments" / "10"  # before the last checkpoint was written
    spent = [json.loads(file.read_text())["spent"] for file in folder.glob("checkpoint-*/complete.json")]
    shown = train_quickly(folder, resume=True, **options)
    assert "head fitted" not in shown
    whole, resumed = (json.loads((each / "metrics.json").read_text()) for each in (tmp_path / "run", folder))
    assert whole["accuracy"] == resumed["accuracy"]
    assert spent and all(each["head_seconds"] == spent[0]["head_seconds"] > 0 for each in spent)
    assert resumed["train_seconds"] > max(each["seconds"] + each["head_seconds"] for each in spent)


def test_no_more_is_read_before_a_training_than_by_its_steps(trainer, capsys):
    trainer.args.max_steps, trainer.seconds_allowed = 5, 1000.0
    fit_first_head(trainer, trainer.examples, trainer.examples, TrainingScreen(), 0.01)
    assert "head fitted to 40 of " in capsys.readouterr().out
    assert trainer.seconds_allowed == 1000 and 0 < trainer.spent.head_seconds < 100 and trainer.spent.seconds == 0


def test_reading_before_a_training_ends_with_its_share_of_the_time(trainer, small_parts, capsys):
    trainer.args.max_steps, trainer.seconds_allowed = 100, 1e-3
    fit_first_head(trainer, trainer.examples, trainer.examples, TrainingScreen(), 0.01)
    rows = int(capsys.readouterr().out.split("head fitted to ")[1].split()[0])
    assert 0 < rows < 30 < len(trainer.examples.windows)
