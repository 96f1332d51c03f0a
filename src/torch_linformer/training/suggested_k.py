"""The K that a ``spectrum.json`` suggests, as ``--k @spectrum.json`` asks for it."""

import json
import re
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError

BY_LOSS = "loss"  # of slots beside a window: what is taken by default where it was measured
LEVEL = "95"  # percent of the energy, by default elsewhere


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
        lengths = ", ".join(f"{each:,}" for each in sorted(by_length))
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
