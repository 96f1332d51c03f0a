"""What a model is worth: its scores, from the true answers and the predicted ones, and how much of them is chance.

Scores are ready for JSON. One whose denominator is zero is 0. ``per_label`` is a list of ``label``, ``precision``,
``recall``, ``f1`` and ``support``; ``macro_f1`` is the mean F1 of the labels that occur, true or predicted.
"""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence
from types import SimpleNamespace
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

BINS = 15  # of the highest probability, of equal width
CHANCE = 2.0  # standard errors, which chance alone exceeds one time in twenty

Scores = dict[str, Any]


def classification_metrics(labels: Sequence[int], predictions: Sequence[int], names: Sequence[str]) -> Scores:
    """Score predicted labels against the true ones; both are indices into ``names``.

    Returns:
        ``accuracy``, ``macro_f1``, ``per_label`` and ``confusion_matrix`` (rows true, columns predicted).
    """
    ids = range(len(names))
    # Not classification_report: in its dictionary a label named "accuracy" would hide a score.
    scores = precision_recall_fscore_support(labels, predictions, labels=ids, average=None, zero_division=0)
    return {
        "accuracy": float(accuracy_score(labels, predictions)),
        "macro_f1": float(scores[2][np.union1d(labels, predictions)].mean()),
        "per_label": _per_label(names, scores),
        "confusion_matrix": confusion_matrix(labels, predictions, labels=ids).tolist(),
    }


def calibration_metrics(labels: Sequence[int], probabilities: np.ndarray) -> Scores:
    r"""Score the probabilities of all labels, ``(documents, labels)``, by the true ones.

    .. math:: \mathrm{ECE} = \sum_m \frac{|B_m|}{n} \lvert \mathrm{acc}(B_m) - \mathrm{conf}(B_m) \rvert

    The :math:`B_m` are 15 bins of equal width of the highest probability of each of n documents; acc is the share whose
    most probable label is right, conf the mean of that probability (Guo et al. 2017, arXiv 1706.04599, section 2).

    Returns:
        ``ece``, the expected calibration error; ``nll``, the mean of −ln of the probability of the true label; and
        ``reliability``: ``confidence``, ``accuracy`` and ``documents`` of each bin that has any.
    """
    true, predicted = np.asarray(labels), np.asarray(probabilities, dtype=np.float64)
    highest, right = predicted.max(axis=1), predicted.argmax(axis=1) == true
    bins = np.ceil(highest * BINS).clip(1, BINS)
    reliability = [
        {"confidence": float(highest[here].mean()), "accuracy": float(right[here].mean()), "documents": int(here.sum())}
        for here in (bins == number for number in np.unique(bins))
    ]
    gaps = [row["documents"] * abs(row["accuracy"] - row["confidence"]) for row in reliability]
    nll = -np.log(predicted[np.arange(len(true)), true].clip(1e-30)).mean()
    return {"ece": float(sum(gaps) / len(true)), "nll": float(nll), "reliability": reliability}


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
    tags = {tag for documents in (true, predicted) for document in documents for tag in document}
    spelled = any(map(TAG_PREFIX.match, tags)) or ("B" in tags and tags <= _BARE_TAGS)
    spelling = {tag: as_iobes(tag) if spelled or tag == "O" else f"S-{tag}" for tag in tags}
    sides = [[[spelling[tag] for tag in document] for document in documents] for documents in (true, predicted)]
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
    sides = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if not np.isfinite(sides[1]).all():
        return dict.fromkeys(("mse", "mae", "spearman", "pearson", "r2"), math.nan)
    with np.errstate(over="ignore", invalid="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a model that has nearly diverged, and of numbers that are nearly constant
        varies = [bool(np.ptp(side)) for side in sides]
        return {
            "mse": float(mean_squared_error(*sides)),
            "mae": float(mean_absolute_error(*sides)),
            "spearman": float(spearmanr(*sides).statistic) if all(varies) else 0.0,
            "pearson": float(pearsonr(*sides).statistic) if all(varies) else 0.0,
            "r2": float(r2_score(*sides)) if varies[0] else 0.0,
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
    targets, predictions = _of_known(true, predicted)
    # With one more label, which no document has: scikit-learn takes a single column for one label a document.
    sides = [np.pad(side.astype(int), ((0, 0), (0, 1))) for side in (targets, predictions)]
    ids = range(len(names))
    scores = precision_recall_fscore_support(*sides, labels=ids, average=None, zero_division=0)
    occur = targets.any(axis=0) | predictions.any(axis=0)
    return {
        "micro_f1": float(precision_recall_fscore_support(*sides, average="micro", zero_division=0)[2]),
        "macro_f1": float(scores[2][occur].mean()) if occur.any() else 0.0,
        "exact_match": float(accuracy_score(*sides)),
        "per_label": _per_label(names, scores),
    }


def _of_known(true: np.ndarray, predicted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """True and predicted labels, both 0 where the true one is unknown (NaN): neither right nor wrong."""
    unknown = np.isnan(true)
    return np.where(unknown, 0, true), np.where(unknown, 0, predicted)


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
    from rouge_score.rouge_scorer import RougeScorer  # takes a second or two
    from sacrebleu.metrics.chrf import CHRF

    # Its own tokenizer knows only the letters a to z.
    words = SimpleNamespace(tokenize=lambda text: words_of(text.lower()))
    scorer = RougeScorer(["rougeL"], tokenizer=words)
    rouge = [scorer.score(target, text)["rougeL"].fmeasure for target, text in zip(true, written, strict=True)]
    chrf = CHRF().corpus_score(list(written), [list(true)]).score / 100
    return {"chrf": float(chrf), "rouge_l": float(np.mean(rouge))}


def _per_label(names: Sequence[str], scores: Sequence[np.ndarray]) -> list[Scores]:
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f1), "support": int(support)}
        for name, p, r, f1, support in zip(names, *scores, strict=True)
    ]


def as_iobes(tag: str) -> str:
    return tag[:1].translate(_IOBES) + tag[1:] if tag[1:2] in ("", "-") else tag


def _answer_scores(golds: Sequence[str], answer: str) -> tuple[float, float]:
    """Exact match and F1 of one answer, the best over the true ones."""
    words = _answer_words(answer)
    # An answer of which nothing is left is none, as in SQuAD.
    gold_words = [gold for gold in map(_answer_words, golds) if gold] or [[]]
    f1 = [
        1.0 if gold == words else 2 * (Counter(gold) & Counter(words)).total() / (len(gold) + len(words))
        for gold in gold_words
    ]
    return float(words in gold_words), max(f1)


def _answer_words(answer: str) -> list[str]:
    return _ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def tally(score: str, true: Any, predicted: Any) -> np.ndarray:
    r"""What each document adds to a score that is one sum over the documents divided by another, ``(documents, 2)``.

    Macro F1 is no such sum: each document has the score plus its influence on it (the delta method). With
    :math:`F_l = 2 r_l / d_l`, where :math:`r_l` documents are right and :math:`d_l` have or are given label l, that is
    the mean over labels of :math:`n (2 r_{il} - F_l d_{il}) / d_l`.

    Args:
        score: ``accuracy``, ``macro_f1``, ``micro_f1`` or ``mse``.
        true: the true answers, as the function that computes the score takes them.
        predicted: the same of the predicted answers.
    """
    true, predicted = np.asarray(true), np.asarray(predicted)
    if score == "micro_f1":
        true, predicted = _of_known(true, predicted)
        return np.stack([2 * (true * predicted).sum(axis=1), predicted.sum(axis=1) + true.sum(axis=1)], axis=1)
    shares: np.ndarray = (true - predicted) ** 2 if score == "mse" else true == predicted
    if score == "macro_f1":
        names, numbers = np.unique(np.concatenate([true, predicted]), return_inverse=True)
        true_ids, predicted_ids = numbers.reshape(2, -1)
        of_label = np.bincount(numbers)
        f1 = 2 * np.bincount(true_ids[shares], minlength=len(names)) / of_label
        changes = (2 * shares - f1[true_ids]) / of_label[true_ids] - f1[predicted_ids] / of_label[predicted_ids]
        shares = f1.mean() + len(true) * changes / len(names)
    return np.stack([shares, np.ones(len(true))], axis=1)


def is_more_than_chance(difference: float, error: float) -> bool:
    """Whether a difference is larger than :data:`CHANCE` of its standard errors, either way."""
    return abs(difference) > CHANCE * error


def paired_difference(one: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    r"""How much larger the score of one tally is than that of another of the same documents, and its standard error.

    With ratios :math:`r = \sum a / \sum b` of n documents, the error is that of the mean of
    :math:`(a_i - r b_i) / \bar b`, less the same of the other (the delta method): what is hard for both cancels out.
    """
    shares = []
    for counted in (one, other):
        of, out_of = np.asarray(counted, dtype=np.float64).T
        ratio = of.sum() / max(out_of.sum(), 1e-12)
        shares.append((ratio, (of - ratio * out_of) / max(out_of.mean(), 1e-12)))
    (first, spread), (second, others) = shares
    return float(first - second), float(np.std(spread - others) / math.sqrt(len(spread)))
