"""What the probabilities of labels are worth, beside the labels themselves."""

from collections.abc import Sequence

import numpy as np

from torch_linformer.tasks.metrics import Scores

BINS = 15  # of the highest probability, of equal width


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
