"""What reads words in a classifier: a lexical head, fitted, weighed, and kept where it helps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.models.lexical_parts import LexicalHead
from torch_linformer.opening import processes
from torch_linformer.tasks.lexical_fit import SEVERAL, HeadChoice, Labeled, buckets_for, choose_head, fit_head
from torch_linformer.tasks.linear_classifiers import MAX_DECISIONS
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import WholeDocuments, multiply
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.verdict import ENOUGH, Weighing, weigh_parts

MAX_TOKENS = 30_000_000  # of the documents that a head is fitted to; as many as are drawn
TOGETHER = 100  # documents tokenized at once
FITTING = 2.7  # times what tokenizing takes: 2,100 documents of 7,600 tokens on two cores of a CPU (2026-11-28)


@dataclass(frozen=True)
class HeadFits:
    """A lexical head before it is in a model: what the validation documents choose, and the head in two stages.

    Attributes:
        choice: how both are fitted.
        first: fitted to the training documents, so that the validation documents can judge it.
        last: fitted to the validation documents too, once nothing is left to judge.
    """

    choice: HeadChoice
    first: LexicalHead
    last: LexicalHead


def fit_heads(
    config: LinformerConfig,
    task: WholeDocuments,
    train: Dataset,
    validation: Dataset,
    encoder: DocumentEncoder,
    *,
    seed: int,
    balanced: bool,
) -> HeadFits:
    """Choose and fit the lexical head of a classifier, which reads whole documents.

    Args:
        config: of the classifier, which need not be trained.
        task: what it learns.
        train: documents to learn from, and
        validation: those that choose.
        encoder: of the documents.
        seed: of the order in which documents are drawn.
        balanced: give rare labels more weight, where a document has one label.
    """

    def fits() -> HeadFits:
        problem, labels = str(config.problem_type), len(config.label_names)
        known, judging = (_labeled(part, task, encoder, problem, labels, seed) for part in (train, validation))
        sizes = config.vocab_size, labels
        choice = choose_head(task.tokenizer, sizes, known, judging, problem, balanced=balanced)
        both = Labeled([*known.documents, *judging.documents], np.concatenate([known.known, judging.known]))
        buckets = buckets_for(sum(map(len, both.documents)), *sizes) if choice.pairs else 0
        first, last = (LexicalHead(config.vocab_size, buckets, labels) for _ in range(2))
        for head, learned in ((first, known), (last, both)):
            fit_head(head, task.tokenizer, learned, problem, choice, balanced=balanced)
        return HeadFits(choice, first, last)

    return processes.on_main(fits)


def _labeled(
    documents: Dataset, task: WholeDocuments, encoder: DocumentEncoder, problem: str, labels: int, seed: int
) -> Labeled:
    """Documents in random order, as many as a head is fitted to, with what is known of them."""
    order = np.random.default_rng(seed).permutation(len(documents))
    most = MAX_DECISIONS // labels if problem == SEVERAL else len(documents)
    ids: list[list[int]] = []
    for _, more in drawn_documents(documents.select(order), encoder):
        ids += more
        if len(ids) > most:
            break
    return Labeled(ids, np.asarray(task.known(documents))[order[: len(ids)]])


def drawn_documents(documents: Dataset, encoder: DocumentEncoder) -> Iterator[tuple[list[str], list[list[int]]]]:
    """Texts and token ids of whole documents, some at a time, until they have as many tokens as a head is fitted to."""
    tokens = 0
    for start in range(0, len(documents), TOGETHER):
        texts = documents[start : start + TOGETHER]["text"]
        ids = encoder.ids(texts)
        yield texts, ids
        tokens += sum(map(len, ids))
        if tokens > MAX_TOKENS:
            return


def fitting_seconds(num_tokens: np.ndarray, seconds: float) -> float:
    """About what a head takes for documents of so many tokens, each tokenized in ``seconds``."""
    return FITTING * len(num_tokens) * seconds * min(1.0, MAX_TOKENS / int(num_tokens.sum()))


def give_head(model: LinformerForSequenceClassification, task: WholeDocuments, head: LexicalHead) -> None:
    """Make a lexical head a part of a classifier."""
    model.config.lexical_buckets = head.num_buckets
    model.lexical = head.to(device=model.device, dtype=model.dtype)
    task.lexical = True


@torch.no_grad()
def head_answers(trainer: DocumentTrainer, head: LexicalHead, examples: Examples) -> np.ndarray:
    """The answers of a head alone to some documents, all of which is read."""
    rows = cast(Dataset, examples.windows).select_columns(["input_ids", "whole_ids"])
    logits = [head(torch.tensor([row["whole_ids"] or row["input_ids"]])) for row in cast(Any, rows)]
    return cast(np.ndarray, trainer.answers_of_logits(torch.cat(logits), examples))


def weigh(
    trainer: DocumentTrainer, validation: Examples, test: Examples, last: LexicalHead, *, always: bool
) -> Weighing:
    """Weigh a model's lexical head against the rest of it on the validation documents, and write the weights into both.

    The factors a of the head's logits z and b of the others u have the least :math:`L(a z + b u)`, the loss of the
    task, plus :math:`((a - 1)^2 + b^2) / n` for n windows, and each part has to earn its place (:func:`weigh_parts`).
    A head with which the score is worse, and that by more than chance, is taken away too; ``always`` keeps it. The loss
    comes first: it is calmer on few documents, and the score has already picked the checkpoint.

    Once that is decided the head is the ``last`` one, which has learned the validation documents too, and the test
    documents are read.
    """
    model, task = cast(LinformerForSequenceClassification, trainer.model), cast(WholeDocuments, trainer.task)
    known, labels = trainer.parts_of(validation), torch.tensor(validation.windows["labels"][:])
    (a, b), losses, gained = weigh_parts(
        known, (1.0, 0.0), lambda logits: model.loss_of(logits, labels), partial(_gain, model, labels), len(labels)
    )
    both = a * known.lexical + b * known.rest
    kept = always or (gained > ENOUGH and not _is_worse(trainer, validation, both, known.rest))
    give_head(model, task, last)
    unseen = trainer.parts_of(test)
    both_unseen = a * unseen.lexical + b * unseen.rest
    if kept:
        multiply(last, a)
        multiply(model.classifier, b)
    else:
        model.lexical, model.config.lexical_buckets, task.lexical = None, None, False
    by_part = {
        "lexical": (known.lexical, unseen.lexical),
        "rest": (known.rest, unseen.rest),
        "both": (both, both_unseen),
    }
    scores = {}
    for name in sorted(by_part, key=lambda name: name == ("both" if kept else "rest")):  # the model's own tunes it last
        validated, tested = by_part[name]
        task.tune(trainer.answers_of_logits(validated, validation), validation.documents)
        scores[name] = task.scores(trainer.answers_of_logits(tested, test), test.documents)
    logits = by_part["both" if kept else "rest"]
    return Weighing("lexical head", (a, b), losses, scores, gained, task.best_metric, kept, logits)


def _gain(model: LinformerForSequenceClassification, labels: Tensor, before: float, after: float) -> float:
    """How much a lower loss adds to the logarithm of the likelihood of the validation documents."""
    if model.config.problem_type == "regression":
        return len(labels) / 2 * math.log(max(before, 1e-30) / max(after, 1e-30))
    return int(labels.isfinite().sum()) * (before - after)


def _is_worse(trainer: DocumentTrainer, examples: Examples, both: Tensor, rest: Tensor) -> bool:
    """Whether ``both`` lower the score that picks the checkpoint by more than chance."""
    task = trainer.task
    tallies = []
    for logits in (both, rest):
        answers = trainer.answers_of_logits(logits, examples)
        task.tune(answers, examples.documents)
        tallies.append(task.scores(answers, examples.documents)["tallies"][task.best_metric])
    gain, error = paired_difference(*tallies)
    return (gain < 0) == task.larger_is_better and is_more_than_chance(gain, error)
