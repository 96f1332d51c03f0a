import dataclasses
import io
import json
import math
import os
import re
import shutil
from pathlib import Path

import pytest
import torch
from rich.console import Console
from safetensors.torch import load_file, save_file
from transformers import AutoModelForMaskedLM, AutoModelForSequenceClassification, AutoTokenizer

from torch_linformer.data import windows
from torch_linformer.errors import InputError
from torch_linformer.opening.folder import identity, open_run, read_spent, seal
from torch_linformer.training import prepared
from torch_linformer.training.dry_run import try_training
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.training_screen import TrainingScreen

FILES = ["README.md", "config.json", "data.json", "metrics.json", "model.safetensors", "modeling_linformer.py"]
FILES += ["report.html", "run.json", "tokenizer.json", "tokenizer_config.json"]


def weights(folder):
    return (folder / "model.safetensors").read_bytes()


def read_json(path):
    return json.loads(path.read_text(encoding="utf-8"))


def state_of(folder):
    """Content and time of every file."""
    return {path.name: (path.stat().st_mtime_ns, path.read_bytes()) for path in folder.iterdir()}


# What a finished run leaves


def test_nothing_but_the_outputs_is_left(classifier_run, masked_run):
    for run in (classifier_run, masked_run):
        assert sorted(os.listdir(run.folder)) == FILES
        assert len({path.stat().st_mode for path in run.folder.iterdir()}) == 1


def test_checkpoints_lie_beside_it_while_it_trains(classifier_run):
    for step in (12, 36):
        names = os.listdir(classifier_run.moments / str(step))
        found = [name for name in names if name.startswith("checkpoint-")]
        assert f"checkpoint-{step - 4}" in found and 1 <= len(found) <= 2
        assert "metrics.json" not in names and "model.safetensors" not in names


def test_the_folder_is_the_model(classifier_run, masked_run, quick):
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    inputs = tokenizer("wet grey mud " * 30, truncation=True, return_tensors="pt")
    assert inputs["input_ids"].shape == (1, quick["max_length"])
    model = AutoModelForSequenceClassification.from_pretrained(classifier_run.folder)
    assert model.config.id2label == {0: "rain", 1: "snow", 2: "sun"}
    assert model.config.label2id == {"rain": 0, "snow": 1, "sun": 2}
    assert model(**inputs).logits.shape == (1, 3)
    masked = AutoModelForMaskedLM.from_pretrained(masked_run.folder)
    tokenizer = AutoTokenizer.from_pretrained(masked_run.folder)
    assert masked(**inputs).logits.shape == (1, quick["max_length"], len(tokenizer))


def test_metrics_of_a_classifier(classifier_run):
    metrics = read_json(classifier_run.folder / "metrics.json")
    shares = ("accuracy", "macro_f1", "majority_accuracy", "tfidf_accuracy", "tfidf_macro_f1")
    assert all(0 < metrics[name] <= 1 for name in shares)
    assert metrics["accuracy"] > metrics["majority_accuracy"]  # it has learnt something
    assert metrics["training_tokens_per_second"] > 1 and 0 < metrics["train_seconds"] < 600
    assert metrics["documents"] == {"train": 128, "validation": 32, "test": 50}
    assert (metrics["device"], metrics["precision"]) == ("cpu", "fp32")
    assert [row["label"] for row in metrics["per_label"]] == ["rain", "snow", "sun"]
    assert sum(map(sum, metrics["confusion_matrix"])) == 50
    model = AutoModelForSequenceClassification.from_pretrained(classifier_run.folder)
    assert metrics["parameters"] == model.num_parameters()


def test_metrics_of_masked_language_modeling(masked_run):
    metrics = read_json(masked_run.folder / "metrics.json")
    assert 1 < metrics["perplexity"] < 290 and 0 < metrics["bits_per_byte"] < 8
    assert "accuracy" not in metrics and "majority_accuracy" not in metrics
    # What was not to be measured is null, not missing.
    assert metrics["tokens_per_second"] is None and metrics["full_attention_peak_memory_mb"] is None


def test_the_report_lists_the_options_that_meant_something(classifier_run, masked_run):
    listed = {}
    for name, finished in (("classify", classifier_run), ("mlm", masked_run)):
        report = (finished.folder / "report.html").read_text(encoding="utf-8")
        options = set(re.findall(r"--[a-z-]+", report[report.rindex("Settings") :]))
        listed[name] = options & {"--packing", "--whole-words", "--class-weights", "--size"}
    assert listed["classify"] == {"--class-weights", "--size"}
    assert listed["mlm"] == {"--packing", "--whole-words", "--size"}


def test_the_report_is_one_file_and_holds_the_command(classifier_run):
    report = (classifier_run.folder / "report.html").read_text(encoding="utf-8")
    assert "linformer train --data 'a b.csv' &lt;&amp;&gt;" in report.replace("&#39;", "'")
    assert not re.search(r"<script|<link|<iframe|@import", report)
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', report)
    for heading in ("Data", "Learning curve", "Confusion matrix", "Length of the training documents", "Settings"):
        assert heading in report
    assert f"{read_json(classifier_run.folder / 'metrics.json')['accuracy']:.4f}" in report


def test_the_model_card(classifier_run, masked_run):
    card = (classifier_run.folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transformers\npipeline_tag: text-classification\n")
    assert "`linformer train --data 'a b.csv' <&>`" in card
    assert f"| {read_json(classifier_run.folder / 'metrics.json')['accuracy']:.4f} |" in card
    assert "label = model.config.id2label[" in card and "The language of the texts was not checked" in card
    assert re.search(r"- Trained on \d+ documents of `.+\.csv`; \d+ others gave the scores above\.", card)
    card = (masked_run.folder / "README.md").read_text(encoding="utf-8")
    assert "pipeline_tag: fill-mask" in card and "LinformerForMaskedLM.from_pretrained" in card
    assert f"| {read_json(masked_run.folder / 'metrics.json')['perplexity']:.4f} |" in card


def test_the_code_of_the_card_runs(classifier_run, run_card):
    done = run_card(classifier_run.folder)
    assert done.returncode == 0, done.stderr


def test_the_screen_tells_what_happens(classifier_run, quick):
    shown = classifier_run.shown
    said = [
        "texts from column 'text' (by its name), labels from column 'label' (by its name)\n",
        "128 documents to train on, 32 for validation, 50 held out\n",
        "3 labels: rain, snow, sun\n",
        f" are cut at --max-length {quick['max_length']}, which leaves out ",
        f"K {quick['k']}, sharing headwise, projection linear, ",
        "first word embeddings latent semantics of the documents; cpu, fp32\n",
        "step 40: validation loss ",
        "words alone",
        "TF-IDF + LinearSVC",
    ]
    places = [shown.find(sentence) for sentence in said]
    assert -1 not in places and places == sorted(places), shown
    assert not re.search(r"training_begin|'loss'|\{", shown)  # nothing of the Trainer's own log


def test_how_many_documents_are_cut_and_by_how_much(classifier_run, quick):
    settings = TrainSettings(**quick)
    tokenizer = AutoTokenizer.from_pretrained(classifier_run.folder)
    lengths = [len(tokenizer(text).input_ids) for text in load_splits(settings).train["text"]]
    cut = sum(length > quick["max_length"] for length in lengths) / len(lengths)
    lost = sum(max(0, length - quick["max_length"]) for length in lengths) / sum(lengths)
    sentence = rf"{100 * cut:.1f} % are cut at --max-length \d+, which leaves out {100 * lost:.1f} % of all"
    assert re.search(sentence, classifier_run.shown), classifier_run.shown


@pytest.mark.parametrize("task", ["classify", "mlm"])
def test_the_best_checkpoint_on_validation_is_the_one_kept(classifier_run, masked_run, task):
    run = classifier_run if task == "classify" else masked_run
    trained = run.moments / "trained"
    state = read_json(trained / "checkpoint-40" / "trainer_state.json")
    name, choose = ("eval_macro_f1", max) if task == "classify" else ("eval_perplexity", min)
    scores = {entry["step"]: entry[name] for entry in state["log_history"] if name in entry}
    assert list(scores) == list(range(4, 41, 4))
    best = choose(scores, key=scores.get)  # the first of them
    assert state["best_global_step"] == best and state["best_metric"] == scores[best]
    kept, chosen = (
        load_file(run.folder / "model.safetensors"),
        load_file(trained / f"checkpoint-{best}/model.safetensors"),
    )
    assert kept.keys() == chosen.keys()
    if task == "classify":  # a factor and a bias make its probabilities the best for the validation documents
        weight, trained_weight = (each.pop("classifier.weight") for each in (kept, chosen))
        torch.testing.assert_close(weight, trained_weight * (weight.norm() / trained_weight.norm()))
        assert not torch.equal(kept.pop("classifier.bias"), chosen.pop("classifier.bias"))
    assert all(torch.equal(kept[name], chosen[name]) for name in kept)
    if task == "classify":
        assert best < 40  # otherwise this test would say little
        last = load_file(trained / "checkpoint-40" / "model.safetensors")
        assert not all(torch.equal(kept[name], last[name]) for name in kept)


# Going on with a run that was killed


def shorten(path):
    path.write_bytes(path.read_bytes()[:1000])


def zero(path):
    """As a loss of power may leave it."""
    path.write_bytes(bytes(path.stat().st_size))


DAMAGES = {
    "none": lambda newest: None,
    "weights cut off": lambda newest: shorten(newest / "model.safetensors"),
    "optimizer cut off": lambda newest: shorten(newest / "optimizer.pt"),
    "weights zeroed": lambda newest: zero(newest / "model.safetensors"),
    "state zeroed": lambda newest: zero(newest / "trainer_state.json"),
    "state missing": lambda newest: (newest / "trainer_state.json").unlink(),
    "not sealed": lambda newest: (newest / "complete.json").unlink(),
    "empty": lambda newest: (shutil.rmtree(newest), newest.mkdir()),
}
KILLED = [("classify", moment, "none") for moment in ("4", "12", "20", "40", "trained")]
KILLED += [("classify", "24", damage) for damage in DAMAGES if damage != "none"]
KILLED += [("mlm", "12", "none"), ("mlm", "32", "optimizer cut off"), ("mlm", "trained", "none")]


@pytest.mark.parametrize(("task", "moment", "damage"), KILLED)
def test_a_killed_run_ends_as_if_it_had_not_been(
    classifier_run, masked_run, train_quickly, tmp_path, task, moment, damage
):
    """Killed while validation was scored at a step, or after training; and perhaps while a checkpoint was written."""
    run = classifier_run if task == "classify" else masked_run
    output = shutil.copytree(run.moments / moment, tmp_path / "killed")
    newest = max(output.glob("checkpoint-*"), key=lambda path: int(path.name.partition("-")[2]), default=None)
    if newest is not None:
        DAMAGES[damage](newest)
    shown = train_quickly(output, resume=True, task=task)
    assert weights(output) == weights(run.folder)
    assert sorted(os.listdir(output)) == FILES
    assert f"{newest} is incomplete or damaged: removed" in shown or damage == "none"
    if moment == "4":
        assert f"no run in {output} yet: starting afresh" in shown
    else:
        assert f"going on from {output}{os.sep}checkpoint-" in shown
        assert (f"going on from {newest}" in shown) == (damage == "none")
    resumed, whole = (read_json(folder / "metrics.json") for folder in (output, run.folder))
    score = "accuracy" if task == "classify" else "perplexity"
    assert resumed[score] == whole[score]


@pytest.mark.parametrize("moment", ["40", "trained"])
def test_the_best_checkpoint_may_be_the_damaged_one(classifier_run, train_quickly, tmp_path, moment):
    output = shutil.copytree(classifier_run.moments / moment, tmp_path / "killed")
    *_, newest = sorted(output.glob("checkpoint-*"))
    best = output / Path(read_json(newest / "trainer_state.json")["best_model_checkpoint"]).name
    assert best != newest
    zero(best / "model.safetensors")
    shown = train_quickly(output, resume=True)
    assert f"{best}, with the best weights so far, is damaged: the best from here on are kept" in shown
    newest = classifier_run.moments / "trained" / "checkpoint-40"
    ends, last = (load_file(folder / "model.safetensors") for folder in (output, newest))
    assert all(torch.equal(ends[name], last[name]) for name in last if not name.startswith("classifier."))


def test_time_and_curve_of_a_resumed_run_are_those_of_the_whole(classifier_run, train_quickly, tmp_path):
    output = shutil.copytree(classifier_run.moments / "32", tmp_path / "killed")
    before = read_json(output / "checkpoint-28" / "complete.json")["spent"]
    train_quickly(output, resume=True)
    metrics, whole = (read_json(folder / "metrics.json") for folder in (output, classifier_run.folder))
    assert metrics["train_seconds"] > before["seconds"] > 0
    tokens, all_tokens = (each["train_seconds"] * each["training_tokens_per_second"] for each in (metrics, whole))
    assert tokens == pytest.approx(all_tokens) and before["tokens"] < tokens
    curve = (output / "report.html").read_text(encoding="utf-8")
    assert "Learning curve" in curve


def test_resume_without_a_run_starts_afresh_and_the_same_seed_gives_the_same_weights(
    classifier_run, train_quickly, tmp_path
):
    shown = train_quickly(tmp_path / "new", resume=True)
    assert f"no run in {tmp_path / 'new'} yet: starting afresh" in shown
    assert weights(tmp_path / "new") == weights(classifier_run.folder)


def test_resume_of_a_finished_run_says_so_and_changes_nothing(model_copy, train_quickly):
    before = state_of(model_copy)
    shown = train_quickly(model_copy, resume=True)
    assert shown == f"{model_copy} holds this run already, and it is finished; remove the folder to train it again\n"
    assert state_of(model_copy) == before


def test_checkpoints_of_a_run_that_was_killed_while_they_were_removed(model_copy, train_quickly):
    (model_copy / "checkpoint-40").mkdir()
    assert "it is finished" in train_quickly(model_copy, resume=True)
    assert sorted(os.listdir(model_copy)) == FILES


def test_a_run_goes_on_only_with_the_documents_that_it_began_with(train_quickly, quick, tmp_path):
    """Of others another part would be held out, some of which the checkpoint has been trained on."""
    data, held_out = (shutil.copy(quick[name], tmp_path / f"{name}.csv") for name in ("data", "test"))
    options = {"data": str(data), "test": str(held_out), "max_steps": 12}
    train_quickly(tmp_path / "run", moments=tmp_path / "moments", **options)
    for number, (path, change) in enumerate(
        [(data, "warm sea,sun\n"), (data, None), (held_out, "wet,rain\n"), (held_out, None)]
    ):
        output = shutil.copytree(tmp_path / "moments" / "12", tmp_path / str(number))
        before, content = state_of_files(output), path.read_bytes()
        if change is None:  # touched, and as it was
            path.write_bytes(content)
            os.utime(path, (1, 1))
            assert "going on from" in train_quickly(output, resume=True, **options)
            continue
        path.write_bytes(content + change.encode())
        assert refusal(output, train_quickly, resume=True, **options) == (
            f"--resume: the documents of {data} are not those that the run in {output} began with; name another "
            "--output, or give it the same documents again"
        )
        assert state_of_files(output) == before
        path.write_bytes(content)


def state_of_files(folder):
    """Content and time of every file in a folder and those below, but for its lock."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != ".lock"]
    return {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in files}


# Runs that come to nothing


def test_a_run_that_diverges_at_once_leaves_nothing(train_quickly, tmp_path):
    message = refusal(tmp_path / "runs" / "a", train_quickly, learning_rate=1e30)
    assert message == "the training diverged at step 1 of 40: the loss is nan; lower --learning-rate, now 1e+30"
    assert os.listdir(tmp_path) == []


def test_a_run_that_diverges_later_keeps_checkpoints_from_before(train_quickly, tmp_path):
    options = {"learning_rate": 200.0, "task": "mlm"}
    message = refusal(tmp_path / "run", train_quickly, **options)
    step = re.fullmatch(
        r"the training diverged at step (\d+) of 40: the loss is nan; lower --learning-rate, now 200 and name another "
        rf"--output: {tmp_path / 'run'} keeps checkpoints of before",
        message,
    )
    assert step and int(step[1]) > 4
    left = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert left[-1] == "run.json" and left[:-1] and all(name.startswith("checkpoint-") for name in left[:-1])
    for name in left[:-1]:
        assert all(
            weight.isfinite().all() for weight in load_file(tmp_path / "run" / name / "model.safetensors").values()
        )
    assert refusal(tmp_path / "run", train_quickly, resume=True, **options) == message  # the same, step by step


def test_a_last_step_that_leaves_nothing_finite_is_no_end(train_quickly, tmp_path):
    message = refusal(tmp_path / "run", train_quickly, task="mlm", learning_rate=1e18, max_steps=1)
    assert message.startswith("the training diverged at step 1 of 1: the validation loss is nan; lower")
    assert not (tmp_path / "run").exists()


def test_a_checkpoint_that_is_not_finite_is_not_gone_on_with(classifier_run, train_quickly, tmp_path):
    output = shutil.copytree(classifier_run.moments / "12", tmp_path / "run")
    path = output / "checkpoint-8" / "model.safetensors"
    spent = read_spent(path.parent)
    save_file({name: weight * math.nan for name, weight in load_file(path).items()}, path, {"format": "pt"})
    seal(path.parent, spent)
    assert "diverged at step 9 of 40: the loss is nan" in refusal(output, train_quickly, resume=True)
    assert not (output / "checkpoint-12").exists() and not (output / "model.safetensors").exists()


# Folders that are taken


def refusal(output, train_quickly, **options):
    with pytest.raises(InputError) as raised:
        train_quickly(output, **options)
    return str(raised.value)


def test_a_folder_with_another_run(model_copy, train_quickly):
    before = state_of(model_copy)
    different = "--seed 3 there, 4 here, --k 6 there, 5 here"
    assert refusal(model_copy, train_quickly, resume=True, seed=4, k="5") == (
        f"--output {model_copy}: holds another run ({different}); name another folder"
    )
    assert "--seed 3 there, 4 here" in refusal(model_copy, train_quickly, seed=4)
    assert state_of(model_copy) == before


def test_a_folder_with_this_run(classifier_run, model_copy, train_quickly, tmp_path):
    assert refusal(model_copy, train_quickly) == (
        f"--output {model_copy}: holds this run already; add --resume to go on, or name another folder"
    )
    killed = shutil.copytree(classifier_run.moments / "8", tmp_path / "killed")
    assert "holds this run already; add --resume" in refusal(killed, train_quickly)
    assert (killed / "checkpoint-4").is_dir()


def test_a_folder_with_something_else(tmp_path, train_quickly):
    (tmp_path / "thesis.doc").write_text("years of work")
    message = f"--output {tmp_path}: is not empty and holds no run; name another folder"
    for resume in (False, True):
        assert refusal(tmp_path, train_quickly, resume=resume) == message
    assert os.listdir(tmp_path) == ["thesis.doc"]
    taken = tmp_path / "thesis.doc"
    assert refusal(taken, train_quickly) == f"--output {taken}: is a file; name a folder"


def test_a_folder_with_a_damaged_run_file(model_copy, train_quickly):
    (model_copy / "run.json").write_text("{")
    assert "run.json: is not valid JSON; remove " in refusal(model_copy, train_quickly, resume=True)


def test_an_empty_folder_is_free(tmp_path, quick):
    screen = TrainingScreen(Console(quiet=True))
    assert open_run(tmp_path, identity(TrainSettings(**quick)), False, screen) is None
    (tmp_path / ".keep").touch()  # nothing a person would see
    assert open_run(tmp_path, identity(TrainSettings(**quick)), False, screen) is None


def test_a_run_killed_before_its_first_checkpoint_does_not_keep_its_folder(classifier_run, train_quickly, tmp_path):
    output = shutil.copytree(classifier_run.moments / "4", tmp_path / "killed")
    assert sorted(os.listdir(output)) == [".lock", "run.json"]
    train_quickly(output, seed=4, max_steps=1)
    assert read_json(output / "run.json")["seed"] == 4


def test_a_mistake_in_the_data_does_not_take_the_folder(tmp_path, train_quickly, write_csv):
    data = write_csv(tmp_path / "a.csv", [("wet", "rain")] * 30)
    output = tmp_path / "runs" / "a"
    assert "every document has the label 'rain'" in refusal(output, train_quickly, data=data)
    assert "tokenizer 'bpe:7': write bpe:SIZE" in refusal(output, train_quickly, tokenizer="bpe:7")
    assert not output.exists() and not output.parent.exists()


# Models of every kind


@pytest.mark.parametrize(
    "options",
    [
        {"k": "8,6,4", "model": {"projection": "linear", "sharing": "none"}, "class_weights": "balanced"},
        {"model": {"projection": "linear", "sharing": "layerwise"}, "task": "mlm"},
        {"model": {"sharing": "kv", "projection": "random"}, "tokenizer": "bytes", "k": None},
        {"model": {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}},
        {"model": {"attention": "full"}, "learning_rate": None, "max_steps": None, "epochs": 0.2},
    ],
    ids=lambda options: " ".join(f"{name}={value}" for name, value in options.items()),
)
def test_models_of_several_layers_train_and_load(train_quickly, monkeypatch, tmp_path, options):
    three_layers = dataclasses.replace(SIZES["tiny"], hidden_size=12, layers=3, heads=2, feed_forward=10)
    monkeypatch.setitem(SIZES, "tiny", three_layers)
    shown = train_quickly(tmp_path / "run", **{"max_steps": 3, **options})
    assert "Held-out documents, scored once" in shown
    model_class = AutoModelForMaskedLM if options.get("task") == "mlm" else AutoModelForSequenceClassification
    model, report = model_class.from_pretrained(tmp_path / "run", output_loading_info=True)
    assert not report["missing_keys"] and not report["unexpected_keys"]
    assert model.num_parameters() == read_json(tmp_path / "run" / "metrics.json")["parameters"]


def test_patience_ends_a_run_that_learns_nothing_more(train_quickly, tmp_path):
    """Killed then, it does not go on learning."""
    options = {"learning_rate": 1e-12, "patience": 2}
    shown = train_quickly(tmp_path / "run", moments=tmp_path / "moments", **options)
    assert "stopping at step 12 of 40: the last 2 evaluations were no better (--patience)" in shown
    assert re.findall("^step (\\d+): ", shown, re.MULTILINE) == ["4", "8", "12"]
    shown = train_quickly(tmp_path / "moments" / "trained", resume=True, **options)
    assert "step 16" not in shown and "Held-out documents, scored once" in shown
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "moments/trained"))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_minutes_end_the_run(train_quickly, tmp_path):
    shown = train_quickly(tmp_path / "run", minutes=1 / 60, max_steps=1_000_000)
    assert re.search(r"^step 1/~\d{1,4}: ", shown, re.MULTILINE)
    said = "^--minutes .* is for the training; then: scores of 50 test documents, baselines \\(--no-baseline\\)$"
    assert re.search(said, shown, re.MULTILINE)
    assert sorted(os.listdir(tmp_path / "run")) == FILES
    assert 1 <= read_json(tmp_path / "run" / "metrics.json")["train_seconds"] < 30


def test_the_folder_is_named_after_the_data(train_quickly, quick, monkeypatch, tmp_path):
    from torch_linformer.training.train import train

    monkeypatch.chdir(tmp_path)
    output = train(TrainSettings(**{**quick, "max_steps": 1}), screen=TrainingScreen(Console(quiet=True)))
    assert str(output) == os.path.join("runs", "weather")
    assert sorted(os.listdir(tmp_path / "runs" / "weather")) == FILES


def test_pretraining_is_scored_on_some_rows_and_trained_on_all(quick, monkeypatch):
    monkeypatch.setattr(prepared, "EVALUATED_TOKENS", 3 * quick["max_length"] + 1)
    settings = TrainSettings(**{**quick, "task": "mlm"})
    splits, screen = load_splits(settings), TrainingScreen(Console(file=io.StringIO()))
    data = prepared.prepare(settings, None, splits, None, screen)
    assert len(data.validation.windows) == len(data.test.windows) == 3
    assert len(data.train.windows) > 60
    monkeypatch.setattr(prepared, "EVALUATED_TOKENS", 1)
    assert len(prepared.prepare(settings, None, splits, None, screen).test.windows) == 1


@pytest.mark.parametrize(("fewest", "asks"), [(210, True), (211, False)])
def test_very_many_short_texts_are_a_question(quick, monkeypatch, fewest, asks):
    monkeypatch.setattr(windows, "MANY_TEXTS", fewest)
    monkeypatch.setattr(windows, "FEW_TOKENS", 1000)
    settings, console = TrainSettings(**quick), Console(file=io.StringIO(), width=1000)
    prepared.prepare(settings, None, load_splits(settings), None, TrainingScreen(console))
    assert ("\n210 texts, median " in console.file.getvalue()) == asks


# A training that is only tried


def test_a_check_says_what_a_training_would_take_and_leaves_nothing(quick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    console = Console(file=io.StringIO(), width=200)
    settings = TrainSettings(**{**quick, "max_length": 8, "output": "run"})
    try_training(settings, screen=TrainingScreen(console))
    assert os.listdir(tmp_path) == []
    shown = console.file.getvalue()
    assert "128 documents to train on, 32 for validation, 50 held out\n" in shown
    assert re.search(
        r"warning: most documents are cut: --max-length (16|32|64) reads (9\d\.\d|100\.0) % of them whole", shown
    )
    assert re.search(
        r"a step of 8 documents takes [\d.]+ m?s and [\d.]+ [kM]B beside the model where all have 8 t", shown
    )
    assert re.search(r"\n40 steps: about [\d.]+ m?s, before it is scored; nothing was trained or written", shown)
    with pytest.raises(InputError, match=r"^--check tries a new training: leave out --resume$"):
        try_training(settings, resume=True)


@pytest.mark.parametrize("installed", [False, True])
def test_what_would_be_gained_is_said_where_nothing_pretrained_is_there(
    train_quickly, tmp_path, monkeypatch, installed
):
    monkeypatch.setattr("torch_linformer.training.train.is_installed", lambda name: installed)
    shown = train_quickly(tmp_path / "run", max_steps=1, baseline=False)
    assert ('pip install "torch-linformer[minilm]"' in shown) is not installed
