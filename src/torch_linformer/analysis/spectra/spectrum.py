"""The spectrum of a model's attention at one length: singular values, averaged over documents by layer and head."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

_OVERSAMPLING = 16  # directions beyond those that are asked for
_ROUNDING = 1e-5  # of a sum of squares of values that were computed in float32
_PASSES = 2  # of subspace iteration: the spectrum of attention falls slowly after the first values
DIGITS = 6  # significant, of a value in a file


@dataclass(frozen=True)
class SingularValues:
    """Singular values σ₁ ≥ σ₂ ≥ … of an (N, N) matrix, all or the first, float64 on the CPU.

    ``energy`` is Σσ² over all N = ``size`` values, exact even where values are missing.
    """

    values: Tensor
    energy: float
    size: int

    @property
    def missing_energy(self) -> float:
        """Share of Σσ² in the values that were not computed."""
        return max(0.0, 1.0 - float(self.values.square().sum()) / self.energy)

    def total(self) -> tuple[float, float]:
        r"""Bounds of the sum Σσ of all N values.

        The missing values hold a known energy e and none is above the last known σ, so that with m of them

        .. math:: e / σ \le \sum_{missing} σ_i \le \sqrt{m e}

        the right side by Cauchy and Schwarz; e is known up to the rounding of the values, which the bounds allow for.
        Without missing values both bounds are the sum.
        """
        known, missing = float(self.values.sum()), self.size - len(self.values)
        if missing == 0:
            return known, known
        rest, noise = self.energy - float(self.values.square().sum()), _ROUNDING * self.energy
        last, most = float(self.values[-1]), (missing * max(0.0, rest + noise)) ** 0.5
        least = max(0.0, rest - noise) / last if last > 0 else 0.0
        return known + min(least, most), known + most


def exact_singular_values(matrix: Tensor) -> SingularValues:
    """All singular values, as roots of the eigenvalues of the Gram matrix in float64.

    Twice as fast as ``svdvals`` in float64. Squaring costs half the digits: a value below 1e-8 σ₁ is noise, too small
    to change a sum over values.
    """
    wide = matrix.double()
    eigenvalues = torch.linalg.eigvalsh(wide.mT @ wide)
    values = eigenvalues.clamp(min=0).flip(0).sqrt().cpu()
    return SingularValues(values, float(wide.square().sum()), matrix.shape[-1])


def randomised_singular_values(matrix: Tensor, rank: int, seed: int = 0) -> SingularValues:
    """The ``rank`` largest singular values, by subspace iteration from a random start (``torch.svd_lowrank``).

    They are those of the matrix restricted to a subspace, and so never above the true ones; the energy outside is
    known exactly from the Frobenius norm. K chosen by energy is therefore too large rather than too small.

    Source: arXiv 0909.4061, algorithm 4.4.
    """
    rank = min(rank, matrix.shape[-1])
    with torch.random.fork_rng(devices=[matrix.device] if matrix.is_cuda else []):
        torch.manual_seed(seed)
        singular_values = torch.svd_lowrank(matrix, q=min(rank + _OVERSAMPLING, matrix.shape[-1]), niter=_PASSES)[1]
    norm = float(torch.linalg.vector_norm(matrix, dtype=torch.float64))
    return SingularValues(singular_values[:rank].double().cpu(), norm**2, matrix.shape[-1])


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a model that the advice depends on: layers L, heads H, and the widths C, D and F."""

    layers: int
    heads: int
    width: int
    head_dim: int
    feedforward: int


@dataclass(frozen=True, kw_only=True)
class LowRankErrors:
    """Measured relative errors of the attention's output; see ``torch_linformer.analysis.spectra.low_rank_error``.

    Attributes:
        ks: the K that were tried.
        errors: by the kind of projection, (L, H, len(ks)): ‖P̃V − PV‖ / ‖PV‖, means over documents.
        fitted_on: number of documents that projections were fitted to.
        measured_on: number of other documents, on which all errors were measured.
    """

    ks: Sequence[int]
    errors: Mapping[str, Tensor]
    fitted_on: int
    measured_on: int


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    r"""Singular values σ₁ ≥ σ₂ ≥ … of the context mappings P of every layer and head, on documents of N tokens.

    Tensors are float64 of shape (L, H, R): R is N where all values were computed, and less where a randomised method
    computed the first ones.

    Attributes:
        length: N.
        documents: number of documents that every mean is over.
        method: ``exact`` or ``randomised``.
        singular_values: means of σ_i.
        cumulative: means of :math:`\sum_{i \le k} σ_i / \sum_i σ_i`, the paper's normalized cumulative singular value.
        energy: means of :math:`\sum_{i \le k} σ_i^2 / \sum_i σ_i^2`.
        cumulative_error: (L, H), how far ``cumulative`` may be off, at most; 0 where all values were computed.
        missing_energy: (L, H), share of Σσ² in the values that were not computed.
        architecture: of the model.
        low_rank: errors of low-rank outputs; None where they were not measured.
    """

    length: int
    documents: int
    method: str
    singular_values: Tensor
    cumulative: Tensor
    energy: Tensor
    cumulative_error: Tensor
    missing_energy: Tensor
    architecture: Architecture
    low_rank: LowRankErrors | None = None

    def cumulative_at(self, index: int) -> Tensor:
        """(L, H): the normalized cumulative singular value of the first ``index`` values.

        Raises:
            ValueError: fewer were computed.
        """
        available = self.cumulative.shape[-1]
        if not 1 <= index <= available:
            raise ValueError(f"index must lie between 1 and {available}, the singular values there are, got {index}")
        return self.cumulative[..., index - 1]

    def as_record(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON."""
        record: dict[str, Any] = {
            "length": self.length,
            "documents": self.documents,
            "method": self.method,
            "values_per_head": self.singular_values.shape[-1],
        }
        names = ("singular_values", "cumulative", "energy", "cumulative_error", "missing_energy")
        record |= {name: _rounded(getattr(self, name)) for name in names}
        if self.low_rank is not None:
            record["low_rank_error"] = {
                "k": list(self.low_rank.ks),
                "fitted_on": self.low_rank.fitted_on,
                "measured_on": self.low_rank.measured_on,
                **{name: _rounded(errors) for name, errors in self.low_rank.errors.items()},
            }
        return record


@dataclass
class SpectrumMean:
    """Running means of spectra, so that memory does not grow with the documents."""

    shape: tuple[int, int]
    sums: dict[str, Tensor] = field(default_factory=dict)

    def add(self, layer: int, head: int, singular_values: SingularValues) -> None:
        """Add the values of one P."""
        lowest, highest = singular_values.total()
        known = singular_values.values.cumsum(0)
        # The sum of all values lies between two bounds, and so does each share of it: the middle, and how far it is.
        below, above = known / highest, known / lowest
        squares = singular_values.values.square()
        rows = {
            "singular_values": singular_values.values,
            "cumulative": (below + above) / 2,
            "energy": squares.cumsum(0)
            / (squares.sum() if len(squares) == singular_values.size else singular_values.energy),
            "cumulative_error": ((above - below) / 2).max(),
            "missing_energy": torch.tensor(
                singular_values.missing_energy if len(squares) < singular_values.size else 0.0
            ),
        }
        for name, row in rows.items():
            total = self.sums.setdefault(name, torch.zeros(*self.shape, *row.shape, dtype=torch.float64))
            total[layer, head] += row

    def mean(self, documents: int) -> dict[str, Tensor]:
        """The means over that many documents."""
        return {name: total / documents for name, total in self.sums.items()}


def _rounded(values: Tensor) -> Any:
    """Nested lists of numbers of six significant digits."""

    def shorten(value: Any) -> Any:
        return [shorten(item) for item in value] if isinstance(value, list) else float(f"{value:.{DIGITS}g}")

    return shorten(values.tolist())
