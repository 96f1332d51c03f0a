"""The probability above which labels are predicted, of documents that may have several."""

import numpy as np


def best_threshold(true: np.ndarray, probabilities: np.ndarray) -> float:
    """The threshold above which labels are predicted with the highest ``micro_f1``; a half where none is better.

    With many labels, each of them rare, few probabilities are above a half even where their order is right.

    Args:
        true: 1 where the document has the label, else 0, of any shape.
        probabilities: those of the labels, of the same shape.

    Returns:
        a number between 0 and 1, halfway between the two probabilities that it separates.
    """
    wanted, given = np.ravel(true), np.ravel(probabilities).astype(np.float64)
    order = np.argsort(-given, kind="stable")
    falling = np.append(given[order], 0.0)
    f1 = 2 * wanted[order].cumsum() / (np.arange(1, len(given) + 1) + max(1, wanted.sum()))
    f1[falling[:-1] == falling[1:]] = 0.0  # equal probabilities are not separated
    usual = int(np.count_nonzero(given > 0.5))
    if not len(f1) or f1.max() <= (f1[usual - 1] if usual else 0.0):
        return 0.5
    best = int(np.argmax(f1))
    return float((falling[best] + falling[best + 1]) / 2)
