import numpy as np
import pytest
import torch
from datasets import Dataset

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.tasks.whole_documents import Classification, MultiLabel, Regression

PAD = 0
TEXTS = ["the cat sat on the mat", "the cat", "a rat"]


@pytest.fixture(scope="module")
def tokenizer():
    return build_tokenizer("bytes", [], max_length=32)


def examples(task, tokenizer, labels, **options):
    documents = Dataset.from_dict({"text": TEXTS, "label": labels, "unknown": [["d"], [], ["c"]]})
    return task.examples(documents, DocumentEncoder(tokenizer, 16, **options))


# Batches


def test_labels_become_numbers_and_documents_are_padded(tokenizer):
    task = Classification(tokenizer, ["cat", "rat"])
    found = examples(task, tokenizer, ["cat", "cat", "rat"])
    assert found.windows["labels"][:] == [0, 0, 1] and found.num_tokens.tolist() == [24, 9, 7]
    batch = task.collator(training=True)([found.windows[0], found.windows[2]])
    assert batch["labels"].tolist() == [0, 1]
    assert batch["input_ids"].shape == (2, 16)
    assert batch["input_ids"][1].tolist()[:7] == found.windows[2]["input_ids"]
    assert (batch["input_ids"][1, 7:] == PAD).all() and batch["attention_mask"].sum(dim=1).tolist() == [16, 7]
    assert "labels" not in task.collate([{"input_ids": [1, 2]}])


def test_every_window_has_the_label_of_its_document(tokenizer):
    task = Classification(tokenizer, ["cat", "rat"])
    found = examples(task, tokenizer, ["rat", "cat", "rat"], overflow="windows", stride=4)
    assert found.windows["document"][:] == [0, 0, 1, 2] and found.windows["labels"][:] == [1, 1, 0, 1]
    assert found.num_tokens.tolist() == [24, 9, 7]


def test_targets_of_several_labels_and_of_numbers(tokenizer):
    several = MultiLabel(tokenizer, ["a", "b", "c"])
    found = examples(several, tokenizer, [["c", "a"], [], ["b"]])
    batch = several.collate([found.windows[i] for i in range(3)])
    assert batch["labels"].nan_to_num(7.0).tolist() == [[1, 0, 1], [0, 0, 0], [0, 1, 7.0]]  # NaN: unknown
    assert batch["labels"].is_floating_point()
    number = Regression(tokenizer, center=10.0, scale=4.0)
    found = examples(number, tokenizer, [10.0, 14.0, 2.0])
    assert number.collate([found.windows[i] for i in range(3)])["labels"].tolist() == [0.0, 1.0, -2.0]


# Answers


def test_answers_of_windows_are_averaged_by_their_tokens(tokenizer):
    task = Classification(tokenizer, ["cat", "rat"])
    windows = {"document": [0, 0, 1], "length": [6, 2, 5]}
    reduced = task.reduce(torch.tensor([[2.0, 0.0], [-3.0, 1.0], [0.0, 0.0]]), None)
    answers = task.answers(reduced.numpy(), windows, {})
    first = [1 / (1 + np.exp(-2)), 1 / (1 + np.exp(4))]
    assert answers[0].tolist() == pytest.approx(
        [(6 * first[0] + 2 * first[1]) / 8, 1 - (6 * first[0] + 2 * first[1]) / 8]
    )
    assert answers[1].tolist() == [0.5, 0.5]
    # A list of single rows, as prediction has them, is the same.
    assert np.array_equal(task.answers(list(reduced.numpy()), windows, {}), answers)


def test_scores_of_a_classifier(tokenizer):
    task = Classification(tokenizer, ["cat", "rat"])
    documents = Dataset.from_dict({"label": ["cat", "rat", "rat"]})
    scores = task.scores(np.array([[0.9, 0.1], [0.2, 0.8], [0.6, 0.4]]), documents)
    assert scores["accuracy"] == pytest.approx(2 / 3)
    assert scores["confusion_matrix"] == [[1, 0], [1, 1]]
    assert task.larger_is_better and task.best_metric in scores and set(task.headline) <= set(scores)
    assert task.describe(np.array([0.2, 0.8]), Document("", "")) == {
        "label": "rat",
        "probabilities": {"cat": 0.2, "rat": 0.8},
    }


def test_scores_of_several_labels(tokenizer):
    task = MultiLabel(tokenizer, ["a", "b"])
    documents = Dataset.from_dict({"label": [["a"], ["a", "b"], ["b"]], "unknown": [[]] * 3})
    scores = task.scores(np.array([[0.9, 0.6], [0.7, 0.4], [0.1, 0.51]]), documents)
    assert scores["micro_f1"] == pytest.approx(2 * 3 / (4 + 4))  # 3 right of 4 predicted and 4 true
    assert task.best_metric in scores and set(task.headline) <= set(scores)
    probabilities = task.reduce(torch.tensor([[0.0, 2.0]]), None)
    assert probabilities.tolist() == [pytest.approx([0.5, 1 / (1 + np.exp(-2))])]
    described = task.describe(np.array([0.5, 0.6]), Document("", ""))
    assert described == {"labels": ["b"], "probabilities": {"a": 0.5, "b": 0.6}}  # more than a half
    task.tune(np.array([[0.2, 0.1], [0.3, 0.2], [0.1, 0.2]]), documents)  # labels are those from 0.2 on
    assert task.threshold == pytest.approx(0.15)
    assert task.describe(np.array([0.16, 0.14]), Document("", ""))["labels"] == ["a"]
    assert task.scores(np.array([[0.2, 0.1], [0.3, 0.2], [0.1, 0.2]]), documents)["exact_match"] == 1.0


def test_scores_of_numbers_are_in_their_own_unit(tokenizer):
    task = Regression(tokenizer, center=100.0, scale=20.0)
    reduced = task.reduce(torch.tensor([[0.5], [-1.0]]), None).numpy()
    answers = task.answers(reduced, {"document": [0, 1], "length": [3, 9]}, {})
    assert answers.tolist() == [110.0, 80.0]
    scores = task.scores(answers, Dataset.from_dict({"label": [112.0, 81.0]}))
    assert scores["mse"] == pytest.approx((4 + 1) / 2) and not task.larger_is_better
    assert task.describe(answers[0], Document("", "")) == {"value": 110.0}


def test_the_unit_ends_up_in_the_model(tokenizer):
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=260,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
        max_position_embeddings=8,
        k=4,
        **Regression(tokenizer).config,
    )
    model = LinformerForSequenceClassification(config).eval()
    ids = torch.randint(4, 260, (3, 8))
    task = Regression(tokenizer, center=100.0, scale=20.0)
    model.classifier.bias.data.fill_(0.5)
    before = model(ids).logits
    task.finish(model)
    torch.testing.assert_close(model(ids).logits, before * 20 + 100)
    assert (task.center, task.scale) == (0.0, 1.0)  # nothing is left to be undone
    assert model.config.problem_type == "regression" and model.num_labels == 1
