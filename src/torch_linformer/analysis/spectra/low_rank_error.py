r"""How far attention is off when its values are compressed into K slots: ‖P̃V − PV‖ / ‖PV‖, measured.

P̃ = P Π with a projection Π of rank K that is the same for every document, as E and F of a Linformer are:

================= ===============================================================================================
``random``        Π = Rᵀ R, R (K, N) Gaussian with variance 1/K: theorem 1 of the paper
``segment_means`` each value becomes the mean of its segment of ⌈N/K⌉ positions
``fitted``        the least-squares Π of each layer and head, from other documents (below)
================= ===============================================================================================

The others attend to compressed keys too, with the softmax over what there is, as a Linformer does that has the same
queries, keys and values. A model with a mask has no such entry, because compressed keys leak what it masks.

============================= ==================================================================================
``segment_means_of_keys_too`` means of segments: ``projection="mean"``
``slots``                     slots chosen by the input as they begin, before any training: ``projection="dynamic"``
``window_and_exact``          no slots: a window of 64 tokens, the first and the last token
``slots_window_and_exact``    such slots with their mass, beside window and exact tokens
``own_slots``                 all that a model with trained slots of this kind attends to, whatever the K
============================= ==================================================================================

The fit minimizes Σ ‖P_d (I − Π) V_d‖² over documents d, with PᵀP and VVᵀ each replaced by its mean over documents, A
and C. Then the sum is proportional to ‖A^½ (I − Π) C^½‖², and by Eckart and Young the best Π of rank K is
A^-½ U Uᵀ A^½, where U holds the K first eigenvectors of A^½ C A^½.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from torch_linformer.analysis.spectra.observing import (
    HeadSlots,
    ObservedHead,
    attend_beside_slots,
    attend_to_slots,
    beginning_slots,
)
from torch_linformer.analysis.spectra.spectrum import LowRankErrors
from torch_linformer.functional.slots import average_windows

KS = (8, 16, 32, 64, 128, 256, 512)
LONGEST = 1024  # tokens that are fitted to: the fit keeps two N × N matrices for every head of the model
OF_KEYS = ("segment_means_of_keys_too", "slots", "window_and_exact", "slots_window_and_exact")  # compressed too
_RIDGE = 1e-3  # of the mean diagonal of A, added to it: no division by zero where no query attends

Place = tuple[int, int]


class LowRankMeasurement:
    """Fits projections to the heads of some documents of N tokens, then measures their errors on those of others.

    Without a fit there is no ``fitted`` entry.

    Args:
        shape: layers and heads.
        length: N.
        ks: the K to try; those above N are left out.
        seed: of the random projection.
    """

    def __init__(self, shape: tuple[int, int], length: int, ks: Sequence[int] = KS, seed: int = 0) -> None:
        self.shape, self.ks = shape, tuple(k for k in ks if k <= length)
        generator = torch.Generator().manual_seed(seed)
        self.gaussian = torch.randn(max(self.ks, default=0), length, generator=generator)
        self.moments: dict[Place, tuple[Tensor, Tensor]] = {}
        self.fits: dict[Place, tuple[Tensor, Tensor]] = {}
        self.sums: dict[str, Tensor] = {}
        self.is_masked = False

    def fit(self, head: ObservedHead) -> None:
        """Add a head of one document to the sums of PᵀP and VVᵀ."""
        gram, covariance = self.moments.get((head.layer, head.number), (0.0, 0.0))
        moments = gram + head.weights.mT @ head.weights, covariance + head.value @ head.value.mT
        self.moments[head.layer, head.number] = moments

    def solve(self) -> None:
        """End the fit: heads are measured from here on."""
        for place in sorted(self.moments):
            self.fits[place] = fitted_projection(*self.moments.pop(place), max(self.ks))

    def measure(self, head: ObservedHead) -> None:
        """Add the errors for a head of one document."""
        output = head.weights @ head.value
        gaussian = self.gaussian.to(head.value)
        at_random = head.weights @ gaussian.mT, gaussian @ head.value
        by_fit = self._fitted(head)
        self.is_masked |= head.mask is not None
        without_slots = {} if self.is_masked else {"window_and_exact": attend_beside_slots(head, None)}
        if head.own is not None:
            without_slots["own_slots"] = head.own
        for column, k in enumerate(self.ks):
            width = -(-len(output) // k)
            means = _segment_means(head.value, width)
            outputs = {
                "random": at_random[0][:, :k] @ at_random[1][:k] / k,
                "segment_means": head.weights @ means.repeat_interleave(width, dim=0)[: len(output)],
            }
            if by_fit is not None:
                outputs["fitted"] = by_fit[0][:, :k] @ by_fit[1][:k]
            if not self.is_masked:
                slots = beginning_slots(head, k)
                outputs |= {
                    "segment_means_of_keys_too": attend_to_slots(
                        head, HeadSlots(_segment_means(head.key, width), means)
                    ),
                    "slots": attend_to_slots(head, slots),
                    "slots_window_and_exact": attend_beside_slots(head, slots),
                }
            for name, approximate in {**outputs, **without_slots}.items():
                error = torch.linalg.norm(approximate - output) / torch.linalg.norm(output)
                totals = self.sums.setdefault(name, torch.zeros(*self.shape, len(self.ks), dtype=torch.float64))
                totals[head.layer, head.number, column] += error.double().cpu()

    def _fitted(self, head: ObservedHead) -> tuple[Tensor, Tensor] | None:
        """The weights and the values by the fit of the head, (N, k) and (k, Dv); None without one."""
        if (head.layer, head.number) not in self.fits:
            return None
        read, write = self.fits[head.layer, head.number]
        return head.weights @ write.to(head.value), read.to(head.value).mT @ head.value

    def result(self, fitted_on: int, measured_on: int) -> LowRankErrors:
        """The errors, means over the measured documents."""
        means = {
            name: total / measured_on for name, total in self.sums.items() if not (self.is_masked and name in OF_KEYS)
        }
        return LowRankErrors(ks=self.ks, errors=means, fitted_on=fitted_on, measured_on=measured_on)


def fitted_projection(gram: Tensor, covariance: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """F and G, ``(N, k)``: G[:, :K] F[:, :K]ᵀ is the best Π of rank K ≤ k for A = ``gram`` and C = ``covariance``."""
    gram, covariance = gram.double(), covariance.double()
    ridge = _RIDGE * gram.diagonal().mean()
    values, vectors = torch.linalg.eigh(gram)
    roots = (values.clamp(min=0) + ridge).sqrt()
    root, inverse = (vectors * roots) @ vectors.mT, (vectors / roots) @ vectors.mT
    directions = torch.linalg.eigh(root @ covariance @ root).eigenvectors.flip(-1)[:, :k]
    return (root @ directions).float(), (inverse @ directions).float()


def _segment_means(x: Tensor, width: int) -> Tensor:
    """Means over segments of ``width`` rows of ``(N, D)``."""
    return average_windows(x.unsqueeze(0), width, -(-len(x) // width)).squeeze(0)
