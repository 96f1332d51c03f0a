"""A lexical head for a trained classifier: fitted, weighed against the rest of the model, and kept where it helps."""

import math
from collections.abc import Iterator
from functools import partial
from typing import cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.opening import processes
from torch_linformer.tasks.floors import MAX_DECISIONS, pairs_tell
from torch_linformer.tasks.lexical_fit import buckets_for, fit_head
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import WholeDocuments, multiply
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.verdict import CHANCE
from torch_linformer.training.weighing import ENOUGH, Weighing, weigh_parts

MAX_TOKENS = 30_000_000  # of the documents that a head is fitted to; as many as are drawn
TOGETHER = 100  # documents tokenized at once
DRAWS = 100  # of the validation documents


def add_lexical_head(
    model: LinformerForSequenceClassification,
    task: WholeDocuments,
    train: Dataset,
    encoder: DocumentEncoder,
    *,
    seed: int,
    balanced: bool,
) -> None:
    """Give a trained classifier a lexical head that is fitted to its training documents, whole."""
    head = processes.on_main(lambda: _fitted_head(model.config, task, train, encoder, seed, balanced))
    model.config.lexical_buckets = len(head.pairs)
    model.lexical = head.to(device=model.device, dtype=model.dtype)
    task.lexical = True


def _fitted_head(
    config: LinformerConfig, task: WholeDocuments, train: Dataset, encoder: DocumentEncoder, seed: int, balanced: bool
) -> LexicalHead:
    problem, labels = str(config.problem_type), len(config.label_names)
    order = np.random.default_rng(seed).permutation(len(train))
    most = MAX_DECISIONS // labels if problem == "multi_label_classification" else len(train)
    texts: list[str] = []
    documents: list[list[int]] = []
    for drawn, ids in drawn_documents(train.select(order), encoder):
        texts += drawn
        documents += ids
        if len(documents) > most:
            break
    tokens = sum(map(len, documents))
    buckets = buckets_for(tokens, config.vocab_size, labels) if pairs_tell(texts) else 0
    head = LexicalHead(config.vocab_size, buckets, labels)
    known = np.asarray(task.known(train))[order[: len(documents)]]
    fit_head(head, task.tokenizer, documents, known, problem, balanced=balanced)
    return head


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


def weigh(trainer: DocumentTrainer, validation: Examples, test: Examples, *, always: bool) -> Weighing:
    """Weigh a model's lexical head against the rest of it on the validation documents, and write the weights into both.

    The factors a of the head's logits z and b of the others u have the least :math:`L(a z + b u)`, the loss of the
    task, plus :math:`((a - 1)^2 + b^2) / n` for n windows, and each part has to earn its place (:func:`weigh_parts`).
    A head with which the score is worse, and that by more than chance, is taken away too; ``always`` keeps it. The loss
    comes first: it is calmer on few documents, and the score has already picked the checkpoint.
    """
    model, task = cast(LinformerForSequenceClassification, trainer.model), cast(WholeDocuments, trainer.task)
    known, unseen = (trainer.parts_of(examples) for examples in (validation, test))
    labels = torch.tensor(validation.windows["labels"][:])

    (a, b), losses, gained = weigh_parts(
        known, (1.0, 0.0), lambda logits: model.loss_of(logits, labels), partial(_gain, model, labels), len(labels)
    )
    both, unseen_both = (a * parts.lexical + b * parts.rest for parts in (known, unseen))
    kept = always or (gained > ENOUGH and not _is_worse(trainer, validation, both, known.rest))
    if kept:
        multiply(cast(LexicalHead, model.lexical), a)
        multiply(model.classifier, b)
    else:
        model.lexical, model.config.lexical_buckets, task.lexical = None, None, False
    found = {"lexical": (known.lexical, unseen.lexical), "rest": (known.rest, unseen.rest), "both": (both, unseen_both)}
    scores = {}
    for name in sorted(found, key=lambda name: name == ("both" if kept else "rest")):  # the model's own tunes it last
        validated, tested = found[name]
        task.tune(trainer.answers_of_logits(validated, validation), validation.documents)
        scores[name] = task.scores(trainer.answers_of_logits(tested, test), test.documents)
    return Weighing("lexical head", (a, b), losses, scores, gained, task.best_metric, kept)


def _gain(model: LinformerForSequenceClassification, labels: Tensor, before: float, after: float) -> float:
    """How much a lower loss adds to the logarithm of the likelihood of the validation documents."""
    if model.config.problem_type == "regression":
        return len(labels) / 2 * math.log(max(before, 1e-30) / max(after, 1e-30))
    return labels.numel() * (before - after)


def _is_worse(trainer: DocumentTrainer, examples: Examples, both: Tensor, rest: Tensor) -> bool:
    """Whether ``both`` lower the score that picks the checkpoint, by more than drawing the documents again does."""
    task, number, draws = trainer.task, len(examples.documents), np.random.default_rng(0)
    drawn = [draws.integers(number, size=number) for _ in range(DRAWS)]
    samples = [(rows, examples.documents.select(rows)) for rows in drawn]
    found = []
    for logits in (both, rest):
        answers = trainer.answers_of_logits(logits, examples)
        task.tune(answers, examples.documents)
        found.append(np.array([task.scores(answers[rows], sample)[task.best_metric] for rows, sample in samples]))
    gains = (found[0] - found[1]) * (1 if task.larger_is_better else -1)
    return float(np.mean(gains)) < -CHANCE * float(np.std(gains))
