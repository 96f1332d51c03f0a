import pytest
import torch

from torch_linformer.training.errors import InputError
from torch_linformer.training.folder import load_model, load_tokenizer
from torch_linformer.training.predict import BATCHES_AHEAD, Classifier, Skipped, documents
from torch_linformer.training.readers import Row


@pytest.fixture(scope="module")
def build(classifier_run):
    """A function: the trained classifier with batches of a size."""
    path = str(classifier_run.folder)
    return lambda batch_size: Classifier(
        load_model(path), load_tokenizer(path), device="cpu", precision="fp32", batch_size=batch_size
    )


@pytest.fixture(scope="module")
def texts(weather):
    return [(f"document {i}", text) for i, (text, _) in enumerate(weather(70, seed=9))]


def test_records(build, texts, quick):
    classifier = build(4)
    records = list(classifier.predict(texts))
    assert [record["document"] for record in records] == [where for where, _ in texts]
    for record, (_, text) in zip(records, texts, strict=True):
        assert list(record) == ["document", "label", "probabilities", "tokens", "cut"]
        probabilities = record["probabilities"]
        assert list(probabilities) == ["rain", "snow", "sun"]
        assert sum(probabilities.values()) == pytest.approx(1, abs=3e-6)
        assert record["label"] == max(probabilities, key=probabilities.get)
        assert record["tokens"] == len(classifier.tokenizer(text).input_ids)
        assert record["cut"] == (record["tokens"] > quick["max_length"])
    assert {record["cut"] for record in records} == {True, False}
    assert len({record["label"] for record in records}) == 3


def test_a_record_is_what_the_model_says(build, texts):
    classifier = build(16)
    records = list(classifier.predict(texts[:9]))
    for record, (_, text) in zip(records, texts, strict=False):
        inputs = classifier.tokenizer(text, truncation=True, return_tensors="pt")
        with torch.inference_mode():
            expected = classifier.model(**inputs).logits.softmax(-1)[0].tolist()
        assert list(record["probabilities"].values()) == pytest.approx(expected, abs=2e-6)


def test_batches_change_nothing(build, texts):
    by_one, by_sixteen = (list(build(size).predict(texts)) for size in (1, 16))
    for one, many in zip(by_one, by_sixteen, strict=True):
        assert {**one, "probabilities": None} == {**many, "probabilities": None}
        assert one["probabilities"] == pytest.approx(many["probabilities"], abs=5e-6)


def test_documents_are_read_as_they_are_needed(build):
    read = []

    def endless():
        while True:
            read.append(None)
            yield f"number {len(read)}", "wet mud " * (1 + len(read) % 5)

    records = build(2).predict(endless())
    assert not read
    ahead = 2 * BATCHES_AHEAD
    assert next(records)["document"] == "number 1" and len(read) == ahead
    for _ in range(ahead - 1):
        next(records)
    assert len(read) == ahead
    assert next(records)["document"] == f"number {ahead + 1}" and len(read) == 2 * ahead


def test_batches_are_put_together_by_length(build, monkeypatch):
    classifier = build(2)
    shapes = []
    hook = classifier.model.register_forward_pre_hook(lambda module, args: shapes.append(args[0].shape))
    lengths = [9, 1, 8, 2, 7, 3]
    list(classifier.predict((str(n), "é" * n) for n in lengths))
    hook.remove()
    per_character = len(classifier.tokenizer.tokenize("é"))
    assert shapes == [(2, per_character * longest + 2) for longest in (2, 7, 9)]


def test_a_model_of_another_task(masked_run):
    path = str(masked_run.folder)
    with pytest.raises(InputError, match="LinformerForMaskedLM predicts no labels: give a model trained with"):
        Classifier(load_model(path), load_tokenizer(path), device="cpu", precision="fp32", batch_size=1)


def rows(*values, column="text"):
    return [Row({"id": str(i), column: value}, f"row {i}") for i, value in enumerate(values, start=1)]


def test_documents_without_text_are_counted():
    skipped = Skipped()
    found = list(documents(rows("a", "", None, " \n", "b"), "x.csv", None, skipped))
    assert found == [("row 1", "a"), ("row 5", "b")] and skipped.empty == 3
    assert list(documents([], "x.csv", None, skipped)) == []


def test_the_text_column_is_recognised_or_named():
    assert list(documents(rows("a", column="review"), "x.csv", None, Skipped())) == [("row 1", "a")]
    assert list(documents(rows("a"), "x.csv", "id", Skipped())) == [("row 1", "1")]
    with pytest.raises(
        InputError, match=r"^x\.csv: no column 'body', which --text-column names; columns: 'id', 'text'"
    ):
        list(documents(rows("a"), "x.csv", "body", Skipped()))
