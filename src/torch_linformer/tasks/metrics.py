"""What a model is worth: its scores, from the true answers and the predicted ones, ready for JSON.

A score whose denominator is zero is 0. ``per_label`` is a list of ``label``, ``precision``, ``recall``, ``f1`` and
``support``; ``macro_f1`` is the mean F1 of the labels that occur, true or predicted.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from scipy.stats import pearsonr, spearmanr
from seqeval.metrics import sequence_labeling as entities
from sklearn.metrics import (
    accuracy_score,
    confusion_matrix,
    mean_absolute_error,
    mean_squared_error,
    precision_recall_fscore_support,
    r2_score,
)

from torch_linformer.data.words import words_of

TAG_PREFIX = re.compile("[BIESLUM]-")  # of IOB, IOBES, BILOU and BMES
_BARE_TAGS = frozenset("BIESLUMO")  # of entities without types
_IOBES = str.maketrans("LUM", "ESI")  # the letters that BILOU and BMES use for the same things
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)

Scores = dict[str, Any]


def classification_metrics(labels: Sequence[int], predictions: Sequence[int], names: Sequence[str]) -> Scores:
    """Score predicted labels against the true ones; both are indices into ``names``.

    Returns:
        ``accuracy``, ``macro_f1``, ``per_label`` and ``confusion_matrix`` (rows true, columns predicted).
    """
    true, predicted = np.asarray(labels, dtype=np.int64), np.asarray(predictions, dtype=np.int64)
    if true.ndim != 1 or true.shape != predicted.shape or not true.size:
        expected = "two equally long lists with at least one entry"
        raise ValueError(f"labels and predictions must be {expected}, got {true.shape} and {predicted.shape}")
    both = np.concatenate([true, predicted])
    if both.min() < 0 or both.max() >= len(names):
        raise ValueError(f"labels must be 0 to {len(names) - 1}, got {both.min()} to {both.max()}")
    ids = range(len(names))
    # Not classification_report: in its dictionary a label named "accuracy" would hide a score.
    scores = precision_recall_fscore_support(true, predicted, labels=ids, average=None, zero_division=0)
    return {
        "accuracy": float(accuracy_score(true, predicted)),
        "macro_f1": float(scores[2][np.unique(both)].mean()),
        "per_label": _per_label(names, scores),
        "confusion_matrix": confusion_matrix(true, predicted, labels=ids).tolist(),
    }


def tagging_metrics(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> Scores:
    """Score the predicted tags of each document's tokens against the true ones, by the entities they spell.

    Entities are found as seqeval finds them by default, and conlleval.pl of CoNLL-2000 before it: an entity
    begins at B-, and at I- after "O" or after another type. One is right if its first token, its last token
    and its type all are. Tags of BILOU and BMES are read as IOBES. With h entities right of p predicted and t
    true ones, precision = h / p, recall = h / t and F1 = 2 h / (p + t).

    If no tag has a prefix (parts of speech, for example) each token whose tag is not "O" counts as an entity.

    Returns:
        ``accuracy`` (share of the tokens whose tag is right), ``f1``, ``precision``, ``recall`` (of all entities
        together), ``macro_f1`` and ``per_label``, both by type.
    """
    lengths = [[len(tags) for tags in documents] for documents in (true, predicted)]
    if lengths[0] != lengths[1] or not sum(lengths[0]):
        raise ValueError(
            "true and predicted must hold as many tags for each document, and one at least;"
            f" got {sum(lengths[0])} and {sum(lengths[1])} for {len(true)} and {len(predicted)} documents"
        )
    tags = {tag for documents in (true, predicted) for document in documents for tag in document}
    spelled = any(map(TAG_PREFIX.match, tags)) or ("B" in tags and tags <= _BARE_TAGS)
    as_entity = as_iobes if spelled else _as_single_token
    sides = [[[as_entity(tag) for tag in document] for document in documents] for documents in (true, predicted)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns of every tag without a prefix, and of scores of nothing
        names = sorted({name for side in sides for name, *_ in entities.get_entities(side)})
        scores = entities.precision_recall_fscore_support(*sides, average=None, zero_division=0)
        precision, recall, f1, _ = entities.precision_recall_fscore_support(*sides, average="micro", zero_division=0)
    return {
        "accuracy": entities.accuracy_score(true, predicted),
        "f1": float(f1),
        "precision": float(precision),
        "recall": float(recall),
        "macro_f1": float(scores[2].mean()) if names else 0.0,
        "per_label": _per_label(names, scores),
    }


def answer_metrics(true: Sequence[Sequence[str]], predicted: Sequence[str]) -> Scores:
    """Score predicted answers against the true ones, as the evaluation of SQuAD 2.0 does (arXiv 1806.03822).

    Both are put into lower case and lose punctuation, the articles a, an and the, and surplus white space.
    Then an exact match is equality, and F1 = 2 h / (p + t), where of the p predicted and t true words h are
    shared (counted as often as both have them). Of several true answers the best score counts. A question
    without one asks for "": any words at all score 0.

    Args:
        true: the true answers to each question; empty if it has none.
        predicted: one answer a question; "" for none.

    Returns:
        ``exact_match`` and ``f1``, means over the questions, from 0 to 1. If some questions have answers and some
        have none, also ``has_answer_exact_match`` and ``has_answer_f1`` of the former and ``no_answer_accuracy`` of
        the latter.
    """
    if len(true) != len(predicted) or not len(true):
        raise ValueError(f"each question needs true answers and a predicted one, got {len(true)} and {len(predicted)}")
    scores = np.array([_answer_scores(golds, answer) for golds, answer in zip(true, predicted, strict=True)])
    exact_match, f1 = scores.mean(axis=0).tolist()
    means = {"exact_match": exact_match, "f1": f1}
    answered = np.array([len(golds) > 0 for golds in true])
    if answered.any() and not answered.all():
        means["has_answer_exact_match"], means["has_answer_f1"] = scores[answered].mean(axis=0).tolist()
        means["no_answer_accuracy"] = float(scores[~answered, 0].mean())
    return means


def regression_metrics(true: Sequence[float], predicted: Sequence[float] | np.ndarray) -> Scores:
    """Score predicted numbers against the true ones.

    With errors e = predicted - true: mse is the mean of e², mae that of |e|, r2 = 1 - Σ e² / Σ (true - mean)².
    A correlation with a constant is not defined, nor is r2 if the true numbers are one constant: both are 0 here.
    A prediction that is not finite makes every score NaN.

    Returns:
        ``mse``, ``mae``, ``spearman``, ``pearson`` (the correlations) and ``r2``.
    """
    targets, predictions = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if targets.ndim != 1 or targets.shape != predictions.shape or not targets.size:
        shapes = f"{targets.shape} and {predictions.shape}"
        raise ValueError(f"true and predicted must be two equally long lists with at least one entry, got {shapes}")
    if not np.isfinite(predictions).all():
        return dict.fromkeys(("mse", "mae", "spearman", "pearson", "r2"), math.nan)
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that has nearly diverged
        return {
            "mse": float(mean_squared_error(targets, predictions)),
            "mae": float(mean_absolute_error(targets, predictions)),
            "spearman": _correlation(spearmanr, targets, predictions),
            "pearson": _correlation(pearsonr, targets, predictions),
            "r2": float(r2_score(targets, predictions)) if np.ptp(targets) else 0.0,
        }


def multilabel_metrics(true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> Scores:
    """Score predicted sets of labels against the true ones.

    F1 = 2 h / (p + t), where of p predicted and t true labels h are right.

    Args:
        true: 1 where the document has the label, 0 where not, NaN where that is unknown, of shape (documents, labels).
        predicted: 1 or 0 of the predicted labels; where the truth is unknown they do not count.
        names: the labels' names.

    Returns:
        ``micro_f1`` (over all documents and labels together), ``macro_f1``, ``exact_match`` (share of the documents
        whose labels are all right) and ``per_label``.
    """
    targets, predictions = of_known(true, predicted)
    if targets.ndim != 2 or targets.shape != predictions.shape or not targets.size or targets.shape[1] != len(names):
        raise ValueError(
            f"true and predicted must be of shape (documents, {len(names)}) with at least one of each,"
            f" got {targets.shape} and {predictions.shape}"
        )
    if not np.isin([targets, predictions], (0, 1)).all():
        raise ValueError("true and predicted must hold nothing but 0 and 1; round what is predicted first")
    # With one more label, which no document has: scikit-learn takes a single column for one label a document.
    sides = [np.pad(side.astype(int), ((0, 0), (0, 1))) for side in (targets, predictions)]
    ids = range(len(names))
    scores = precision_recall_fscore_support(*sides, labels=ids, average=None, zero_division=0)
    occur = (targets.any(axis=0)) | (predictions.any(axis=0))
    return {
        "micro_f1": float(precision_recall_fscore_support(*sides, average="micro", zero_division=0)[2]),
        "macro_f1": float(scores[2][occur].mean()) if occur.any() else 0.0,
        "exact_match": float(accuracy_score(*sides)),
        "per_label": _per_label(names, scores),
    }


def of_known(true: Any, predicted: Any) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted labels, both 0 where the true one is unknown (NaN): neither right nor wrong."""
    targets, predictions = np.asarray(true), np.asarray(predicted)
    unknown = np.isnan(targets)
    if unknown.shape == predictions.shape and unknown.any():
        return np.where(unknown, 0, targets), np.where(unknown, 0, predictions)
    return targets, predictions


def language_model_metrics(total_nll_nats: float, tokens: int, num_bytes: int) -> Scores:
    """Perplexity exp(nll / tokens) and bits per byte nll / (ln 2 · bytes) of a language model.

    Args:
        total_nll_nats: negative log-likelihood, in nats, summed over the tokens that were predicted.
        tokens: how many there were.
        num_bytes: UTF-8 bytes they stand for, which makes different tokenizers comparable.

    Returns:
        ``perplexity`` (infinite where a float cannot hold it) and ``bits_per_byte``.
    """
    if tokens < 1 or num_bytes < 1:
        raise ValueError(f"nothing was predicted: got {tokens} tokens of {num_bytes} bytes")
    return {
        "perplexity": perplexity(total_nll_nats / tokens),
        "bits_per_byte": total_nll_nats / math.log(2) / num_bytes,
    }


def perplexity(nats_per_token: float) -> float:
    """exp of the mean negative log-likelihood; infinite where a float cannot hold it."""
    with np.errstate(over="ignore"):
        return float(np.exp(nats_per_token))


def target_metrics(true: Sequence[str], written: Sequence[str]) -> Scores:
    """Score written texts against the true ones.

    chrF (sacrebleu: F2 of the n-grams of 1 to 6 characters, over all texts together) and ROUGE-L (rouge-score: F1 of
    the longest common subsequence of words in lower case, the mean over the texts; words as in
    :func:`~torch_linformer.data.words.words_of`).

    Returns:
        ``chrf`` and ``rouge_l``, from 0 to 1.
    """
    if len(true) != len(written) or not len(true):
        raise ValueError(f"each true text needs a written one, got {len(true)} and {len(written)}")
    from rouge_score.rouge_scorer import RougeScorer  # takes a second or two
    from sacrebleu.metrics.chrf import CHRF

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    rouge = [scorer.score(target, text)["rougeL"].fmeasure for target, text in zip(true, written, strict=True)]
    chrf = CHRF().corpus_score(list(written), [list(true)]).score / 100
    return {"chrf": float(chrf), "rouge_l": float(np.mean(rouge))}


class _Words:
    """What rouge-score calls a tokenizer; its own knows only the letters a to z."""

    def tokenize(self, text: str) -> list[str]:
        return words_of(text.lower())


def _per_label(names: Sequence[str], scores: Sequence[np.ndarray]) -> list[Scores]:
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f1), "support": int(support)}
        for name, p, r, f1, support in zip(names, *scores, strict=True)
    ]


def as_iobes(tag: str) -> str:
    return tag[:1].translate(_IOBES) + tag[1:] if tag[1:2] in ("", "-") else tag


def _as_single_token(tag: str) -> str:
    return tag if tag == "O" else f"S-{tag}"


def _answer_scores(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1 of one answer, the best over the true ones."""
    words = _answer_words(answer)
    # An answer of which nothing is left is none, as in SQuAD.
    gold_words = [gold for gold in map(_answer_words, golds) if gold] or [[]]
    return max(float(gold == words) for gold in gold_words), max(_overlap(gold, words) for gold in gold_words)


def _answer_words(answer: str) -> list[str]:
    return _ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def _overlap(gold: list[str], words: list[str]) -> float:
    if not gold or not words:
        return float(gold == words)
    return 2 * (Counter(gold) & Counter(words)).total() / (len(gold) + len(words))


def _correlation(function: Callable[..., Any], one: np.ndarray, other: np.ndarray) -> float:
    if not np.ptp(one) or not np.ptp(other):  # a constant
        return 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of numbers that are nearly constant
        return float(function(one, other).statistic)
