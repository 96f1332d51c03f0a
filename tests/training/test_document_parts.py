"""The default recipe for labels and numbers, from the documents to the saved model: what is fitted, kept and told."""

import json
import random

import pytest
import torch
import transformers
from safetensors.torch import load_file
from transformers import AutoTokenizer

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.encoders import linearize
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening.load import load_model
from torch_linformer.tasks.linear_classifiers import LinearClassifier
from torch_linformer.training import document_parts
from torch_linformer.training.kept_reading import KeptReading

WORDS = {"rain": ["wet", "grey", "mud"], "sun": ["warm", "sand", "sea"]}
WINDOW = 24  # tokens that the encoder reads at once
CPU = {"device": "cpu", "precision": "fp32"}
READ = {"k": None, "model": None, "tokenizer": "bpe:8192", "max_length": None}  # not a new model's
FROZEN = {**READ, "max_steps": None, "learning_rate": None, "batch_size": 8, "patience": 5, "baseline": False}
TRAINED = {**READ, "freeze": False, "max_steps": 10, "baseline": False}


def row_of(task, draw):
    """Where words tell the label most of the time, and so do marks, which only an encoder sees."""
    label = draw.choice(sorted(WORDS))
    told, written = (label if draw.random() < 0.75 else draw.choice(sorted(WORDS)) for _ in range(2))
    others = ["the", "of"] if written == "sun" else ["the !", "of ?"]
    text = " ".join([draw.choice(WORDS[told]), *draw.choices(others, k=draw.randint(4, 14))])
    match task:
        case "classify":
            return {"text": text, "label": label}
        case "multilabel":
            values = {name: float(name == label or draw.random() < 0.2) for name in WORDS}
            return {"text": text, **(values | {"sun": None} if draw.random() < 0.1 else values)}
    return {"text": text, "label": 1000.0 + 10 * sum(word in WORDS["sun"] for word in text.split()) + draw.random()}


def long_row(draw):
    """Of three windows, the second of which tells the label."""
    filler, label = " ".join(["the of"] * 15), draw.choice(sorted(WORDS))
    return {"text": f"{filler} {' '.join(draw.choices(WORDS[label], k=9))} {filler}", "label": label}


def letters(draw):
    """Rows of the same tokens but for a letter, which is the label."""
    label = draw.choice("ab")
    return {"text": " ".join(["the"] * 3 + [label] * 9), "label": label}


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


@pytest.fixture(scope="module")
def source_of(tmp_path_factory):
    """A function: the folder of a small BERT with its tokenizer; linear, or blind to what words there are."""
    words = " ".join([*WORDS["rain"], *WORDS["sun"], "the of"])
    tokenizer = build_tokenizer("bpe:300", [words] * 3, max_length=WINDOW)

    def save(linear=False, blind=False):
        torch.manual_seed(0)
        sizes = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
        fields = {"pad_token_id": tokenizer.pad_token_id, "max_position_embeddings": WINDOW, "initializer_range": 0.2}
        model = transformers.BertModel(transformers.BertConfig(vocab_size=len(tokenizer), **sizes, **fields))
        if blind:
            torch.nn.init.zeros_(model.get_input_embeddings().weight)
        if linear:
            model = linearize(model, k=8, window=8, max_length=96)
        folder = tmp_path_factory.mktemp("source") / "bert"
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def source(source_of):
    return source_of()


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """A function: the options that name files of a task's rows."""
    folder = tmp_path_factory.mktemp("rows")

    def options(task="classify", row=None, number=90, held_out=40):
        draw = random.Random(0)
        make = (lambda: row(draw)) if row else (lambda: row_of(task, draw))
        kind = f"{task}-{row.__name__ if row else 'short'}"
        named = {"label_column": "rain,sun"} if task == "multilabel" else {}
        return {
            "task": task,
            "data": write(folder / f"{kind}.jsonl", [make() for _ in range(number)]),
            "test": write(folder / f"{kind} test.jsonl", [make() for _ in range(held_out)]),
            **named,
        }

    return options


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


def rows_of(path):
    with open(path, encoding="utf-8") as file:
        return [json.loads(line) for line in file]


HEADLINE = {"classify": "accuracy", "multilabel": "micro_f1", "regress": "mse"}


@pytest.mark.parametrize("task", HEADLINE)
def test_the_saved_model_gives_the_scored_answers(source, data_of, train_quickly, tmp_path, task):
    """And the rows of its parts, and the sentence that weighs them, are there."""
    options = data_of(task, number=240)
    shown = train_quickly(tmp_path / "run", from_model=source, lexical="auto", **{**FROZEN, **options})
    metrics, name = metrics_of(tmp_path / "run"), HEADLINE[task]
    for batch_size in (1, 7):
        _, scores = evaluate(str(tmp_path / "run"), options["test"], batch_size=batch_size, seed=0, **CPU)
        assert scores[name] == pytest.approx(metrics[name], rel=1e-4)
    words, reader = metrics[f"words_{name}"], metrics[f"reader_{name}"]
    shipped = {"classify": "words and the reader", "multilabel": "the reader", "regress": "words"}
    assert metrics["method"] == shipped[task] and (task == "classify") is not (f"both_{name}" in metrics)
    assert "both together reach" in metrics["verdict"] and "the reader is worth" in metrics["verdict"]
    assert task == "regress" or "To try next: training the encoder: --no-freeze" in metrics["verdict"]
    assert "weighed on 240 documents, each by fits that have not seen it: words " in shown
    if task == "regress":
        assert max(metrics["mse"], words, reader) < 1000  # of numbers around 1,030


def test_the_predictor_gives_the_labels_of_the_score(source, data_of, train_quickly, tmp_path):
    options = data_of()
    train_quickly(tmp_path / "run", from_model=source, lexical="auto", **{**FROZEN, **options})
    rows = rows_of(options["test"])
    given = Predictor(str(tmp_path / "run"), **CPU)({"text": [row["text"] for row in rows]})["label"]
    right = sum(label == row["label"] for label, row in zip(given, rows, strict=True))
    assert right / len(rows) == metrics_of(tmp_path / "run")["accuracy"] > 0.6


def test_all_windows_of_a_document_are_read(source, data_of, train_quickly, tmp_path):
    """The reader alone is right where only the second window tells, and its first window alone is not."""
    options = {**FROZEN, **data_of(row=long_row), "baseline": True}
    train_quickly(tmp_path / "run", from_model=source, lexical="none", **options)
    metrics = metrics_of(tmp_path / "run")
    assert metrics["accuracy"] > 0.95 and metrics["first_window_accuracy"] < 0.75
    assert metrics["method"] == "the reader" and metrics["stack_accuracy"] > 0.9
    assert load_model(str(tmp_path / "run")).config.read_window == WINDOW


def test_the_first_window_of_numbers_is_in_their_unit(source, data_of, train_quickly, tmp_path):
    def number(draw):
        row = long_row(draw)
        return {"text": row["text"], "label": 1000.0 + 50 * (row["label"] == "sun") + draw.random()}

    options = {**FROZEN, **data_of("regress", row=number), "baseline": True}
    train_quickly(tmp_path / "run", from_model=source, lexical="none", **options)
    metrics = metrics_of(tmp_path / "run")
    assert metrics["mse"] < 100 and 400 < metrics["first_window_mse"] < 1000


def test_a_linear_encoder_reads_in_one_pass(source_of, data_of, train_quickly, tmp_path):
    options = {**FROZEN, **data_of(row=long_row)}
    train_quickly(tmp_path / "run", from_model=source_of(linear=True), lexical="none", **options)
    config = load_model(str(tmp_path / "run")).config
    assert config.read_window is None and config.backbone_config.linformer is not None
    assert metrics_of(tmp_path / "run")["accuracy"] > 0.8


def test_words_alone_of_a_new_model_s_documents(data_of, train_quickly, tmp_path):
    """Beside a network that is trained, whose rows are named so."""
    train_quickly(tmp_path / "run", **data_of(), lexical="auto", max_steps=10, baseline=False)
    metrics = metrics_of(tmp_path / "run")
    assert {"words_accuracy", "network_accuracy"} <= metrics.keys() and "reader_accuracy" not in metrics
    assert "the network is worth" in metrics["verdict"]


def test_a_reader_that_only_makes_words_surer_is_left_out(source, train_quickly, tmp_path, monkeypatch):
    """Where each text tells its source, words and reader are right of all of them, and the model is the words."""
    draw = random.Random(0)
    rows = [{"text": f"{' '.join(draw.choices(WORDS[label], k=6))} !", "label": label} for label in [*WORDS] * 40]
    options = {**FROZEN, "data": write(tmp_path / "rows.jsonl", rows), "test": "0.3"}
    shown = train_quickly(tmp_path / "run", from_model=source, lexical="auto", **options)
    metrics = metrics_of(tmp_path / "run")
    assert metrics["method"] == "words" and metrics["both_accuracy"] == metrics["reader_accuracy"] == 1
    assert (
        "both are not clearly better there than words alone" in shown
        and "The model is words alone: " in metrics["verdict"]
    )
    model = load_model(str(tmp_path / "run"))
    assert model.lexical is not None and not model.classifier.weight.any() and not model.classifier.bias.any()
    texts = [row["text"] for row in rows[:5]]
    inputs = AutoTokenizer.from_pretrained(tmp_path / "run")(texts, return_tensors="pt", padding=True, truncation=True)
    expected = model(**inputs).logits.softmax(dim=1)
    monkeypatch.setattr(type(model.base_model), "forward", None)  # the encoder would fail
    given = Predictor(str(tmp_path / "run"), **CPU)({"text": texts})["probabilities"]
    torch.testing.assert_close(torch.tensor([list(each.values()) for each in given]), expected, atol=1e-5, rtol=0)


# Training the encoder too


@pytest.mark.parametrize("lexical", ["auto", "none"])
def test_a_training_that_does_not_win_leaves_the_encoder_as_it_was(source, data_of, train_quickly, tmp_path, lexical):
    options = {**TRAINED, **data_of(), "lexical": lexical, "learning_rate": 1e-12, "from_model": source}
    shown = train_quickly(tmp_path / "run", **{**options, "learning_rate": 0.5})
    assert "the trained encoder is not kept: loss on validation " in shown
    train_quickly(tmp_path / "frozen", from_model=source, **{**FROZEN, **data_of(), "lexical": lexical})
    trained, frozen = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "frozen"))
    assert trained.keys() == frozen.keys()
    assert all(torch.equal(trained[name], frozen[name]) for name in frozen)
    assert all(metrics_of(tmp_path / "run")[x] == metrics_of(tmp_path / "frozen")[x] for x in ("method", "accuracy"))


def test_a_training_without_the_time_for_it_leaves_the_encoder_as_it_was(source, data_of, train_quickly, tmp_path):
    options = {**TRAINED, **data_of(), "lexical": "auto", "from_model": source, "minutes": 1e-5, "probe": True}
    shown = train_quickly(tmp_path / "run", **{**options, "max_steps": None})
    assert "warning: --minutes 1e-05 makes about 0 steps" in shown and "; the encoder stays as it is\n" in shown
    assert "the speed of a training step" not in shown, "of a training that there is not"
    train_quickly(tmp_path / "frozen", from_model=source, **{**FROZEN, **data_of(), "lexical": "auto"})
    trained, frozen = (load_file(tmp_path / name / "model.safetensors") for name in ("run", "frozen"))
    assert all(torch.equal(trained[name], frozen[name]) for name in frozen)


def test_a_training_that_wins_is_kept(source_of, data_of, train_quickly, tmp_path):
    source = source_of(blind=True)
    options = {**TRAINED, **data_of(row=letters), "lexical": "none", "max_steps": 40, "learning_rate": 3e-3}
    shown = train_quickly(tmp_path / "run", from_model=source, **options)
    assert "the trained encoder is kept: loss on validation " in shown
    first, trained = load_file(f"{source}/model.safetensors"), load_file(tmp_path / "run" / "model.safetensors")
    name = "encoder.layer.0.attention.self.query.weight"
    assert not torch.equal(first[name], trained[f"linformer.body.{name}"])
    _, scores = evaluate(str(tmp_path / "run"), options["test"], batch_size=7, seed=0, **CPU)
    assert scores["accuracy"] == metrics_of(tmp_path / "run")["accuracy"] > 0.9


def test_a_trained_encoder_reads_nothing_for_the_baselines(source, data_of, train_quickly, tmp_path):
    """What it would read would be kept as what the encoder reads that it was."""
    options = {**TRAINED, **data_of(row=long_row), "lexical": "none", "baseline": True, "max_steps": 1}
    train_quickly(tmp_path / "run", from_model=source, **options)
    metrics = metrics_of(tmp_path / "run")
    assert {"words_accuracy", "stack_accuracy"} <= metrics.keys() and "first_window_accuracy" not in metrics


def test_a_killed_training_of_the_encoder_goes_on(source, data_of, train_quickly, tmp_path):
    options = {**TRAINED, **data_of(), "lexical": "auto", "learning_rate": 1e-3, "from_model": source}
    train_quickly(tmp_path / "whole", moments=tmp_path / "moments", **options)
    moment = sorted(
        (path for path in (tmp_path / "moments").iterdir() if path.name.isdigit()), key=lambda p: int(p.name)
    )[5]
    shown = train_quickly(moment, resume=True, **options)
    assert "going on from" in shown
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (tmp_path / "whole", moment))
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight)


def test_windows_as_rows_are_trained_on(source, data_of, train_quickly, tmp_path):
    options = {**TRAINED, **data_of(row=long_row), "lexical": "none", "overflow": "windows", "max_length": WINDOW}
    train_quickly(tmp_path / "run", from_model=source, **options)
    _, scores = evaluate(str(tmp_path / "run"), options["test"], overflow="windows", **CPU)
    assert scores["accuracy"] == metrics_of(tmp_path / "run")["accuracy"]


# What is read, and which documents judge


def test_another_run_reads_only_what_is_new(source, data_of, train_quickly, tmp_path, monkeypatch):
    read, usual = [], KeptReading._read
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(KeptReading, "_read", lambda self, rows: read.extend(map(tuple, rows)) or usual(self, rows))
    options = {**FROZEN, **data_of(), "lexical": "none", "from_model": source}
    train_quickly(tmp_path / "first", **options)
    assert len(read) >= 100
    read.clear()
    train_quickly(tmp_path / "second", **{**options, "seed": 9, "lexical": "auto"})
    train_quickly(tmp_path / "third", **{**options, "test": "0.3"})
    assert not read


def test_another_run_fits_nothing_again(source, data_of, train_quickly, tmp_path, monkeypatch):
    """Neither words nor baselines, where the documents are the same; and all of it where one is not."""
    fitted, usual = [], LinearClassifier._one
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path / "cache")
    monkeypatch.setattr(LinearClassifier, "_one", lambda *args: fitted.append(1) or usual(*args))
    options = {**FROZEN, **data_of(), "baseline": True, "from_model": source}
    first = train_quickly(tmp_path / "first", **options, lexical="auto")
    each = len(fitted)
    second = train_quickly(tmp_path / "second", **{**options, "max_length": 64}, lexical="auto")
    assert len(fitted) == each > 30
    assert metrics_of(tmp_path / "first")["stack_accuracy"] == metrics_of(tmp_path / "second")["stack_accuracy"]
    assert first.count("words alone") == second.count("words alone") > 0
    train_quickly(tmp_path / "third", **{**options, "test": "0.3"}, lexical="auto")
    assert len(fitted) > 1.8 * each


def test_authors_are_not_in_two_folds(source, data_of, train_quickly, tmp_path, monkeypatch):
    """Of texts that tell their author, whose labels are random, words out of fold know nothing."""
    draw = random.Random(3)
    authors = {f"author{number}": draw.choice(sorted(WORDS)) for number in range(24)}
    rows = [
        {"text": f"{author} {draw.choice(['the', 'of'])} {author}", "label": label, "who": author}
        for author, label in authors.items()
        for _ in range(6)
    ]
    options = {**FROZEN, "data": write(tmp_path / "rows.jsonl", rows), "test": "0.2", "validation": "0.2"}
    shown = train_quickly(tmp_path / "run", from_model=source, lexical="auto", group_column="who", **options)
    judged = []
    usual = document_parts.Targets

    def watched(*args, **given):
        judged.append(usual(*args, **given))
        judged[-1].groups = given["groups"]
        return judged[-1]

    monkeypatch.setattr(document_parts, "Targets", watched)
    train_quickly(tmp_path / "again", from_model=source, lexical="auto", group_column="who", **options)
    (targets,) = judged
    assert len(set(targets.groups)) > 10 and "weighed on" in shown
    for learned, rows_judged in targets.folds:
        of = [{targets.groups[targets.judged[row]] for row in part} for part in (learned, rows_judged)]
        assert not of[0] & of[1]


def test_rare_labels(source, train_quickly, tmp_path):
    draw = random.Random(0)
    rows = [row_of("classify", draw) for _ in range(60)] + [{"text": "odd one", "label": "rare"}] * 2
    test = [row_of("classify", draw) for _ in range(20)] + [{"text": "odd one", "label": "rare"}]
    options = {**FROZEN, "data": write(tmp_path / "rows.jsonl", rows), "test": write(tmp_path / "test.jsonl", test)}
    for weights in ("none", "balanced"):
        folder = tmp_path / weights
        train_quickly(folder, from_model=source, lexical="auto", class_weights=weights, **options)
        assert metrics_of(folder)["accuracy"] > 0.5
    none, balanced = (
        Predictor(str(tmp_path / name), **CPU)({"text": ["odd sand"]})["probabilities"][0]["rare"]
        for name in ("none", "balanced")
    )
    assert balanced > none
