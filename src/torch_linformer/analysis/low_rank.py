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

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from torch_linformer.analysis.observing import ObservedHead
from torch_linformer.functional import ExactTokens, Slots, Window, dynamic_slots, slot_attention
from torch_linformer.functional.slots import average_windows

KS = (8, 16, 32, 64, 128, 256, 512)
LONGEST = 1024  # tokens that are fitted to: the fit keeps two N × N matrices for every head of the model
WINDOW = 64  # tokens
OF_KEYS = ("segment_means_of_keys_too", "slots", "window_and_exact", "slots_window_and_exact")  # compressed too
_RIDGE = 1e-3  # of the mean diagonal of A, added to it: no division by zero where no query attends


@dataclass(frozen=True, kw_only=True)
class LowRankErrors:
    """Measured relative errors of the attention's output, by what is compressed and how.

    Attributes:
        ks: the K that were tried.
        errors: by the names above, (L, H, len(ks)): ‖P̃V − PV‖ / ‖PV‖, means over documents.
        fitted_on: number of documents that projections were fitted to.
        measured_on: number of other documents, on which all errors were measured.
    """

    ks: Sequence[int]
    errors: Mapping[str, Tensor]
    fitted_on: int
    measured_on: int


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
        self.moments: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
        self.fits: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}
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
        output, gaussian = head.weights @ head.value, self.gaussian.to(head.value)
        self.is_masked |= head.mask is not None
        # Of both the first K columns and rows are the projection of rank K.
        projections = {"random": (head.weights @ gaussian.mT, gaussian @ head.value)}
        if fit := self.fits.get((head.layer, head.number)):
            read, write = (x.to(head.value) for x in fit)
            projections["fitted"] = head.weights @ write, read.mT @ head.value
        whatever_k = {} if head.own is None else {"own_slots": head.own}
        if not self.is_masked:
            whatever_k["window_and_exact"] = attend_beside_slots(head, None)
        for column, k in enumerate(self.ks):
            width = -(-len(output) // k)
            keys, values = (average_windows(x[None], width, -(-len(x) // width))[0] for x in (head.key, head.value))
            outputs = {name: weights[:, :k] @ slots[:k] for name, (weights, slots) in projections.items()}
            outputs["random"] /= k
            outputs["segment_means"] = head.weights @ values.repeat_interleave(width, dim=0)[: len(output)]
            if not self.is_masked:
                # Chosen by the input as they begin, before any training: only the prior, w = 0.
                queries = head.key.new_zeros(k, head.key.shape[1])
                slots = dynamic_slots(queries, head.key[None, None], head.value[None, None])
                outputs |= {
                    "segment_means_of_keys_too": attend_to_slots(head, keys, values),
                    "slots": attend_to_slots(head, slots.keys[0, 0], slots.values[0, 0]),
                    "slots_window_and_exact": attend_beside_slots(head, slots),
                }
            for name, approximate in {**outputs, **whatever_k}.items():
                error = torch.linalg.norm(approximate - output) / torch.linalg.norm(output)
                totals = self.sums.setdefault(name, torch.zeros(*self.shape, len(self.ks), dtype=torch.float64))
                totals[head.layer, head.number, column] += error.double().cpu()

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


def attend_to_slots(head: ObservedHead, keys: Tensor, values: Tensor) -> Tensor:
    """The output ``(N, Dv)`` of a softmax over only these K slots; a mass that all have would change nothing."""
    return torch.softmax((head.query @ keys.mT) * head.scaling, dim=-1) @ values


def attend_beside_slots(head: ObservedHead, slots: Slots | None) -> Tensor:
    """The output of one softmax over the window, the first and the last token, and slots with their mass, if any."""
    length, ends = len(head.key), sorted({0, len(head.key) - 1})
    query, key, value = (x[None, None] for x in (head.query, head.key, head.value))
    seen_apart = torch.zeros(1, length, dtype=torch.bool, device=key.device)
    seen_apart[:, ends] = True
    joint = Slots(key[:, :, :0], value[:, :, :0])
    if slots is not None:
        number = slots.keys.shape[2]
        joint = Slots(slots.keys, slots.values, bias=key.new_full((1, 1, number), math.log(length / number)))
    exact = ExactTokens(key[:, :, ends], value[:, :, ends])
    window = Window(key, value, WINDOW // 2, padding=seen_apart)
    output, _ = slot_attention(query, joint, exact=exact, window=window, scale=head.scaling)
    return output[0, 0]
