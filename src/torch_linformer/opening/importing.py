"""Weights trained elsewhere as a model folder of this package."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerPreTrainedModel, convert
from torch_linformer.opening.model_checks import check_model
from torch_linformer.opening.new_folder import check_free, new_folder
from torch_linformer.opening.pretrained import load_any_config, quiet_transformers
from torch_linformer.opening.tokenizers import check_vocabulary, load_tokenizer_if_any, save_tokenizer


@dataclass(frozen=True)
class Origin:
    """Where weights come from: what converts them, and which of the options it takes."""

    convert: Callable[..., LinformerPreTrainedModel]
    options: tuple[str, ...] = ("k", "max_length", "projection")
    is_folder: bool = True


ORIGINS = {  # folders are named by their model_type
    "lucidrains": Origin(convert.from_lucidrains, ("heads",), is_folder=False),
    "linformer-pytorch": Origin(convert.from_linformer_pytorch, ("activation",), is_folder=False),
    "fairseq": Origin(convert.from_fairseq, ("heads",), is_folder=False),
    "bert": Origin(convert.from_bert),
    "roberta": Origin(convert.from_roberta),
    "xlm-roberta": Origin(convert.from_xlm_roberta),
    "distilbert": Origin(convert.from_distilbert),
}
_ARGUMENTS = {"heads": "num_heads", "max_length": "max_len"}  # what the converters call these options


def import_model(source: str, origin: str, output: Path, **options: Any) -> LinformerPreTrainedModel:
    """Write weights trained elsewhere as a model folder: configuration, safetensors, the tokenizer if there is one.

    ``source`` is a checkpoint file, or, for an encoder of transformers, its folder or its name on the hub; ``origin``
    is a key of :data:`ORIGINS`. Options that are None count as not given.
    """
    if origin not in ORIGINS:
        raise InputError(f"--from must be one of {', '.join(ORIGINS)}, got {origin!r}")
    given = {name: value for name, value in options.items() if value is not None}
    for name in sorted(given.keys() - ORIGINS[origin].options):
        raise InputError(f"--{name.replace('_', '-')} has no effect with --from {origin}")
    check_free(output)
    found, arguments = ORIGINS[origin], {_ARGUMENTS.get(name, name): value for name, value in given.items()}
    if found.is_folder:
        config: Any = load_any_config(source)  # its errors describe what is wrong with the folder
        check_model(source, config)
        tokenizer = load_tokenizer_if_any(source)
        if tokenizer is not None:
            check_vocabulary(source, tokenizer, config.vocab_size)
        model = found.convert(source, **arguments)
    else:
        if not Path(source).exists():
            raise InputError(f"{source}: no such file")
        model, tokenizer = found.convert(convert.read_checkpoint(source), **arguments), None
    quiet_transformers()
    with new_folder(output) as folder:
        model.save_pretrained(folder)
        if tokenizer is not None:
            tokenizer.model_max_length = model.config.max_position_embeddings
            save_tokenizer(tokenizer, model, folder)
    return model
