"""Arguments of ``forward`` that it does not name: those of transformers are taken, a misspelt one is refused."""

import difflib
import inspect
import sys
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, ParamSpec, TypeVar, cast

import torch
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from torch_linformer.functional.padding import Padding

P = ParamSpec("P")
T = TypeVar("T")
# A cache: past_key_values of our models, and of transformers before 5.24. There it is cache, and generate and outputs
# warn of the former name.
CACHE_NAMES = ("past_key_values", "cache")
CACHE = "cache" if "cache" in {field.name for field in fields(BaseModelOutputWithPast)} else "past_key_values"
# What every model hands on to its backbone.
HANDED_ON = ("past_key_values", "use_cache", "output_hidden_states", "output_attentions", "return_dict")
# What collators write about packed rows for attention kernels, beside the position_ids that say it all.
BOUNDARIES = ("cu_seq_lens_q", "cu_seq_lens_k", "max_length_q", "max_length_k", "seq_idx")
# What generate, tokenizers and cached losses of sentence-transformers hand to every model, and ours have no use for.
UNREAD = (
    *BOUNDARIES,
    *("cache_position", "tokenizer", "assistant_tokenizer"),
    *("special_tokens_mask", "offset_mapping", "overflow_to_sample_mapping", "length"),
    *("token_embeddings", "sentence_embedding", "all_layer_embeddings"),
)


def known_arguments(*others: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """A ``forward`` that takes of ``**kwargs`` only names of transformers, and these others, and may return a tuple."""

    def decorate(forward: Callable[P, T]) -> Callable[P, T]:
        names = [*inspect.signature(forward).parameters, *others, *HANDED_ON]
        known = {*names, *UNREAD} - {"self", "kwargs"}

        @wraps(forward)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            model: Any = args[0]
            mask = kwargs.get("attention_mask", args[2] if len(args) > 2 else None)
            if isinstance(mask, Padding) and not model.takes_pieces:
                raise ValueError(f"{type(model).__name__} needs whole rows: no piece of them can be its attention_mask")
            if "cache" in kwargs and kwargs.get("past_key_values") is None:
                kwargs["past_key_values"] = kwargs.pop("cache")
            for name in kwargs.keys() - known:
                refuse(name, f"{type(model).__name__}.forward()", names)
            return forward(*args, **kwargs)

        return cast(Callable[P, T], can_return_tuple(checked))

    return decorate


def recording(run: Callable[P, T]) -> Callable[P, T]:
    """What runs the layers, with the hidden states and attentions that its caller or the configuration asks for."""
    return cast(Callable[P, T], merge_with_config_defaults(capture_outputs(run)))


def check_rows(kwargs: dict[str, Any], position_ids: object) -> None:
    """Raise ``ValueError`` where rows are packed, or cut into pieces, in a way that a backbone does not see."""
    accelerate: Any = sys.modules.get("accelerate.state")
    if accelerate is not None and not torch.compiler.is_compiling() and accelerate.is_initialized():
        parallelism = accelerate.AcceleratorState().parallelism_config
        for name in ("cp_size", "sp_size"):
            if (getattr(parallelism, name, None) or 1) > 1:
                raise ValueError(
                    f"{name} of accelerate's ParallelismConfig gives each process a piece of every row, and slots "
                    "would be made of that piece alone: take torch_linformer.distributed.context_parallel instead"
                )
    boundaries = [name for name in BOUNDARIES if kwargs.get(name) is not None]
    if boundaries and position_ids is None:
        raise ValueError(
            f"{boundaries[0]} without position_ids: packed documents are told apart by position_ids that begin again; "
            "give them too (DataCollatorWithFlattening: return_position_ids=True)"
        )


def refuse(name: str, function: str, known: list[str]) -> None:
    """Raise ``TypeError`` for a keyword, with the nearest of those that are known."""
    similar = difflib.get_close_matches(name, known, n=1)
    hint = f". Did you mean {similar[0]!r}?" if similar else ""
    raise TypeError(f"{function} got an unexpected keyword argument {name!r}{hint}")
