"""Models of transformers, of whatever kind, from a folder or the hub."""

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import transformers
from torch import nn
from transformers import AutoConfig, AutoModel, PreTrainedConfig, PreTrainedModel

from torch_linformer import models
from torch_linformer.data.reading.sources import ask_hub
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import LinearConfig
from torch_linformer.encoders.positions import UNLIMITED, Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.models.convert import refusal
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.model_files import check_model

UNUSED = "pooler."  # in the names of weights that an encoder may lack


def load_any_config(source: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a model folder or of a model on the hub."""
    here = Path(source).exists()
    if here and not (Path(source) / "config.json").is_file():
        raise InputError(f"{source}: is no model folder: it has no config.json")
    nowhere = InputError(f"{source}: no such folder, and no model of that name could be fetched")
    try:
        if not here:
            ask_hub("model", source)
    except Exception:  # the hub and the network share no base class of errors
        raise nowhere from None
    try:
        return cast(PreTrainedConfig, AutoConfig.from_pretrained(source, trust_remote_code=trust_remote_code))
    except Exception as error:  # nor do transformers and the code that it runs
        if "trust_remote_code" in str(error):  # the argument that transformers asks for
            raise needs_code(source) from None
        if not here and isinstance(error, OSError):
            raise nowhere from None
        raise InputError(f"{source}: config.json cannot be read: {first_line(error)}") from None


def needs_code(source: str) -> InputError:
    """The error for a model that only code in its own folder can open."""
    return InputError(
        f"{source}: needs code from its folder (auto_map in config.json), which only linformer adapt runs, with "
        "--trust-remote-code"
    )


def quiet_transformers() -> None:
    """Keep the log and the progress bars of transformers off the screen."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def load_backbone(source: str, device: str = "cpu") -> PreTrainedModel:
    """The model below any head, in float32, on a device, for evaluation."""
    config: Any = load_any_config(source)
    check_model(source, config)
    opener: Any = AutoModel
    if isinstance(config, LinformerConfig):
        config.chunk_size = None  # chunks would not give whole matrices to look at
        if config.backbone_config is not None:  # a head of ours, by which its encoder is opened
            opener = getattr(models, (config.architectures or [""])[0], LinformerForSequenceClassification)
    model, report = open_by(opener, source, config, ignore_mismatched_sizes=True)
    check_weights(source, report, unused=UNUSED)
    model = model if opener is AutoModel else cast(Any, model.base_model).body
    cast(nn.Module, model).to(device).eval()
    return model


def open_by(opener: Any, source: str, config: Any, **options: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model that a class of transformers makes of a folder, in float32, and its report of the weights.

    Nothing in the folder is run.

    Raises:
        InputError: it cannot be read.
    """
    quiet_transformers()
    options |= {"dtype": WEIGHTS, "trust_remote_code": False, "output_loading_info": True}
    try:
        model, report = opener.from_pretrained(source, config=config, **options)
    except pickle.UnpicklingError as error:
        raise InputError(str(refusal(source, error))) from None
    except Exception as error:  # transformers and safetensors share no base class of errors
        raise InputError(f"{source}: the model cannot be read: {first_line(error)}") from None
    return cast(PreTrainedModel, model), report


def check_weights(source: str, report: dict[str, Any], unused: str | None = None) -> None:
    """Raise ``InputError`` where a report of transformers says that weights are missing or of another shape.

    Those with ``unused`` in their names may be missing.
    """
    names = {*report["missing_keys"], *(name for name, *_ in report["mismatched_keys"])}
    missing = sorted(name for name in names if unused is None or unused not in name)
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{source}: the weights lack {missing[0]}{more} as config.json has it; copy the folder again")


def check_lengths(model: PreTrainedModel, source: str, lengths: Sequence[int]) -> None:
    """Raise ``InputError`` where a length is more than the model reads."""
    longest = longest_input(model)
    for length in lengths:
        if longest is not None and length > longest:
            raise InputError(f"--length {length}: {source} reads at most {longest:,} tokens; take a shorter length")


def longest_input(model: PreTrainedModel) -> int | None:
    """Tokens that a model reads at once; None where the model does not tell."""
    config: Any = model.config.get_text_config()
    if isinstance(config, (LinformerConfig, LinearConfig)):
        return config.longest_input
    longest = Positions.of(base_of(model)).longest
    return None if longest == UNLIMITED else longest
