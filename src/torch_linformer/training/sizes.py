"""The sizes of new models, and the K that a spectrum suggests for their layers."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError

BY_LOSS = "loss"  # of slots beside a window: what is taken by default where it was measured
LEVEL = "95"  # percent of the energy, by default elsewhere


@dataclass(frozen=True)
class Size:
    """Dimensions of a model, and what training it from scratch asks for."""

    hidden_size: int
    layers: int
    heads: int
    feed_forward: int
    learning_rate: float
    dropout: float
    position_embedding: str


# `tiny` reads thousands of tokens a document on two CPU cores: one layer, whose E and F know positions themselves.
# `base` has the dimensions of RoBERTa-base, `large` those of RoBERTa-large.
SIZES = {
    "tiny": Size(128, 1, 4, 256, 3e-3, 0.3, "none"),
    "small": Size(384, 6, 6, 1536, 5e-4, 0.1, "learned"),
    "base": Size(768, 12, 12, 3072, 1e-4, 0.1, "learned"),
    "large": Size(1024, 24, 16, 4096, 5e-5, 0.1, "learned"),
}


def size_of_width(width: int) -> Size:
    """The size whose learning rate suits a model of that width: the widest that is no wider, or else the smallest."""
    fitting = [size for size in SIZES.values() if size.hidden_size <= width]
    return max(fitting, key=lambda size: size.hidden_size, default=SIZES["tiny"])


def numbers_of_slots(k: str, layers: int, size: str) -> list[int]:
    """The numbers of ``--k``: one, or one for each layer.

    Raises:
        InputError: it is neither.
    """
    try:
        numbers = [int(part) for part in str(k).split(",")]
    except ValueError:
        raise InputError(f"--k must be a number or comma-separated numbers, got {k!r}") from None
    if len(numbers) not in (1, layers):
        raise InputError(f"--k must be one number or one for each of the {layers} layers of --size {size}")
    return numbers


def suggested_k(reference: str, length: int, size: str, layers: int) -> str:
    """The K of every layer, comma-separated, that a file of ``linformer spectrum`` suggests for this length.

    Args:
        reference: ``@FILE`` for the K that holds beside a window, or ``@FILE:99`` for that of a share of the energy.
        length: tokens that the new model reads; spectra of other lengths suggest another K.
        size: the name of the new model's size.
        layers: how many it has.

    Raises:
        InputError: the file is missing or of another kind, or lacks this length, share or number of layers.
    """
    option = f"--k {reference}"
    match = re.fullmatch(r"@(?P<file>.+?)(:(?P<level>\d+))?", reference)
    if match is None:
        raise InputError(f"{option}: name a file of linformer spectrum after the @")
    by_length = _suggestions(match["file"], option)
    if length not in by_length:
        lengths = ", ".join(f"{measured:,}" for measured in sorted(by_length))
        raise InputError(
            f"{option}: has K for {lengths} tokens, not for --max-length {length}; "
            f"measure it with linformer spectrum --length {length}, or take another --max-length"
        )
    levels = by_length[length]
    shares = [name for name in levels if name != BY_LOSS]
    level = match["level"] or (BY_LOSS if BY_LOSS in levels else LEVEL)
    if level not in levels:
        raise InputError(f"{option}: has K for {', '.join(shares)} % of the energy, not for {level}")
    ks = levels[level]["layers"]
    if len(ks) != layers:
        raise InputError(f"{option}: has K for {len(ks)} layers, but --size {size} has {layers}; take another --size")
    if None in ks and level == BY_LOSS:
        raise InputError(
            f"{option}: no K that was tried keeps the loss below {levels[level]['bound']}; name a share of the energy, "
            f"as {reference}:{LEVEL}"
        )
    if None in ks:
        raise InputError(
            f"{option}: layer {ks.index(None) + 1} needs more singular values for {level} % than were computed; "
            "take a smaller share, or measure more with linformer spectrum --rank"
        )
    return ",".join(map(str, ks))


def _suggestions(path: str, option: str) -> dict[int, Any]:
    """What a file of ``linformer spectrum`` suggests for each length it measured."""
    try:
        spectra = json.loads(Path(path).read_text(encoding="utf-8"))["spectra"]
        return {int(spectrum["length"]): spectrum["suggested_k"] for spectrum in spectra}
    except OSError as error:
        raise InputError(f"{option}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise InputError(f"{option}: is no spectrum.json of linformer spectrum") from None
