"""What reads words in a model: a lexical head, or the lexical part of vectors, fitted, weighed, kept where it helps."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.models.lexical_parts import LexicalHead, LexicalVector
from torch_linformer.models.pieces import largest_products
from torch_linformer.opening import processes
from torch_linformer.tasks.lexical_fit import SEVERAL, HeadChoice, Labeled, buckets_for, choose_head, fit_head
from torch_linformer.tasks.lexical_vector_fit import fit_vector, surprise
from torch_linformer.tasks.linear_classifiers import MAX_DECISIONS
from torch_linformer.tasks.retrieval import SCALE, Retrieval, asked_of, judgments_of, queries_of
from torch_linformer.tasks.tallies import is_more_than_chance, paired_difference
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import WholeDocuments, multiply
from torch_linformer.training.document_trainer import DocumentTrainer
from torch_linformer.training.task_trainers import RetrievalTrainer
from torch_linformer.training.verdict import ENOUGH, Weighing, weigh_parts

MAX_TOKENS = 30_000_000  # of the documents that a head is fitted to; as many as are drawn
TOGETHER = 100  # documents tokenized at once
FITTING = 2.7  # times what tokenizing takes: 2,100 documents of 7,600 tokens on two cores of a CPU (2026-11-28)
MOST_SIMILARITIES = 4_000_000  # of validation documents and queries, by which the parts are weighed
AT_ONCE = 16  # rows whose words are counted


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


def fitted_vector(
    task: Retrieval, train: Dataset, encoder: DocumentEncoder, channels: int, width: int, seed: int
) -> LexicalVector:
    """A lexical part whose weights of tokens are learned from the training documents, whole, and their queries.

    Args:
        task: of the run.
        train: its documents.
        encoder: makes their token ids.
        channels: numbers of the vectors without it.
        width: numbers that it adds.
        seed: of the draw, where there are more documents than it needs, and of the learning.
    """

    def fitted() -> LexicalVector:
        lexical = LexicalVector(len(task.tokenizer), channels, width)
        drawn = train.select(np.random.default_rng(seed).permutation(len(train)))
        ids = [ids for _, some in drawn_documents(drawn, encoder) for ids in some]
        drawn = drawn.select(range(len(ids)))
        queries = ids if "label" in drawn.column_names else encoder.ids(queries_of(drawn))
        fit_vector(lexical, task.tokenizer, ids, queries, judgments_of(drawn), seed)
        return lexical

    return processes.on_main(fitted)


def weigh_vectors(
    trainer: RetrievalTrainer, lexical: LexicalVector, validation: Examples, test: Examples, *, always: bool
) -> Weighing:
    r"""Weigh the lexical part of vectors against the rest on the validation documents, and keep it where it helps.

    The factors a of the product of two sketches and b of that of two other vectors have the least

    .. math:: -\frac{1}{Q} \sum_i \ln \frac{\sum_{j \in R_i} e^{a\, y_i \cdot y_j + b\, v_i \cdot v_j}}
        {\sum_j e^{a\, y_i \cdot y_j + b\, v_i \cdot v_j}}

    for Q queries i and the documents :math:`R_i` that they should find; the share of the sketch is a / (a + b). Each
    part has to earn its place (:func:`~torch_linformer.training.verdict.weigh_parts`), and a lexical part with which
    nDCG@10 is worse by more than chance is left out, unless ``always`` keeps it.
    """
    task = trainer.task
    known_words, unseen_words = (sketches(lexical, examples) for examples in (validation, test))
    known, unseen = (np.asarray(trainer.answers_to(examples)) for examples in (validation, test))
    logits, relevant, candidates = _similarities(validation, known_words, known)
    (a, b), losses, gained = weigh_parts(
        logits,
        (SCALE, SCALE),
        partial(surprise, relevant=relevant, candidates=candidates),
        lambda before, after: len(relevant) * (before - after),
        len(relevant),
    )
    lexical.share = a / (a + b) if a else 0.0

    def scores(words: np.ndarray, rest: np.ndarray, examples: Examples) -> dict[str, dict[str, Any]]:
        beside = np.broadcast_to(
            words.reshape(len(words), *[1] * (rest.ndim - 2), -1), (*rest.shape[:-1], lexical.width)
        )
        both = np.concatenate([rest * (1 - lexical.share) ** 0.5, beside * lexical.share**0.5], axis=-1)
        vectors_of = {"lexical": words, "rest": rest, "both": both}
        return {name: task.scores(vectors, examples.documents) for name, vectors in vectors_of.items()}

    validated = scores(known_words, known, validation)
    both, rest = (validated[part]["tallies"][task.best_metric] for part in ("both", "rest"))
    gain, error = paired_difference(both, rest)
    kept = always or (gained > ENOUGH and not (gain < 0 and is_more_than_chance(gain, error)))
    if kept:
        task.vectors.lexical = lexical.to(trainer.args.device)
    tested = scores(unseen_words, unseen, test)
    return Weighing("lexical part", (a, b), losses, tested, gained, task.best_metric, kept)


def sketches(lexical: LexicalVector, examples: Examples) -> np.ndarray:
    """The lexical part of the vector of each document and query, all of which is read."""
    windows, rows_of_sketches = cast(Dataset, examples.windows), []
    for rows in windows.select_columns(["input_ids", "whole_ids"]).iter(AT_ONCE):
        ids = [torch.tensor(whole or row) for row, whole in zip(*rows.values(), strict=True)]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        rows_of_sketches.append(lexical.sketch(pad_sequence(ids, batch_first=True), mask))
    return torch.cat(rows_of_sketches).numpy()


def _similarities(
    examples: Examples, words: np.ndarray, rest: np.ndarray
) -> tuple[tuple[Tensor, Tensor], Tensor, Tensor]:
    """Products of queries and documents, by words and by the rest, ``(Q, D)``; which of the documents are relevant, and
    which are candidates: a query that is a document itself is none.
    """
    documents, judgments = len(examples.documents), judgments_of(examples.documents)
    asked = np.flatnonzero(judgments.wanted > 0)
    most = max(1, MOST_SIMILARITIES // documents)
    asked = np.random.default_rng(0).permutation(asked)[:most]
    relevant, candidates = map(torch.from_numpy, judgments.of(asked))
    parts = (asked_of(examples.documents, torch.from_numpy(vectors)) for vectors in (words, rest))
    by_words, by_rest = (largest_products(asking[asked], answering) for answering, asking in parts)
    return (by_words, by_rest), relevant, candidates
