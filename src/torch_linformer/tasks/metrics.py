"""What a model is worth: its scores, each from the true answers and the predicted ones, ready for JSON."""

import math
import re
import string
import warnings
from collections import Counter
from collections.abc import Sequence

import numpy as np
from scipy.stats import rankdata
from seqeval.metrics.sequence_labeling import get_entities
from sklearn.metrics import confusion_matrix, precision_recall_fscore_support

_TAG_PREFIX = re.compile("[BIESLUM]-")  # of IOB, IOBES, BILOU and BMES
_BARE_TAGS = frozenset("BIESLUMO")  # of entities without types
_AS_IOBES = str.maketrans("LUM", "ESI")  # what BILOU and BMES call by other letters
_WORDS = re.compile(r"[^\W_]+")
_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def classification_metrics(labels: Sequence[int], predictions: Sequence[int], names: Sequence[str]) -> dict:
    """Score predicted labels against the true ones.

    A score whose denominator is zero is 0. `macro_f1` is the mean F1 of the labels that occur, as a true
    label or as a prediction; a label that does neither says nothing about the model.

    Args:
        labels: index into `names` of each document's true label.
        predictions: index into `names` of each document's predicted label.
        names: the labels' names.

    Returns:
        `accuracy`, `macro_f1`, `per_label` (a list of `label`, `precision`, `recall`, `f1`, `support`) and
        `confusion_matrix` (rows true, columns predicted), ready for JSON.
    """
    true, predicted = np.asarray(labels, dtype=np.int64), np.asarray(predictions, dtype=np.int64)
    if true.ndim != 1 or true.shape != predicted.shape or not true.size:
        wanted = "two equally long lists with at least one entry"
        raise ValueError(f"labels and predictions must be {wanted}, got {true.shape} and {predicted.shape}")
    both = np.concatenate([true, predicted])
    if both.min() < 0 or both.max() >= len(names):
        raise ValueError(f"labels must be 0 to {len(names) - 1}, got {both.min()} to {both.max()}")
    ids = range(len(names))
    scores = precision_recall_fscore_support(true, predicted, labels=ids, average=None, zero_division=0)
    return {
        "accuracy": float(np.mean(true == predicted)),
        "macro_f1": float(scores[2][np.unique(both)].mean()),
        "per_label": _per_label(names, scores),
        "confusion_matrix": confusion_matrix(true, predicted, labels=ids).tolist(),
    }


def tagging_metrics(true: Sequence[Sequence[str]], predicted: Sequence[Sequence[str]]) -> dict:
    """Score predicted tags of tokens against the true ones, by the entities they spell.

    Entities are found as seqeval finds them by default, and conlleval.pl of CoNLL-2000 before it: an entity
    begins at B-, and at I- behind "O" or behind another type. One is right if its first token, its last token
    and its type all are. Tags of BILOU and BMES are read as IOBES. With h entities right of p predicted and t
    true ones, precision = h / p, recall = h / t and F1 = 2 h / (p + t); a score whose denominator is zero is 0.

    If no tag has a prefix (parts of speech, say) there are no entities, and what is counted is the tokens whose
    tag is not "O".

    Args:
        true: the tags of each document.
        predicted: as many predicted ones.

    Returns:
        `accuracy` (share of the tokens whose tag is right), `f1`, `precision`, `recall` (of all entities
        together), `macro_f1` (mean F1 of the types that occur, true or predicted) and `per_label` (a list of
        `label`, `precision`, `recall`, `f1`, `support`).
    """
    lengths = [[len(tags) for tags in documents] for documents in (true, predicted)]
    if lengths[0] != lengths[1] or not sum(lengths[0]):
        raise ValueError(
            "true and predicted must hold as many tags for each document, and one at least;"
            f" got {sum(lengths[0])} and {sum(lengths[1])} for {len(true)} and {len(predicted)} documents"
        )
    tags = [[tag for document in documents for tag in (*document, "O")] for documents in (true, predicted)]
    found = _entities if _spell_entities({*tags[0], *tags[1]}) else _tagged_tokens
    spans = [found(side) for side in tags]
    counts = [Counter(label for label, *_ in side) for side in (spans[0] & spans[1], spans[1], spans[0])]
    names = sorted({*counts[1], *counts[2]})
    scores = _scores(*(np.array([count[name] for name in names], dtype=np.int64) for count in counts))
    precision, recall, f1, _ = _scores(*(np.array([count.total()]) for count in counts))
    right = sum(a == b for a, b in zip(*tags, strict=True)) - len(true)  # without the "O" behind each document
    return {
        "accuracy": right / sum(lengths[0]),
        "f1": float(f1[0]),
        "precision": float(precision[0]),
        "recall": float(recall[0]),
        "macro_f1": float(scores[2].mean()) if names else 0.0,
        "per_label": _per_label(names, scores),
    }


def answer_metrics(true: Sequence[Sequence[str]], predicted: Sequence[str]) -> dict:
    """Score predicted answers against the true ones, as the evaluation of SQuAD 2.0 does (arXiv 1806.03822).

    Both are put into lower case and lose punctuation, the articles a, an and the, and surplus white space.
    Then an exact match is equality, and F1 = 2 h / (p + t), where of the p predicted and t true words h are
    shared (counted as often as both have them). Of several true answers the best score counts. A question
    without one asks for "": any words at all score 0.

    Args:
        true: the true answers to each question; empty if it has none.
        predicted: one answer a question; "" for none.

    Returns:
        `exact_match` and `f1`, means over the questions, from 0 to 1. If some questions have answers and some
        have none, also `has_answer_exact_match` and `has_answer_f1` of the former and `no_answer_accuracy` of
        the latter.
    """
    if len(true) != len(predicted) or not len(true):
        raise ValueError(f"each question needs true answers and a predicted one, got {len(true)} and {len(predicted)}")
    scores = np.array([_answer_scores(golds, given) for golds, given in zip(true, predicted, strict=True)])
    exact_match, f1 = scores.mean(axis=0).tolist()
    means = {"exact_match": exact_match, "f1": f1}
    answered = np.array([len(golds) > 0 for golds in true])
    if answered.any() and not answered.all():
        means["has_answer_exact_match"], means["has_answer_f1"] = scores[answered].mean(axis=0).tolist()
        means["no_answer_accuracy"] = float(scores[~answered, 0].mean())
    return means


def regression_metrics(true: Sequence[float], predicted: Sequence[float]) -> dict:
    """Score predicted numbers against the true ones.

    With errors e = predicted - true: mse is the mean of e², mae that of |e|, r2 = 1 - Σ e² / Σ (true - mean)².
    Pearson's correlation is cov(true, predicted) / (σ σ'), Spearman's is Pearson's of the ranks, where equal
    numbers share their mean rank. A correlation with a constant is not defined, nor is r2 if the true numbers
    are one constant: both are 0 here. A prediction that is not finite makes the scores not finite either.

    Returns:
        `mse`, `mae`, `spearman`, `pearson` and `r2`.
    """
    wanted, given = np.asarray(true, dtype=np.float64), np.asarray(predicted, dtype=np.float64)
    if wanted.ndim != 1 or wanted.shape != given.shape or not wanted.size:
        shapes = f"{wanted.shape} and {given.shape}"
        raise ValueError(f"true and predicted must be two equally long lists with at least one entry, got {shapes}")
    with np.errstate(over="ignore", invalid="ignore"):  # of a model that has diverged
        squares = np.square(given - wanted)
        spread = np.square(wanted - wanted.mean()).sum() if np.ptp(wanted) else 0.0
        return {
            "mse": float(squares.mean()),
            "mae": float(np.abs(given - wanted).mean()),
            "spearman": _correlation(rankdata(wanted, nan_policy="propagate"), rankdata(given, nan_policy="propagate")),
            "pearson": _correlation(wanted, given),
            "r2": float(1 - squares.sum() / spread) if spread else 0.0,
        }


def multilabel_metrics(true: np.ndarray, predicted: np.ndarray, names: Sequence[str]) -> dict:
    """Score predicted sets of labels against the true ones.

    F1 = 2 h / (p + t), where of p predicted and t true labels h are right; 0 if the denominator is.

    Args:
        true: 1 where the document has the label, else 0, of shape (documents, labels).
        predicted: the same of the predicted labels.
        names: the labels' names.

    Returns:
        `micro_f1` (over all documents and labels together), `macro_f1` (mean F1 of the labels that occur, true
        or predicted), `exact_match` (share of the documents whose labels are all right) and `per_label` (a
        list of `label`, `precision`, `recall`, `f1`, `support`).
    """
    wanted, given = np.asarray(true), np.asarray(predicted)
    if wanted.ndim != 2 or wanted.shape != given.shape or not wanted.size or wanted.shape[1] != len(names):
        raise ValueError(
            f"true and predicted must be of shape (documents, {len(names)}) with at least one of each,"
            f" got {wanted.shape} and {given.shape}"
        )
    if not np.isin([wanted, given], (0, 1)).all():
        raise ValueError("true and predicted must hold nothing but 0 and 1; round what is predicted first")
    wanted, given = wanted.astype(bool), given.astype(bool)
    counts = [array.sum(axis=0) for array in (wanted & given, given, wanted)]
    scores = _scores(*counts)
    occur = (counts[1] + counts[2]) > 0
    return {
        "micro_f1": float(_scores(*(count.sum(keepdims=True) for count in counts))[2][0]),
        "macro_f1": float(scores[2][occur].mean()) if occur.any() else 0.0,
        "exact_match": float((wanted == given).all(axis=1).mean()),
        "per_label": _per_label(names, scores),
    }


def language_model_metrics(total_nll_nats: float, tokens: int, num_bytes: int) -> dict:
    """Perplexity exp(nll / tokens) and bits per byte nll / (ln 2 · bytes) of a language model.

    Args:
        total_nll_nats: negative log-likelihood, in nats, summed over the tokens that were predicted.
        tokens: how many there were.
        num_bytes: UTF-8 bytes they stand for, which makes different tokenizers comparable.

    Returns:
        `perplexity` (infinite where a float cannot hold it) and `bits_per_byte`.
    """
    if tokens < 1 or num_bytes < 1:
        raise ValueError(f"nothing was predicted: got {tokens} tokens of {num_bytes} bytes")
    try:
        perplexity = math.exp(total_nll_nats / tokens)
    except OverflowError:
        perplexity = math.inf
    return {"perplexity": perplexity, "bits_per_byte": total_nll_nats / math.log(2) / num_bytes}


def target_metrics(true: Sequence[str], written: Sequence[str]) -> dict:
    """Score written texts against the true ones.

    chrF (sacrebleu: F2 of the n-grams of 1 to 6 characters, over all texts together) and ROUGE-L (rouge-score: F1 of
    the longest common subsequence of words in lower case, the mean over the texts; a word is what has letters and
    digits of any script).

    Returns:
        `chrf` and `rouge_l`, from 0 to 1.
    """
    if len(true) != len(written) or not len(true):
        raise ValueError(f"each true text needs a written one, got {len(true)} and {len(written)}")
    from rouge_score.rouge_scorer import RougeScorer  # takes a second or two
    from sacrebleu.metrics.chrf import CHRF

    scorer = RougeScorer(["rougeL"], tokenizer=_Words())
    rouge = [scorer.score(wanted, given)["rougeL"].fmeasure for wanted, given in zip(true, written, strict=True)]
    chrf = CHRF().corpus_score(list(written), [list(true)]).score / 100
    return {"chrf": float(chrf), "rouge_l": float(np.mean(rouge))}


class _Words:
    """What rouge-score calls a tokenizer; its own knows the letters a to z alone."""

    def tokenize(self, text: str) -> list[str]:
        return _WORDS.findall(text.lower())


def _scores(right: np.ndarray, predicted: np.ndarray, true: np.ndarray) -> tuple[np.ndarray, ...]:
    """Precision, recall, F1 and support of each label from how often it was right, predicted and true."""
    # A denominator of zero has a numerator of zero.
    f1 = 2 * right / np.maximum(predicted + true, 1)
    return right / np.maximum(predicted, 1), right / np.maximum(true, 1), f1, true


def _per_label(names: Sequence[str], scores: Sequence[np.ndarray]) -> list[dict]:
    return [
        {"label": name, "precision": float(p), "recall": float(r), "f1": float(f1), "support": int(support)}
        for name, p, r, f1, support in zip(names, *scores, strict=True)
    ]


def _spell_entities(tags: set[str]) -> bool:
    return any(map(_TAG_PREFIX.match, tags)) or ("B" in tags and tags <= _BARE_TAGS)


def _entities(tags: list[str]) -> set[tuple[str, int, int]]:
    """Type, first and last token of each entity."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # seqeval warns of every tag without a prefix
        return set(get_entities([_as_iobes(tag) for tag in tags]))


def _as_iobes(tag: str) -> str:
    return tag[:1].translate(_AS_IOBES) + tag[1:] if tag[1:2] in ("", "-") else tag


def _tagged_tokens(tags: list[str]) -> set[tuple[str, int, int]]:
    return {(tag, place, place) for place, tag in enumerate(tags) if tag != "O"}


def _answer_scores(golds: Sequence[str], given: str) -> tuple[float, float]:
    """Exact match and F1 of one answer, the best over the true ones."""
    words = _answer_words(given)
    # An answer of which nothing is left is none, as in SQuAD.
    wanted = [gold for gold in map(_answer_words, golds) if gold] or [[]]
    return max(float(gold == words) for gold in wanted), max(_overlap(gold, words) for gold in wanted)


def _answer_words(answer: str) -> list[str]:
    return _ARTICLES.sub(" ", answer.lower().translate(_NO_PUNCTUATION)).split()


def _overlap(gold: list[str], given: list[str]) -> float:
    if not gold or not given:
        return float(gold == given)
    return 2 * (Counter(gold) & Counter(given)).total() / (len(gold) + len(given))


def _correlation(one: np.ndarray, other: np.ndarray) -> float:
    if not np.ptp(one) or not np.ptp(other):  # a constant; its deviations from the mean are rounding alone
        return 0.0
    one, other = one - one.mean(), other - other.mean()
    norms = np.linalg.norm(one) * np.linalg.norm(other)
    return float(np.clip(one @ other / norms, -1, 1)) if norms else 0.0
