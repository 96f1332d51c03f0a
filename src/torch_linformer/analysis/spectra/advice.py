"""Which K a spectrum asks for, and what that K saves."""

import math
from dataclasses import dataclass
from typing import Any

from torch_linformer.analysis.spectra.spectrum import Spectrum
from torch_linformer.functional.slots import johnson_lindenstrauss_k
from torch_linformer.measuring.costs import LayerSizes, layer_ratio

LEVELS = (90, 95, 99)  # percent of the energy Σσ²
BY_RANK = 95  # the one that a conclusion names
# What slots that are not trained yet may lose beside a window: all-MiniLM-L6-v2 begins with 0.375 at K 32 of 512 tokens
# and is distilled to a cosine of 0.985 from there (docs/slots.md).
BOUND = 0.38


@dataclass(frozen=True)
class Advice:
    r"""The smallest K that keep a share of the energy Σσ², and what they save.

    Attributes:
        level: the share, in percent.
        eps: ε = √(1 − share): ‖P − P_K‖ / ‖P‖ in the Frobenius norm, where P_K is the best P of rank K.
        heads: K for each head of each layer; None where more values are needed than were computed.
        layers: K for each layer, the largest of its heads.
        theorem_k: K by Theorem 2 of the paper at this ε, for every layer.
        multiplications: of layers with ordinary attention over those of Linformer layers with these K, feed-forward
            included; None where a K is.
        memory: likewise the bytes of the intermediate results.
        attention_multiplications: those of only the attention.
        attention_memory: likewise the bytes.
    """

    level: int
    eps: float
    heads: list[list[int | None]]
    layers: list[int | None]
    theorem_k: int
    multiplications: float | None
    memory: float | None
    attention_multiplications: float | None
    attention_memory: float | None

    def as_option(self) -> str | None:
        """The layers' K as ``linformer train --k`` takes them; None where one is not known."""
        return None if None in self.layers else ",".join(map(str, self.layers))

    def as_record(self) -> dict[str, Any]:
        """Everything as numbers and lists, for JSON."""
        ratios = ("multiplications", "memory", "attention_multiplications", "attention_memory")
        return {
            "eps": round(self.eps, 6),
            "heads": self.heads,
            "layers": self.layers,
            "theorem_k": self.theorem_k,
            "saving": {name: None if (ratio := getattr(self, name)) is None else round(ratio, 4) for name in ratios},
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
    first = enough.int().argmax(dim=-1) + 1
    heads = [
        [int(k) if is_enough else None for k, is_enough in zip(*rows, strict=True)]
        for rows in zip(first.tolist(), enough[..., -1].tolist(), strict=True)
    ]
    layers = [None if None in ks else max(k for k in ks if k is not None) for ks in heads]
    eps = math.sqrt(1 - level / 100)
    theorem_k = johnson_lindenstrauss_k(spectrum.length, spectrum.architecture.head_dim, eps)
    return Advice(
        level, eps, heads, layers, theorem_k, *_saving(spectrum, layers, True), *_saving(spectrum, layers, False)
    )


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
    losses, k, at = loss_beside_window(spectrum), k_that_holds(spectrum), f"At {spectrum.length:,} tokens"
    rank = k_by_rank(spectrum)
    by_rank = f"The rank of P by itself asks for K {rank or f'above {spectrum.singular_values.shape[-1]:,}'}"
    by_rank += f" in the layer that needs most, to keep {BY_RANK} % of the energy"
    if not losses:
        return f"{at} no loss beside a window was measured. {by_rank}."
    lost = f"lose {losses[k or 0]:.3f} before any training, at most {BOUND}"
    if k is None:
        best = f"at best {min(losses.values()):.3f}, without slots {losses[0]:.3f}"
        return f"{at} no K tried is enough: before any training slots, window and exact tokens lose {best}. {by_rank}."
    if k == 0:
        enough = f"no slots are needed: window and exact tokens {lost}"
    else:
        enough = f"K {k} is enough: slots, window and exact tokens {lost}, without slots {losses[0]:.3f}"
    if rank is not None and rank <= k:
        return f"{at} {enough}. {by_rank}."
    return (
        f"{at} {enough}. {by_rank}: a head that looks at neighbors has a P of nearly full rank, and neighbors are what "
        "the window reads."
    )


def k_by_rank(spectrum: Spectrum) -> int | None:
    """The K that keeps 95 % of the energy of P in every layer; None where more values are needed than were computed."""
    layers = suggest_k(spectrum, BY_RANK).layers
    return None if None in layers else max(k for k in layers if k is not None)


def _saving(spectrum: Spectrum, ks: list[int | None], feedforward: bool) -> tuple[float | None, float | None]:
    """Multiplications and bytes of ordinary layers over those of Linformer layers with these K."""
    if None in ks:
        return None, None
    model = spectrum.architecture
    layers = [
        LayerSizes(length=spectrum.length, k=k, width=model.width, heads=model.heads, feedforward=model.feedforward)
        for k in ks
        if k is not None
    ]
    return layer_ratio(*layers, sharing="headwise", feedforward=feedforward)
