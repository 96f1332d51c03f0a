"""What is learnt and compared beside hidden states: masked words and labels."""

import copy
import math
from collections import namedtuple

import pytest
import torch
from datasets import Dataset
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertForSequenceClassification

from torch_linformer.adaptation.comparison import TeacherComparison
from torch_linformer.adaptation.distillation import Teacher
from torch_linformer.adaptation.objectives import Embeddings, Labels, MaskedWords, divergence, embed
from torch_linformer.encoders.heads import head_logits
from torch_linformer.errors import InputError

Logits = namedtuple("Logits", "logits")
SIZES = {
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 20,
    "max_position_embeddings": 10,
    "initializer_range": 0.3,
}
LENGTHS = [4, 9, 6, 10, 5, 7, 8, 10, 9, 3, 6, 7]


@pytest.fixture(scope="module")
def original(tokenizer):
    """A function: a small BERT with a head."""

    def make(model_class, **fields):
        torch.manual_seed(0)
        config = BertConfig(vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id, **SIZES, **fields)
        return model_class(config).double().eval()

    return make


@pytest.fixture(scope="module")
def read(tokenizer):
    """A function: windows of texts of random words."""
    generator = torch.Generator().manual_seed(5)
    texts = [torch.randint(10, len(tokenizer), (length,), generator=generator).tolist() for length in LENGTHS]
    rows = [{"document": n, "input_ids": ids, "length": len(ids)} for n, ids in enumerate(texts)]
    return Dataset.from_list(rows)


def compared(objective, model, windows, **columns):
    documents = Dataset.from_dict({"text": [""] * len(windows), "unknown": [[]] * len(windows), **columns})
    return TeacherComparison(Teacher(model, 10, 0, 0), objective, windows, documents, 3, "fp32")


def read_alone(model, batch):
    with torch.no_grad():
        return model.base_model(batch["input_ids"], batch["attention_mask"]).last_hidden_state


def test_the_divergence_is_that_of_the_choices():
    generator = torch.Generator().manual_seed(0)
    given, wanted = torch.randn(2, 4, 5, generator=generator)
    p, q = wanted.softmax(-1), given.softmax(-1)
    assert_close(divergence(given, wanted), (p * (p / q).log()).sum(-1).mean())
    assert divergence(wanted + 3, wanted).abs() < 1e-6


def test_a_comparison_puts_texts_back_in_order(original, tokenizer, read):
    """The original beside a copy of itself, in batches of 3 sorted by length."""
    model = original(BertForMaskedLM).base_model
    objective = Embeddings(model, tokenizer, seed=0)
    comparison = compared(objective, model, read)
    student = copy.deepcopy(model).train()
    scores = comparison.scores(student)
    assert student.training
    assert scores == pytest.approx({"cosine": 1, "rank_correlation": 1, "neighbours": 1})
    alone = read_alone(model, objective.collator(False)([read[4]]))
    assert_close(comparison.wanted["embeddings"][4], embed(alone, torch.ones(1, 5), "mean")[0])
    assert comparison.of_the_original() == {}


def test_masked_words_are_learnt_from_the_logits_at_them(original, tokenizer, read):
    model, other = original(BertForMaskedLM), original(BertForMaskedLM)
    objective = MaskedWords(model, tokenizer, seed=0)
    batch = objective.collator(True)([read[n] for n in range(8)])
    masked = batch["labels"] != -100
    assert masked.any(dim=1).sum() > 1 and not masked.all()
    hidden = read_alone(model, batch)
    noise = torch.randn(hidden.shape, generator=torch.Generator().manual_seed(1), dtype=hidden.dtype)
    given = head_logits(other, (hidden + noise)[masked])
    expected = F.kl_div(given.log_softmax(-1), model.cls(hidden[masked]).softmax(-1), reduction="none").sum(-1)
    assert_close(objective.loss(Logits(given), model, hidden, batch), expected.mean().float())
    nothing = {**batch, "labels": torch.full_like(batch["labels"], -100)}
    assert objective.loss(Logits(given[:0]), model, hidden, nothing) == 0


def test_the_loss_of_masked_words_is_the_mean_over_all_of_them(original, tokenizer, read):
    model = original(BertForMaskedLM)
    objective = MaskedWords(model, tokenizer, seed=1)
    comparison = compared(objective, model, read)
    nats, masked = 0.0, 0
    for window in read:
        batch = objective.collator(False)([window])
        chosen = batch["labels"] != -100
        logits = model.cls(read_alone(model, batch))[chosen]
        nats += F.cross_entropy(logits, batch["labels"][chosen], reduction="sum").item()
        masked += int(chosen.sum())
    assert masked > 3 and masked != len(read)
    own = comparison.of_the_original()
    assert own == pytest.approx({"masked_loss": nats / masked}, rel=1e-5)
    scores = comparison.scores(copy.deepcopy(model))
    assert scores == pytest.approx({"cosine": 1, "rank_correlation": 1, "neighbours": 1, **own}, rel=1e-5)


def test_every_epoch_masks_others_and_every_validation_the_same(original, tokenizer, read):
    objective = MaskedWords(original(BertForMaskedLM), tokenizer, seed=0)
    training, validation = objective.collator(True), objective.collator(False)
    rows = [read[n] for n in range(len(read))]
    drawn = [training(rows)["labels"], validation(rows)["labels"]]
    training.set_epoch(1)
    drawn.append(training(rows)["labels"])
    assert not any(torch.equal(drawn[a], drawn[b]) for a, b in ((0, 1), (0, 2), (1, 2)))
    assert torch.equal(drawn[1], objective.collator(False)(rows)["labels"])


def test_masked_words_need_a_mask_token(original, tokenizer):
    without = AutoTokenizer.from_pretrained(tokenizer.name_or_path)
    without.mask_token = None
    with pytest.raises(InputError, match="--task mlm needs a tokenizer with a mask token"):
        MaskedWords(original(BertForMaskedLM), without)


def classifier(original, several):
    problem = "multi_label_classification" if several else "single_label_classification"
    return original(BertForSequenceClassification, num_labels=3, problem_type=problem)


def literal_divergence(given, wanted, several):
    if several:
        p, q = wanted.sigmoid(), given.sigmoid()
        return (p * (p / q).log() + (1 - p) * ((1 - p) / (1 - q)).log()).mean()
    return (wanted.softmax(-1) * (wanted.log_softmax(-1) - given.log_softmax(-1))).sum(-1).mean()


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several"])
def test_labels_are_learnt_from_the_logits(original, tokenizer, read, several):
    model = classifier(original, several)
    objective = Labels(model, tokenizer, seed=0)
    batch = objective.collator(True)([read[n] for n in range(5)])
    hidden = read_alone(model, batch)
    wanted = model(batch["input_ids"], batch["attention_mask"]).logits
    given = wanted + torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1), dtype=wanted.dtype)
    loss = objective.loss(type("Outputs", (), {"logits": given}), model, hidden, batch)
    assert_close(loss, literal_divergence(given, wanted, several).float(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several"])
def test_agreement_and_accuracy(original, tokenizer, read, several):
    model = classifier(original, several)
    objective = Labels(model, tokenizer, seed=0)
    batches = [objective.collator(False)([window]) for window in read]
    logits = torch.cat([model(b["input_ids"], b["attention_mask"]).logits for b in batches])
    decided = logits > 0 if several else logits.argmax(-1)
    names = [[f"LABEL_{n}" for n in row.nonzero().flatten()] if several else f"LABEL_{row}" for row in decided]
    wrong = [[] if several else "LABEL_0", *names[1:]]
    comparison = compared(objective, model, read, label=wrong)
    headline = "micro_f1" if several else "accuracy"
    same = float(decided[0].sum() == 0 if several else decided[0] == 0)
    if not several:
        assert comparison.of_the_original()[headline] == pytest.approx((11 + same) / 12)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.bias[0] += 100  # always the first label
    scores = comparison.scores(other)
    expected = (decided == torch.zeros_like(decided)).double().mean()
    if several:
        expected = torch.cat([decided[:, :1].double(), torch.ones(12, 2)], dim=1).mean()
    assert scores["agreement"] == pytest.approx(float(expected))
    assert scores["cosine"] == pytest.approx(1)
    same = comparison.scores(copy.deepcopy(model))
    assert same["agreement"] == 1 and same["divergence"] == pytest.approx(0, abs=1e-6)
    assert set(objective.titles) >= set(scores)


@pytest.mark.parametrize("several", [False, True], ids=["one label", "several"])
def test_divergence_of_the_answers(original, tokenizer, read, several):
    model = classifier(original, several)
    objective = Labels(model, tokenizer, seed=0)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.classifier.bias[0] += 1.5
        batches = [objective.collator(False)([window]) for window in read]
        given, wanted = (torch.cat([each(**batch).logits for batch in batches]) for each in (other, model))
    scores = compared(objective, model, read).scores(other)
    assert scores["divergence"] == pytest.approx(float(literal_divergence(given, wanted, several)), rel=1e-4)


def test_without_labels_there_is_no_accuracy(original, tokenizer, read):
    model = classifier(original, several=False)
    scores = compared(Labels(model, tokenizer, seed=0), model, read).scores(copy.deepcopy(model))
    assert set(scores) == {"agreement", "divergence", "cosine", "rank_correlation", "neighbours"}
    assert not any(math.isnan(value) for value in scores.values())


def test_a_number_is_no_label(original, tokenizer):
    model = original(BertForSequenceClassification, num_labels=1)
    with pytest.raises(InputError, match="this model predicts a number"):
        Labels(model, tokenizer, seed=0)
