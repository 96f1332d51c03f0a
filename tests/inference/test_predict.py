import os

import pytest
import torch

from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference import document_model
from torch_linformer.inference.answer_files import PredictSettings, answer_files
from torch_linformer.inference.document_model import BATCHES_AHEAD, TaskPredictor
from torch_linformer.opening.load import load_model, load_tokenizer


@pytest.fixture(scope="module")
def build(classifier_run):
    """A function: the trained classifier with batches of a size."""
    path = str(classifier_run.folder)
    return lambda batch_size: TaskPredictor(
        load_model(path), load_tokenizer(path), device="cpu", precision="fp32", batch_size=batch_size
    )


@pytest.fixture(scope="module")
def texts(weather):
    return [Document(f"document {i}", text) for i, (text, _) in enumerate(weather(70, seed=9))]


def test_records(build, texts, quick):
    classifier = build(4)
    records = list(classifier.answers(texts))
    assert [record["document"] for record in records] == [where for where, *_ in texts]
    for record, (_, text, *_) in zip(records, texts, strict=True):
        assert list(record) == ["document", "label", "probabilities", "tokens", "cut"]
        probabilities = record["probabilities"]
        assert list(probabilities) == ["rain", "snow", "sun"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=3e-6)
        assert record["label"] == max(probabilities, key=probabilities.get)
        assert record["tokens"] == len(classifier.task.tokenizer(text).input_ids)
        assert record["cut"] == (record["tokens"] > quick["max_length"])
    assert {record["cut"] for record in records} == {True, False}
    assert len({record["label"] for record in records}) == 3


@pytest.mark.parametrize("kind", ["classifier_run", "lexical_run"])
def test_a_record_is_what_the_model_says(request, texts, kind):
    """A lexical head says it of all of a document, also where it is cut."""
    path = str(request.getfixturevalue(kind).folder)
    classifier = TaskPredictor(load_model(path), load_tokenizer(path), device="cpu", precision="fp32", batch_size=16)
    for record, (_, text, *_) in zip(classifier.answers(texts[:9]), texts, strict=False):
        inputs = classifier.task.tokenizer(text, truncation=True, return_tensors="pt")
        if kind == "lexical_run":
            inputs["whole_ids"] = classifier.task.tokenizer(text, return_tensors="pt").input_ids
        with torch.inference_mode():
            expected = classifier.model(**inputs).logits.softmax(-1)[0].tolist()
        assert list(record["probabilities"].values()) == pytest.approx(expected, abs=2e-6)


def test_batches_change_nothing(build, texts):
    by_one, by_sixteen = (list(build(size).answers(texts)) for size in (1, 16))
    for one, many in zip(by_one, by_sixteen, strict=True):
        assert {**one, "probabilities": None} == {**many, "probabilities": None}
        assert one["probabilities"] == pytest.approx(many["probabilities"], abs=5e-6)


def test_documents_are_read_as_they_are_needed(build):
    read = []

    def endless():
        while True:
            read.append(None)
            yield Document(f"number {len(read)}", "wet mud " * (1 + len(read) % 5))

    records = build(2).answers(endless())
    assert not read
    ahead = 2 * BATCHES_AHEAD
    assert next(records)["document"] == "number 1" and len(read) == ahead
    for _ in range(ahead - 1):
        next(records)
    assert len(read) == ahead
    assert next(records)["document"] == f"number {ahead + 1}" and len(read) == 2 * ahead


def test_few_long_documents_are_read_ahead(build, monkeypatch):
    monkeypatch.setattr(document_model, "GROUP_CHARACTERS", 50)
    read = []

    def endless():
        while True:
            read.append(None)
            yield Document(str(len(read)), "mud " * 5)

    records = build(2).answers(endless())
    assert [next(records)["document"] for _ in range(7)] == [str(n) for n in range(1, 8)]
    assert len(read) == 9  # three groups of three: two of twenty characters are not more than fifty


def test_batches_are_put_together_by_length(build, monkeypatch):
    classifier = build(2)
    shapes = []
    hook = classifier.model.register_forward_pre_hook(
        lambda module, args, given: shapes.append(given["input_ids"].shape), with_kwargs=True
    )
    lengths = [9, 1, 8, 2, 7, 3]
    list(classifier.answers(Document(str(n), "é" * n) for n in lengths))
    hook.remove()
    per_character = len(classifier.task.tokenizer.tokenize("é"))
    assert shapes == [(2, per_character * longest + 2) for longest in (2, 7, 9)]


def test_a_model_of_another_task(masked_run):
    path = str(masked_run.folder)
    with pytest.raises(InputError, match="LinformerForMaskedLM predicts nothing of a document: train a model on an"):
        TaskPredictor(load_model(path), load_tokenizer(path), device="cpu", precision="fp32", batch_size=1)


def test_windows_read_what_a_cut_leaves_out(classifier_run):
    """Words of one label up to the cut, of another for six times as long: all of it counts, or the beginning."""
    path = str(classifier_run.folder)
    text = "wet grey mud " * 4 + "ice cold white " * 24
    found = {}
    for overflow in ("cut", "windows"):
        predictor = TaskPredictor(
            load_model(path), load_tokenizer(path), overflow=overflow, device="cpu", precision="fp32", batch_size=4
        )
        (found[overflow],) = predictor.answers([Document("d", text)])
    assert (found["cut"]["label"], found["windows"]["label"]) == ("rain", "snow")
    assert found["cut"]["cut"] and not found["windows"]["cut"]
    assert found["cut"]["tokens"] == found["windows"]["tokens"]


def test_going_on_needs_a_file(classifier_run, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    settings = PredictSettings(model=str(classifier_run.folder), files=("-",))
    for output in (None, tmp_path / "pipe"):
        with pytest.raises(InputError, match="--resume goes on with a file: name it with --output"):
            answer_files(settings, output, resume=True)


def test_a_name_that_says_another_format_is_refused(classifier_run, tmp_path):
    settings = PredictSettings(model=str(classifier_run.folder), files=("-",))
    with pytest.raises(
        InputError, match=r"--output .*p\.csv: the name must end with \.jsonl or \.ndjson or \.json, or"
    ):
        answer_files(settings, tmp_path / "p.csv")
