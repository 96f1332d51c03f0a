"""What learns: the original, made linear as the options of an adaptation say."""

from typing import Any, cast

from transformers import PreTrainedModel

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.teacher import Marks
from torch_linformer.encoders.classes import LinearEncoder
from torch_linformer.encoders.linearize import linearize
from torch_linformer.errors import InputError
from torch_linformer.nn.options import default_k


def build_student(original: PreTrainedModel, settings: AdaptSettings, max_length: int, marks: Marks) -> LinearEncoder:
    """The original with slots; raises ``InputError`` where K or the exact tokens do not fit."""
    k = default_k(max_length) if settings.k is None else settings.k
    if k > max_length:
        raise InputError(f"--k must lie between 0 and the {max_length:,} tokens read at once, got {k}")
    first = marks.before if settings.exact_first is None else settings.exact_first
    last = marks.after if settings.exact_last is None else settings.exact_last
    if first + last > max_length:
        raise InputError(
            f"--exact-first {first} and --exact-last {last} are more than the {max_length:,} tokens read at once"
        )
    try:
        made = linearize(
            original,
            k,
            settings.window or None,
            max_length=max_length,
            exact_first=first,
            exact_last=last,
            exact_below=settings.exact_below,
            projection=cast(Any, settings.projection),
        )
    except ValueError as error:
        raise InputError(str(error)) from None
    return cast(LinearEncoder, made)
