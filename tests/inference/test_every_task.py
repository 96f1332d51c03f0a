"""From documents to a scored model and its predictions, for each task but classify and mlm, which test_run has."""

import dataclasses
import json
import random
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import TaskPredictor
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.models import LinformerConfig, LinformerForMaskedLM, LinformerForSequenceClassification
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.tasks.registry import task_of
from torch_linformer.training.first_model import FirstModel
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.train_settings import TrainSettings

SAME = {"device": "cpu", "precision": "fp32"}
TASKS = {  # the score to reach, the baselines beside it, what the screen says of these, and the tag on the hub
    "multilabel": ("micro_f1", ["words_micro_f1"], "words", "text-classification"),
    "regress": ("mse", ["words_mse", "mean_mse"], "mean of the training values", "text-classification"),
    "token-classify": ("f1", ["frequent_tag_f1"], "most frequent tag", "token-classification"),
    "qa": ("exact_match", [], "exact-match", "question-answering"),
}
WORDS = {"sun": ["warm", "sand", "sea"], "rain": ["wet", "grey", "mud"]}
NAMES = {"PER": ["Ann", "Bo", "Cy"], "LOC": ["Rome", "Oslo", "Lima"]}


def document_of(task, draw):
    """A row that holds what the task is to learn, in plain words."""
    if task == "multilabel":
        labels = [label for label in WORDS if draw.random() < 0.6]
        words = [word for label in labels for word in WORDS[label]] + ["the", "of"]
        text = " ".join(draw.choices(words, k=draw.randint(4, 16)))
        return {"text": text, **{name: draw.choice([None, *[int(name in labels)] * 3]) for name in WORDS}}
    if task == "regress":
        warmth = draw.random()
        words = [draw.choice(WORDS["sun"] if draw.random() < warmth else WORDS["rain"]) for _ in range(14)]
        return {"text": " ".join(words), "degrees": 300 + 50 * sum(word in WORDS["sun"] for word in words) / 14}
    if task == "token-classify":
        kinds = [draw.choice([*NAMES, "O"]) for _ in range(draw.randint(2, 6))]
        words = [draw.choice(NAMES.get(kind, ["met", "in", "."])) for kind in kinds]
        return {"tokens": words, "tags": ["O" if kind == "O" else f"B-{kind}" for kind in kinds]}
    place, name = draw.choice(NAMES["LOC"]), draw.choice(NAMES["PER"])
    text = f"{'and ' * draw.randint(0, 4)}{name} met {'the ' * draw.randint(0, 3)}mayor in {place} ."
    return {"context": text, "question": "where ?", "answers": {"text": [place], "answer_start": [text.index(place)]}}


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


@pytest.fixture(scope="module", params=TASKS)
def run(request, train_quickly, tmp_path_factory):
    """A finished run of a task, without speed figures, and the options it had. Not to be changed."""
    folder, draw = tmp_path_factory.mktemp("task"), random.Random(0)
    parts = {"data": [document_of(request.param, draw) for _ in range(240)]}
    parts["test"] = [document_of(request.param, draw) for _ in range(40)]
    for part, rows in parts.items():
        (folder / f"{part}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {part: str(folder / f"{part}.jsonl") for part in parts} | {
        "task": request.param,
        "label_column": {"regress": "degrees", "multilabel": "sun,rain"}.get(request.param),
        "max_length": 48,
        "max_steps": 120,
        "learning_rate": 0.01,
        "model": None,
        "k": "24",
    }
    shown = train_quickly(folder / "run", moments=folder / "moments", **options)
    found = {"task": request.param, "folder": folder / "run", "moments": folder / "moments", "options": options}
    return SimpleNamespace(**found, shown=shown, rows=parts["test"], metrics=metrics_of(folder / "run"))


def test_it_learns_beside_its_baselines(run):
    name, baselines, said, _ = TASKS[run.task]
    if run.task == "regress":
        assert run.metrics["mse"] < 0.3 * run.metrics["mean_mse"] and run.metrics["spearman"] > 0.8
    else:
        assert run.metrics[name] > 0.9
    assert all(run.metrics[baseline] >= 0 for baseline in baselines) and said in run.shown


def test_what_the_validation_documents_and_the_answers_decide(run):
    """The threshold of several labels, and the length of answers: on the screen, in the card and in the report."""
    config, page = load_model(str(run.folder)).config, (run.folder / "report.html").read_text(encoding="utf-8")
    page = re.sub(r"<[^>]+>\s*", " ", page)
    if run.task == "multilabel":
        assert f"above a probability of {config.threshold:.3g}, which" in run.shown
        assert "p > model.config.threshold" in (run.folder / "README.md").read_text(encoding="utf-8")
        assert re.search(rf"labels predicted above\s+{config.threshold:.3g}\s", page)
    if run.task == "qa":
        longest = config.max_answer_length
        assert f"answers have {longest} tokens at most, as the longest training answer" in run.shown
        assert re.search(rf"tokens of an answer at most\s+{longest}\s", page)


def test_evaluation_gives_the_same_scores(run):
    named = DataOptions(label_column=run.options["label_column"])
    task, scores = evaluate(str(run.folder), run.options["test"], options=named, batch_size=7, **SAME)
    for name in task.headline:
        assert scores[name] == pytest.approx(run.metrics[name], rel=1e-4)


def test_predictions_are_what_was_scored(run):
    predictor = TaskPredictor(load_model(str(run.folder)), load_tokenizer(str(run.folder)), batch_size=5, **SAME)
    texts = [row.get("text") or row.get("context") or " ".join(row["tokens"]) for row in run.rows]
    questions = [row.get("question") for row in run.rows]
    records = list(
        predictor.answers(Document(str(i), *each) for i, each in enumerate(zip(texts, questions, strict=True)))
    )
    assert [record["document"] for record in records] == [str(i) for i in range(40)]
    if run.task == "multilabel":
        known = [{name: row[name] for name in WORDS if row[name] is not None} for row in run.rows]
        assert re.search(
            r"neither learned nor scored; sun: \d+ of 22\d rows unknown, rain: \d+ of 22\d rows", run.shown
        )
        right = [
            all((name in record["labels"]) == held for name, held in row.items())
            for record, row in zip(records, known, strict=True)
            if row
        ]
        assert len(right) == run.metrics["documents"]["test"] < 40
        assert sum(right) / len(right) == pytest.approx(run.metrics["exact_match"])
    elif run.task == "regress":
        squares = [(record["value"] - row["degrees"]) ** 2 for record, row in zip(records, run.rows, strict=True)]
        assert sum(squares) / 40 == pytest.approx(run.metrics["mse"], rel=1e-3)
    elif run.task == "qa":
        right = [record["answer"] == row["answers"]["text"][0] for record, row in zip(records, run.rows, strict=True)]
        assert sum(right) / 40 == pytest.approx(run.metrics["exact_match"])
        assert all(text[r["start"] : r["end"]] == r["answer"] for text, r in zip(texts, records, strict=True))
    else:
        names = {word: kind for kind, words in NAMES.items() for word in words}
        found = sum(len(record["entities"]) for record in records)
        right = sum(names.get(e["text"]) == e["label"] for record in records for e in record["entities"])
        wanted = sum(tag != "O" for row in run.rows for tag in row["tags"])
        assert 2 * right / (found + wanted) == pytest.approx(run.metrics["f1"], abs=0.02)
        assert all(
            text[e["start"] : e["end"]] == e["text"]
            for text, r in zip(texts, records, strict=True)
            for e in r["entities"]
        )


def test_the_card_and_the_report(run):
    score, _, _, tag = TASKS[run.task]
    assert f"pipeline_tag: {tag}" in (run.folder / "README.md").read_text()
    report = (run.folder / "report.html").read_text(encoding="utf-8")
    (best,) = re.findall(r"Validation [\w ]+: best ([\d.e+-]+) at step", report)
    values = [float(value) for value in re.findall(rf"\b{score.replace('_', '-')} ([\d.]+)", run.shown)]
    assert float(best) == pytest.approx((min if run.task == "regress" else max)(values), rel=1e-3)
    assert "Learning curve" in report and ("Labels" in report) == ("per_label" in run.metrics)


def test_a_killed_run_ends_as_if_it_had_not_been(run, train_quickly, tmp_path):
    """After the last checkpoint, as what finishes a model must be done once; of one task in the middle, too."""
    for moment in ("60", "trained") if run.task == "token-classify" else ("trained",):
        output = tmp_path / moment
        shutil.copytree(run.moments / moment, output)
        train_quickly(output, resume=True, **run.options)
        whole, resumed = (load_file(folder / "model.safetensors") for folder in (run.folder, output))
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_windows_are_trained_on_and_scored_by_the_document(run, train_quickly, tmp_path):
    options = {**run.options, "max_length": 24, "k": "12", "overflow": "windows", "stride": 4, "max_steps": 2}
    shown = train_quickly(tmp_path / "run", **options)
    assert "are longer than --max-length 24; " in shown and " windows in all" in shown
    assert metrics_of(tmp_path / "run")["documents"] == run.metrics["documents"]


# From another model

NEW = {"tokenizer": "bpe:8192", "k": None, "model": None, "max_length": None, "max_steps": 1}


def test_from_a_pretrained_model(masked_run, train_quickly, quick, tmp_path):
    first = str(masked_run.folder)
    shown = train_quickly(tmp_path / "run", from_model=first, **{**NEW, "learning_rate": 1e-12})
    assert f"model from {first}: " in shown and "only its head is new" in shown
    before, after = (load_file(f"{folder}/model.safetensors") for folder in (first, tmp_path / "run"))
    carried = [name for name in after if name.startswith("linformer.")]
    assert carried and all(torch.allclose(before[name], after[name], atol=1e-9) for name in carried)
    assert {name for name in after if name not in before} == {"classifier.weight", "classifier.bias"}
    loaded = load_model(str(tmp_path / "run"))
    assert loaded.config.k == 6 and loaded.config.max_position_embeddings == quick["max_length"]
    assert load_tokenizer(str(tmp_path / "run")).get_vocab() == load_tokenizer(first).get_vocab()


def test_from_a_model_with_full_attention_its_results_say_so(masked_run, train_quickly, tmp_path):
    first = tmp_path / "full"
    config = load_model(str(masked_run.folder)).config
    LinformerForMaskedLM(LinformerConfig(**{**config.to_diff_dict(), "attention": "full"})).save_pretrained(first)
    load_tokenizer(str(masked_run.folder)).save_pretrained(first)
    shown = train_quickly(tmp_path / "run", from_model=str(first), **NEW)
    kept = "the trained encoder is kept" in shown
    name = "full attention" if kept else "the reader"
    assert re.search(rf"^ *{name} +[01]\.", shown, re.MULTILINE) and "Linformer" not in shown
    title = "Full-attention twin on" if kept else "The reader on"
    assert title in (tmp_path / "run" / "report.html").read_text()


@pytest.mark.parametrize("names", [("rain", "snow", "sun"), ("no", "yes")], ids=["its labels", "other labels"])
def test_from_a_classifier_of_other_labels(masked_run, train_quickly, quick, tmp_path, names):
    """Its head comes along where it says the same; else the dense layer that it reads, as transformers does."""
    tokenizer = load_tokenizer(str(masked_run.folder))
    fields = {"hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 10, "k": 6}
    fields |= {"pooling": "cls", "classifier_hidden_act": "tanh", "attention_probs_dropout_prob": 0.1}
    fields |= {"id2label": dict(enumerate(names)), "problem_type": "multi_label_classification"}
    fields |= {"max_position_embeddings": quick["max_length"], "projection": "mean", "vocab_size": len(tokenizer)}
    first = LinformerForSequenceClassification(LinformerConfig(**fields))
    first.save_pretrained(tmp_path / "first")
    tokenizer.save_pretrained(tmp_path / "first")
    options = {**NEW, "max_steps": 2, "learning_rate": 1e-12}
    train_quickly(tmp_path / "run", from_model=str(tmp_path / "first"), **options)
    found = load_model(str(tmp_path / "run"))
    assert found.config.label_names == ["rain", "snow", "sun"]
    assert found.config.problem_type == "single_label_classification"
    assert (found.config.pooling, found.config.classifier_hidden_act) == ("cls", "tanh")
    assert first.config.attention_probs_dropout_prob == 0.1 and found.config.attention_probs_dropout_prob == 0
    before, after = first.state_dict(), found.state_dict()
    assert before.keys() == after.keys()
    carried = {name for name in before if before[name].shape == after[name].shape and before[name].any()}
    carried = {name for name in carried if torch.allclose(before[name], after[name], atol=1e-9)}
    head = {name for name in carried if not name.startswith("linformer.")}
    assert {name for name in before if name.startswith("linformer.") and before[name].any()} == carried - head
    assert head == {"pooler.dense.weight"}
    ratios = after["classifier.weight"] / before["classifier.weight"] if len(names) == 3 else torch.ones(1)
    assert torch.allclose(ratios, ratios.flatten()[0]), "calibrated, and otherwise as it was"


def test_from_a_model_that_reads_less(masked_run, train_quickly, tmp_path):
    new = {**NEW, "max_length": 40, "max_steps": 2}
    train_quickly(tmp_path / "run", from_model=str(masked_run.folder), **new)
    assert load_model(str(tmp_path / "run")).config.max_position_embeddings == 40
    wrong = "--max-length 5: max_len must be at least k = 6, got 5; shorter texts are not padded to it"
    with pytest.raises(InputError, match=f"^{wrong}$"):
        train_quickly(tmp_path / "other", from_model=str(masked_run.folder), **{**new, "max_length": 5})
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize("types", [0, 1, 2])
@pytest.mark.parametrize("run", ["qa"], indirect=True)
def test_questions_are_told_apart_by_types_unless_the_first_model_has_one(
    run, masked_run, train_quickly, tmp_path, types
):
    first = load_model(str(masked_run.folder))
    model = type(first)(LinformerConfig(**{**first.config.to_diff_dict(), "type_vocab_size": types}))
    model.save_pretrained(tmp_path / "first")
    load_tokenizer(str(masked_run.folder)).save_pretrained(tmp_path / "first")
    train_quickly(
        tmp_path / "run", from_model=str(tmp_path / "first"), **{**run.options, **NEW, "learning_rate": 1e-12}
    )
    found = load_model(str(tmp_path / "run"))
    assert found.config.type_vocab_size == (1 if types == 1 else 2)
    if types:
        table = "linformer.embeddings.token_type_embeddings.weight"
        assert torch.allclose(found.state_dict()[table][:types], model.state_dict()[table], atol=1e-9)
    assert task_of(found, load_tokenizer(str(tmp_path / "run"))).typed == (types != 1)


def test_from_a_model_of_the_same_task_its_head_comes_along(run, train_quickly, tmp_path):
    train_quickly(tmp_path / "run", from_model=str(run.folder), **{**run.options, **NEW, "learning_rate": 1e-12})
    score = TASKS[run.task][0]
    if run.task != "regress":  # whose unit is learnt anew
        assert metrics_of(tmp_path / "run")[score] == pytest.approx(run.metrics[score])


def test_what_follows_from_the_first_model(masked_run, quick):
    first = TrainSettings(from_model=str(masked_run.folder), freeze=False)
    settings = FirstModel.of(first).complete(first)
    assert settings.length == quick["max_length"]
    assert settings.peak_rate == pytest.approx(SIZES["tiny"].learning_rate / 5)
    told = dataclasses.replace(first, max_length=12, learning_rate=0.5)
    assert FirstModel.of(told).complete(told) == told


def test_options_of_a_new_model_do_not_go_with_another():
    for name, value in (("size", "small"), ("tokenizer", "bytes"), ("model", {"gated": True})):
        with pytest.raises(InputError, match=f"^--{name} is for a new model; --from m has its own; --from none"):
            TrainSettings(from_model="m", **{name: value})
