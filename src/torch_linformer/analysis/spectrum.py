"""The spectrum of a model's attention: singular values by layer and head, and the K that follows from them."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from torch_linformer.analysis.low_rank import KS, LONGEST, LowRankErrors, LowRankMeasurement
from torch_linformer.analysis.observing import ObservedHead, check_readable, observe_heads
from torch_linformer.functional.slots import johnson_lindenstrauss_k
from torch_linformer.measuring.costs import LayerSizes, layer_ratio

EXACT_UP_TO = 4096  # tokens; one P takes 7 s there, eight times as long at twice the length (docs/spectrum.md)
RANK = 1024  # values computed of a longer P
LEVELS = (90, 95, 99)  # percent of the energy Σσ²
BY_RANK = 95  # the one that a conclusion names
# What slots that are not trained yet may lose beside a window: all-MiniLM-L6-v2 begins with 0.375 at K 32 of 512 tokens
# and is distilled to a cosine of 0.985 from there (docs/slots.md).
BOUND = 0.38
_OVERSAMPLING = 16  # directions beyond those that are asked for
_PASSES = 2  # of subspace iteration: the spectrum of attention falls slowly after the first values
_ROUNDING = 1e-5  # of a sum of squares of values that were computed in float32
_MEANS = ("singular_values", "cumulative", "energy", "cumulative_error", "missing_energy")


@dataclass(frozen=True, kw_only=True)
class Architecture:
    """The sizes of a model that the advice depends on: layers L, heads H, and the widths C, D and F."""

    layers: int
    heads: int
    width: int
    head_dim: int
    feedforward: int

    @classmethod
    def of(cls, model: PreTrainedModel) -> "Architecture":
        """Read the configuration; raises ``ValueError`` where it names no layers or heads."""
        config: Any = model.config.get_text_config()
        names = ("num_hidden_layers", "num_attention_heads", "hidden_size")
        sizes: list[Any] = [getattr(config, name, None) for name in names]
        if not all(isinstance(size, int) for size in sizes):
            raise ValueError(f"a {config.model_type} model has no attention weights that can be read")
        layers, heads, width = sizes
        return cls(
            layers=layers,
            heads=heads,
            width=width,
            head_dim=getattr(config, "head_dim", None) or width // heads,
            feedforward=getattr(config, "intermediate_size", None) or 4 * width,
        )


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
        record: dict[str, Any] = {name: getattr(self, name) for name in ("length", "documents", "method")}
        record["values_per_head"] = self.singular_values.shape[-1]
        record |= {name: _six_digits(getattr(self, name).tolist()) for name in _MEANS}
        if losses := self.low_rank:
            record["low_rank_error"] = {
                "k": list(losses.ks),
                "fitted_on": losses.fitted_on,
                "measured_on": losses.measured_on,
                **{name: _six_digits(errors.tolist()) for name, errors in losses.errors.items()},
            }
        return record


def _six_digits(value: Any) -> Any:
    return [_six_digits(item) for item in value] if isinstance(value, list) else float(f"{value:.6g}")


def singular_values(matrix: Tensor, rank: int | None = None, seed: int = 0) -> dict[str, Tensor]:
    r"""The values of one (N, N) matrix that a :class:`Spectrum` averages: of all N σ, or of the first ``rank``.

    All are roots of the eigenvalues of the Gram matrix in float64, twice as fast as ``svdvals``. Squaring costs half
    the digits: a value below 1e-8 σ₁ is noise, too small to change a sum.

    The first are found by subspace iteration from a random start (arXiv 0909.4061, algorithm 4.4): they are never above
    the true ones, and the energy e of the m others is known from the Frobenius norm, so that K by energy is too large
    rather than too small. None of the others is above the last known σ, so that

    .. math:: e / σ \le \sum_{missing} σ_i \le \sqrt{m e}

    the right side by Cauchy and Schwarz; ``cumulative`` is the middle between both, ``cumulative_error`` its distance.
    """
    size = matrix.shape[-1]
    if rank is None:
        wide = matrix.double()
        values = torch.linalg.eigvalsh(wide.mT @ wide).clamp(min=0).flip(0).sqrt().cpu()
    else:
        with torch.random.fork_rng(devices=[matrix.device] if matrix.is_cuda else []):
            torch.manual_seed(seed)
            values = torch.svd_lowrank(matrix, q=min(rank + _OVERSAMPLING, size), niter=_PASSES)[1]
        values = values[:rank].double().cpu()
    squares, missing = values.square(), size - len(values)
    computed = energy = float(squares.sum())
    if missing:
        energy = float(torch.linalg.vector_norm(matrix, dtype=torch.float64)) ** 2
    last, noise = float(values[-1]), _ROUNDING * energy
    most = math.sqrt(missing * max(0.0, energy - computed + noise))
    least = max(0.0, energy - computed - noise) / last if last > 0 else 0.0
    known, total = values.cumsum(0), float(values.sum())
    below, above = known / (total + most), known / (total + min(least, most))
    return {
        "singular_values": values,
        "cumulative": (below + above) / 2,
        "energy": squares.cumsum(0) / energy,
        "cumulative_error": ((above - below) / 2).max(),
        "missing_energy": torch.tensor(max(0.0, 1 - computed / energy)),
    }


def measure_spectrum(
    model: PreTrainedModel,
    documents: Sequence[Tensor],
    *,
    exact_up_to: int = EXACT_UP_TO,
    rank: int = RANK,
    ks: Sequence[int] = KS,
    on_layer: Callable[[int, int], None] | None = None,
) -> Spectrum:
    r"""Singular values of the context mapping P = softmax(Q Kᵀ / √D) of every layer and head, averaged over documents.

    One P is in memory at a time, whatever the number of documents, layers and heads. The errors of low-rank outputs are
    measured too. With two or more documents of at most 1,024 tokens projections are fitted to the first half of them,
    and all errors measured on the second.

    Args:
        model: an encoder or decoder of transformers, a full-attention twin, or a linear encoder or a model of this
            package whose slots the input chooses (its P is what its queries and keys give); on its device and in
            evaluation mode.
        documents: ``(N,)`` token ids each, all of one length, without padding.
        exact_up_to: the longest N for which all N values are computed; beyond it the first ``rank``.
        rank: see ``exact_up_to``.
        ks: the K at which errors are measured.
        on_layer: called with the numbers of a document and a layer, from 0, once that layer is done.

    Raises:
        ValueError: no documents, documents of several lengths, or a model whose attention cannot be read.

    Source: arXiv 2006.04768, section 3 and figure 1.
    """
    lengths = {len(document) for document in documents}
    if len(lengths) != 1:
        raise ValueError(f"documents must be at least one, all of one length, got lengths {sorted(lengths)}")
    (length,), architecture = lengths, Architecture.of(model)
    shape, values = (architecture.layers, architecture.heads), None if length <= exact_up_to else rank
    fitted = len(documents) // 2 if length <= LONGEST else 0
    errors = LowRankMeasurement(shape, length, ks) if any(k <= length for k in ks) else None
    sums: dict[str, Tensor] = {}
    check_readable(model, documents[0].unsqueeze(0).to(model.device))
    for number, document in enumerate(documents):
        if errors is not None and number == fitted:
            errors.solve()

        def observe(head: ObservedHead, number: int = number) -> None:
            for name, row in singular_values(head.weights, values).items():
                total = sums.setdefault(name, torch.zeros(*shape, *row.shape, dtype=torch.float64))
                total[head.layer, head.number] += row
            if errors is not None:
                (errors.fit if number < fitted else errors.measure)(head)
            if on_layer and head.number == architecture.heads - 1:
                on_layer(number, head.layer)

        layers = observe_heads(model, document.unsqueeze(0).to(model.device), observe)
        if layers != architecture.layers:
            raise ValueError(
                f"a {model.config.model_type} model attends in {layers} of its {architecture.layers} layers: only "
                "models that attend in each are read"
            )
    return Spectrum(
        length=length,
        documents=len(documents),
        method="exact" if values is None else "randomised",
        architecture=architecture,
        low_rank=None if errors is None else errors.result(fitted, len(documents) - fitted),
        **{name: total / len(documents) for name, total in sums.items()},
    )


@dataclass(frozen=True, kw_only=True)
class Advice:
    r"""The smallest K that keep a share of the energy Σσ², and what they save.

    Attributes:
        level: the share, in percent.
        eps: ε = √(1 − share): ‖P − P_K‖ / ‖P‖ in the Frobenius norm, where P_K is the best P of rank K.
        heads: K for each head of each layer; None where more values are needed than were computed.
        layers: K for each layer, the largest of its heads.
        theorem_k: K by Theorem 2 of the paper at this ε, for every layer.
        saving: ``multiplications`` and ``memory`` (bytes of the intermediate results) of layers with ordinary attention
            over those of Linformer layers with these K, feed-forward included; ``attention_multiplications`` and
            ``attention_memory`` without it. None where a K is.
    """

    level: int
    eps: float
    heads: list[list[int | None]]
    layers: list[int | None]
    theorem_k: int
    saving: Mapping[str, float] | None

    def as_option(self) -> str | None:
        """The layers' K as ``linformer train --k`` takes them; None where one is not known."""
        return None if None in self.layers else ",".join(map(str, self.layers))

    def as_record(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON."""
        return {
            "eps": round(self.eps, 6),
            "heads": self.heads,
            "layers": self.layers,
            "theorem_k": self.theorem_k,
            "saving": self.saving and {name: round(ratio, 4) for name, ratio in self.saving.items()},
        }


def suggest_k(spectrum: Spectrum, level: int) -> Advice:
    """The smallest K of every head and layer whose σ hold ``level`` percent of the energy Σσ², mean over documents.

    The saving is that of the cost model (``torch_linformer.measuring.costs``) at the length of the spectrum, with
    one E and one F a layer.

    Raises:
        ValueError: ``level`` is no percentage above 0 and below 100.
    """
    if not 0 < level < 100:
        raise ValueError(f"level must be a percentage above 0 and below 100, got {level}")
    # A sum of squares that is a whole share but for rounding is that share.
    enough = spectrum.energy >= level / 100 - 1e-12
    first = torch.where(enough[..., -1], enough.int().argmax(dim=-1) + 1, 0).tolist()
    heads = [[k or None for k in row] for row in first]
    layers = [max(row) if all(row) else None for row in first]
    model, saving = spectrum.architecture, None
    if None not in layers:
        shape = partial(LayerSizes, width=model.width, heads=model.heads, feedforward=model.feedforward)
        sizes = [shape(length=spectrum.length, k=max(row)) for row in first]
        whole = layer_ratio(*sizes, sharing="headwise")
        attention = layer_ratio(*sizes, sharing="headwise", feedforward=False)
        names = ("multiplications", "memory", "attention_multiplications", "attention_memory")
        saving = dict(zip(names, [*whole, *attention], strict=True))
    eps = math.sqrt(1 - level / 100)
    theorem_k = johnson_lindenstrauss_k(spectrum.length, model.head_dim, eps)
    return Advice(level=level, eps=eps, heads=heads, layers=layers, theorem_k=theorem_k, saving=saving)


def k_by_rank(spectrum: Spectrum) -> int | None:
    """The K that keeps 95 % of the energy of P in every layer; None where more values are needed than were computed."""
    layers = [k for k in suggest_k(spectrum, BY_RANK).layers if k is not None]
    return max(layers) if len(layers) == spectrum.architecture.layers else None


def k_that_holds(spectrum: Spectrum) -> int | None:
    """The smallest K tried with which slots, window and exact tokens lose at most :data:`BOUND`; None where none does.

    It is 0 where window and exact tokens by themselves lose no more.
    """
    return next((k for k, loss in loss_beside_window(spectrum).items() if loss <= BOUND), None)


def loss_beside_window(spectrum: Spectrum) -> dict[int, float]:
    """By K, ‖P̃V − PV‖ / ‖PV‖ of slots chosen by the input as they begin, with window and exact tokens, mean over heads.

    At 0 there are no slots. Nothing for a model with a mask, and where all K tried are above the length.
    """
    losses = spectrum.low_rank
    if losses is None or "slots_window_and_exact" not in losses.errors:
        return {}
    without, by_k = (losses.errors[name].mean(dim=(0, 1)) for name in ("window_and_exact", "slots_window_and_exact"))
    return dict(zip([0, *losses.ks], [without[0].item(), *by_k.tolist()], strict=True))


def which_k_is_enough(spectrum: Spectrum) -> str:
    """:func:`k_that_holds` in a sentence, and one on what the rank of P by itself asks for."""
    losses, k, rank = loss_beside_window(spectrum), k_that_holds(spectrum), k_by_rank(spectrum)
    by_rank = (
        f"The rank of P by itself asks for K {rank or f'above {spectrum.singular_values.shape[-1]:,}'} in the layer "
        f"that needs most, to keep {BY_RANK} % of the energy"
    )
    if not losses:
        enough = "no loss beside a window was measured"
    elif k is None:
        best = f"at best {min(losses.values()):.3f}, without slots {losses[0]:.3f}"
        enough = f"no K tried is enough: before any training slots, window, first and last token lose {best}"
    else:
        lost = f"lose {losses[k]:.3f} before any training, at most {BOUND}"
        enough = f"no slots are needed: window, first and last token {lost}"
        if k:
            enough = f"K {k} is enough: slots, window, first and last token {lost}, without slots {losses[0]:.3f}"
        if rank is None or rank > k:
            by_rank += (
                ": a head that looks at neighbors has a P of nearly full rank, and neighbors are what the window reads"
            )
    return f"At {spectrum.length:,} tokens {enough}. {by_rank}."
