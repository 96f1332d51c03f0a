"""A model and its tokenizer, opened from a folder or the hub or written into one; nothing that lies there is run."""

import hashlib
import json
import os
import pickle
import re
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, cast

import tokenizers.normalizers
import transformers
from safetensors import SafetensorError, safe_open
from torch import nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    PreTrainedTokenizerFast,
)

from torch_linformer import models
from torch_linformer.data.reading.sources import ask_hub
from torch_linformer.data.tokenizer import reads_from_the_left
from torch_linformer.encoders.attentions import base_of
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder, class_named
from torch_linformer.encoders.heads import head_of
from torch_linformer.encoders.positions import UNLIMITED, Positions
from torch_linformer.errors import InputError, first_line
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerPreTrainedModel,
    LinformerSeq2SeqConfig,
    convert,
)
from torch_linformer.models.convert import refusal
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.folder import check_free, new_folder
from torch_linformer.opening.hub import model_file
from torch_linformer.opening.named_encoders import encoder_folder
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.reporting.files import file_state, flush, write_json
from torch_linformer.reporting.tables import format_bytes, format_count

AnyConfig = LinformerConfig | LinformerSeq2SeqConfig | LinearConfig
AnyModel = LinformerPreTrainedModel | LinearEncoder
SIZES = ("num_hidden_layers", "hidden_size", "intermediate_size", "vocab_size", "max_position_embeddings")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
# What is read of a model folder; results that lie there too are none of it.
READ = re.compile(
    r"(config|data|modules|config_sentence_transformers|sentence_\w+_config)\.json"
    r"|(tokenizer|tokenizer_config|special_tokens_map|added_tokens|vocab)\.json|vocab\.txt|merges\.txt"
    r"|.+\.(safetensors|bin|model|index\.json)"
)
TOKENIZER_FILES = ("tokenizer.json", "vocab.txt", "vocab.json", "tokenizer.model", "spiece.model")
TOKENIZER_CONFIG = "tokenizer_config.json"
ORIGINS: dict[str, tuple[Callable[..., LinformerPreTrainedModel], dict[str, str]]] = {  # options: converters' names
    "lucidrains": (convert.from_lucidrains, {"heads": "num_heads"}),
    "linformer-pytorch": (convert.from_linformer_pytorch, {"activation": "activation"}),
    "fairseq": (convert.from_fairseq, {"heads": "num_heads"}),
}


def load_any_config(source: str, trust_remote_code: bool = False) -> PreTrainedConfig:
    """The configuration of a model folder or of a model on the hub."""
    source = encoder_folder(source)
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


def load_config(path: str) -> AnyConfig:
    """The configuration of a linear model's folder (or on the hub)."""
    config = load_any_config(path)
    if not isinstance(config, AnyConfig):
        kind = config.model_type
        raise InputError(f"{path}: holds a {kind} model, not a linear one; linformer adapt makes one of an encoder")
    return config


def check_model(source: str, config: PreTrainedConfig) -> None:
    """Raise ``InputError`` for a model that cannot be built, or whose weights would be read from elsewhere.

    Sizes such as 10,000,000 layers are refused before these are built: where their weights exceed the memory, or what
    the files can hold. Of a name on the hub only the sizes are looked at.
    """
    if isinstance(config, LinearConfig):
        _check_linear(source, config)
    parts: list[Any] = [getattr(config, "backbone_config", None) or config]  # below a head may be another encoder
    if isinstance(config, LinformerSeq2SeqConfig):
        parts = [config.encoder, config.decoder]
    sizes = [{name: size for name in SIZES if isinstance(size := getattr(part, name, None), int)} for part in parts]
    least = sum(_least_weights(*pair) for pair in zip(parts, sizes, strict=True))
    shown = ", ".join(f"{name} {size:,}" for of_part in sizes for name, size in of_part.items())
    needs = f"{source}: config.json asks for {format_count(least)} weights or more ({shown})"
    if 4 * least > memory_bytes():  # bytes of float32
        memory = format_bytes(memory_bytes())
        raise InputError(f"{needs}, which do not fit into the {memory} of this machine; correct it, or copy the folder")
    folder = Path(encoder_folder(source))
    if not folder.is_dir():
        return
    for index in filter(Path.is_file, map(folder.joinpath, INDICES)):
        _check_index(index)
    if not isinstance(config, AnyConfig):
        return
    files = list(folder.glob("*.safetensors"))
    try:
        for file in files:
            with safe_open(file, framework="pt"):  # which reads only names and sizes
                pass
        held = sum(file.stat().st_size for file in files)
    except (OSError, SafetensorError):  # which is told when they are read
        return
    if files and least / 2 > held:  # four bits a weight are the least
        raise InputError(f"{needs}, and its weights are {format_bytes(held)}; copy the folder again")


def _check_linear(source: str, config: LinearConfig) -> None:
    """What is said of the attentions of a linear encoder."""
    try:
        attentions = config.attentions
        Positions.said_by(config)
        sizes = [config.linear_options.max_length, *(size for sizes in attentions.values() for size in sizes[:3])]
        reaches = [attention.reach for attention in attentions.values() if attention.reach is not None]
        numbers = all(type(number) is int for number in (*sizes, *reaches))
        if not (attentions and numbers and min(sizes) > 0 and min(reaches, default=0) >= 0):
            raise TypeError
    except ValueError as error:
        problem = str(error) if str(error).startswith("config.json") else f"config.json: {error}"
        raise InputError(f"{source}: {problem}") from None
    except (AttributeError, KeyError, TypeError):  # whatever stands there instead
        raise InputError(
            f"{source}: config.json has no options and attentions of a linear encoder; copy the folder again"
        ) from None


def _check_index(index: Path) -> None:
    """Where weights lie in several files, an index names these, which may not lie outside the folder."""
    try:
        paths = set(map(PurePosixPath, json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InputError(f"{index}: is no index of weights; copy the folder again") from None
    for path in sorted(paths):
        if path.is_absolute() or ".." in path.parts:
            raise InputError(f"{index}: names {str(path)!r}, which is not in the folder; nothing is read from there")
        if not (index.parent / path).is_file():
            raise InputError(f"{index}: names {str(path)!r}, which is missing; copy the folder again")


def _least_weights(config: Any, sizes: dict[str, int]) -> int:
    """Weights that a model has at least, as far as its kind is known: feed-forward layers, embeddings, one map E."""
    width, layers = sizes.get("hidden_size", 0), sizes.get("num_hidden_layers", 0)
    if hasattr(config, "num_hidden_groups"):  # ALBERT, whose layers share their weights
        layers = min(layers, 1)
    least = layers * width * max(1, 2 * sizes.get("intermediate_size", 0))
    if isinstance(config, LinformerConfig):
        positions = sizes["max_position_embeddings"]
        least += sizes["vocab_size"] * width + (positions * width if config.position_embedding == "learned" else 0)
        if config.attention == "linformer" and config.projection == "linear" and not config.causal:
            least += positions * min(config.slots)
    return least


def model_digest(source: str) -> str:
    """A digest of the configuration, tokenizer and weights of a model folder (or of a model on the hub).

    Two folders with the same have models that compute the same. Reading the weights takes about as long as loading
    them.

    Raises:
        InputError: there is no such model.
    """
    config = model_file(source, "config.json")
    if config is None:
        raise InputError(f"{source}: is no model folder: it has no config.json")
    folder = config.parent
    files = [file for file in folder.iterdir() if READ.fullmatch(file.name)]
    files += folder.glob("[0-9]*_*/**/*")  # modules of sentence-transformers, such as 1_Pooling
    states = {file.relative_to(folder).as_posix(): file_state(file) for file in sorted(files) if file.is_file()}
    return hashlib.sha256(json.dumps(states, sort_keys=True).encode()).hexdigest()


def quiet_transformers() -> None:
    """Keep the log and the progress bars of transformers off the screen."""
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def open_by(opener: Any, source: str, config: Any) -> tuple[PreTrainedModel, dict[str, Any]]:
    """The model that a class of transformers makes of a folder, in float32, and its report of the weights.

    Raises:
        InputError: it cannot be read.
    """
    quiet_transformers()
    options = {"dtype": WEIGHTS, "trust_remote_code": False, "output_loading_info": True}
    options["ignore_mismatched_sizes"] = True  # the report has them
    try:
        model, report = opener.from_pretrained(encoder_folder(source), config=config, **options)
    except pickle.UnpicklingError as error:
        raise InputError(str(refusal(source, error))) from None
    except Exception as error:  # transformers and safetensors share no base class of errors
        raise InputError(f"{source}: the weights cannot be read: {first_line(error)}; copy the folder again") from None
    return cast(PreTrainedModel, model), report


def check_weights(source: str, report: dict[str, Any], may_lack: Callable[[str], bool] = lambda name: False) -> None:
    """Raise ``InputError`` where a report of transformers says that weights are missing or of another shape."""
    names = {name for name in report["missing_keys"] if not may_lack(name)}
    missing = sorted({*names, *(name for name, *_ in report["mismatched_keys"])})
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise InputError(f"{source}: the weights lack {missing[0]}{more} as config.json has it; copy the folder again")


def is_pooler(name: str) -> bool:
    """Whether a weight is one that an encoder may lack, as its vectors are made otherwise."""
    return "pooler." in name


def load_model(path: str) -> AnyModel:
    """The linear model of a folder, of the class it was saved as, with weights in float32."""
    config = load_config(path)
    name = (config.architectures or [""])[0]
    kind: Any = class_named(config, name) if isinstance(config, LinearConfig) else getattr(models, name, None)
    if not (isinstance(kind, type) and issubclass(kind, PreTrainedModel)):
        raise InputError(f"{path}: config.json names no known model class ({name or 'none'})")
    check_model(path, config)
    model, report = open_by(kind, path, config)
    check_weights(path, report)
    if isinstance(model, LinearEncoder):
        positions, length, base = Positions.said_by(model.config), read_length(model.config), base_of(model)
        for table in positions.tables:
            longest = len(base.get_parameter_or_buffer(table)) - positions.offset
            if longest < length:
                raise InputError(
                    f"{path}: config.json lets the model read {length:,} tokens, and it has {longest:,} positions; "
                    "copy the folder again, or make it linear with max_length"
                )
    return cast(AnyModel, model)


def load_backbone(source: str, device: str = "cpu") -> PreTrainedModel:
    """The model below any head, in float32, on a device, for evaluation."""
    config: Any = load_any_config(source)
    check_model(source, config)
    opener: Any = AutoModel
    if isinstance(config, LinformerConfig):
        config.chunk_size = None  # chunks would not give whole matrices to look at
        if config.backbone_config is not None:  # a head of ours, by which its encoder is opened
            opener = getattr(models, (config.architectures or [""])[0], LinformerForSequenceClassification)
    model, report = open_by(opener, source, config)
    check_weights(source, report, is_pooler)
    model = model if opener is AutoModel else cast(Any, model.base_model).body
    cast(nn.Module, model).to(device).eval()
    return model


def load_reader(path: str) -> AnyModel | PreTrainedModel:
    """The linear model of a folder, of the class it was saved as; or any other encoder of transformers, without head.

    Raises:
        InputError: it cannot be read, or is an encoder-decoder of transformers.
    """
    config: Any = load_any_config(path)
    if isinstance(config, AnyConfig):
        return load_model(path)
    if config.is_encoder_decoder:
        raise InputError(f"{path}: is an encoder-decoder ({config.model_type}); vectors are made by an encoder")
    return load_backbone(path)


def reader_config(config: AnyConfig) -> LinformerConfig | LinearConfig:
    """The configuration of what reads a document: of an encoder-decoder, its encoder's."""
    return cast(LinformerConfig, config.encoder) if isinstance(config, LinformerSeq2SeqConfig) else config


def read_length(config: AnyConfig) -> int:
    """Tokens that a model reads at once; of one that reads any number, those it was trained on."""
    reader = reader_config(config)
    return reader.longest_input or cast(LinformerConfig, reader).max_position_embeddings


def reading_options(config: AnyConfig) -> dict[str, Any]:
    """What a model is called with beside a text, where nothing is to go on after it."""
    reader = reader_config(config)
    return {"use_cache": False} if isinstance(reader, LinformerConfig) and reader.causal else {}


def longest_input(model: PreTrainedModel) -> int | None:
    """Tokens that any model reads at once; None where it has no limit, or does not tell."""
    config: Any = model.config.get_text_config()
    if isinstance(config, LinformerConfig | LinearConfig):
        return config.longest_input
    longest = Positions.of(base_of(model)).longest
    return None if longest == UNLIMITED else longest


def check_lengths(model: PreTrainedModel, source: str, lengths: Sequence[int]) -> None:
    """Raise ``InputError`` where a length is more than the model reads."""
    longest = longest_input(model)
    for length in lengths:
        if longest is not None and length > longest:
            raise InputError(f"--length {length}: {source} reads at most {longest:,} tokens; take a shorter length")


def load_own_tokenizer(source: str) -> PreTrainedTokenizerBase:
    """The tokenizer beside a model.

    Special tokens in a text are text to it, it pads on the right whatever the folder says, and it makes texts lower
    case where a folder of sentence-transformers says so.
    """
    source = encoder_folder(source)
    folder = Path(source)
    if folder.is_dir() and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise InputError(f"{source}: has no tokenizer; save the model's own into the folder")
    config = model_file(source, TOKENIZER_CONFIG)
    # Where the tokenizer's class lies beside it, transformers would ask on the terminal, or take another class.
    own_code = config is not None and '"auto_map"' in config.read_text(encoding="utf-8", errors="replace")
    if own_code and model_file(source, "tokenizer.json") is None:
        raise InputError(f"{source}: its tokenizer needs code from the folder, which is never run; save tokenizer.json")
    opener: Any = PreTrainedTokenizerFast if own_code else AutoTokenizer
    try:
        tokenizer: PreTrainedTokenizerBase = opener.from_pretrained(source, trust_remote_code=False)
    except Exception as error:  # the tokenizers library raises bare Exception
        problem = f"the tokenizer cannot be read: {first_line(error)}"
        raise InputError(f"{source}: {problem}; copy the folder again") from None
    tokenizer.init_kwargs.pop("auto_map", None)  # otherwise it would be saved, and ask for the code again
    reads_from_the_left(tokenizer).split_special_tokens = True
    if sentence_settings(source).do_lower_case and isinstance(tokenizer, PreTrainedTokenizerFast):
        return _lower_casing(tokenizer)
    return tokenizer


def _lower_casing(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The same tokenizer after texts became lower case."""
    backend = tokenizer.backend_tokenizer
    if backend.normalizer is not None and "A" not in backend.normalizer.normalize_str("A"):
        return tokenizer
    steps = [tokenizers.normalizers.Lowercase(), *filter(None, [backend.normalizer])]
    backend.normalizer = tokenizers.normalizers.Sequence(steps)
    # A class for one family, such as BertTokenizer, would build another normalizer when the saved one is opened.
    kept = ("model_max_length", "padding_side", "truncation_side", "model_input_names", "clean_up_tokenization_spaces")
    return PreTrainedTokenizerFast(
        tokenizer_object=backend,
        split_special_tokens=True,
        extra_special_tokens=tokenizer.extra_special_tokens,
        **{name: getattr(tokenizer, name) for name in kept},
        **tokenizer.special_tokens_map,
    )


def load_tokenizer(path: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a model folder."""
    tokenizer = load_own_tokenizer(path)
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"{path}: has no tokenizer.json")
    return tokenizer


def check_vocabulary(source: str, tokenizer: PreTrainedTokenizerBase, vocab_size: int) -> None:
    """Raise ``InputError`` where a tokenizer has tokens for which the model has no embedding."""
    if len(tokenizer) > vocab_size:
        raise InputError(
            f"{source}: the tokenizer has {len(tokenizer):,} tokens and the model {vocab_size:,}: they do not belong "
            "together; save the model's own tokenizer into the folder, or resize the model's token embeddings"
        )


def save_tokenizer(tokenizer: PreTrainedTokenizerBase, model: PreTrainedModel, folder: Path) -> None:
    """Save the tokenizer of a model beside it; ``tokenizer`` is not changed.

    It says whether special tokens in a text are text, as the commands read them: they are, except to a model that fills
    in masks, whose users write its mask token into the text.
    """
    tokenizer.save_pretrained(folder)
    fields = json.loads((folder / TOKENIZER_CONFIG).read_text(encoding="utf-8"))
    fills_masks = isinstance(model, LinformerForMaskedLM) or head_of(model) == "masked words"
    write_json(folder / TOKENIZER_CONFIG, {**fields, "split_special_tokens": not fills_masks})


def write_model(model: PreTrainedModel, tokenizer: PreTrainedTokenizerBase, output: Path) -> None:
    """Put a model and its tokenizer into the folder of a run, each file complete or not at all."""
    unfinished = output / ".unfinished"
    shutil.rmtree(unfinished, ignore_errors=True)
    model.save_pretrained(unfinished)
    save_tokenizer(tokenizer, model, unfinished)
    mode = (unfinished / "config.json").stat().st_mode
    for file in unfinished.iterdir():
        file.chmod(mode)  # safetensors leaves the weights readable only by their owner
        flush(file)
        os.replace(file, output / file.name)
    flush(output)
    unfinished.rmdir()


def import_model(source: str, origin: str, output: Path, **options: Any) -> LinformerPreTrainedModel:
    """Write weights trained elsewhere as a model folder: configuration and safetensors.

    ``source`` is a checkpoint file, ``origin`` a key of :data:`ORIGINS`. Options that are None count as not given.
    """
    if origin not in ORIGINS:
        raise InputError(
            f"--from must be one of {', '.join(ORIGINS)}, got {origin!r}; linformer adapt takes encoders of "
            "transformers"
        )
    converted_by, names = ORIGINS[origin]
    changed = {name: value for name, value in options.items() if value is not None}
    for name in sorted(changed.keys() - names.keys()):
        raise InputError(f"--{name.replace('_', '-')} has no effect with --from {origin}")
    check_free(output)
    if not Path(source).exists():
        raise InputError(f"{source}: no such file")
    arguments = {names[name]: value for name, value in changed.items()}
    model = converted_by(convert.read_checkpoint(source), **arguments)
    quiet_transformers()
    with new_folder(output) as folder:
        model.save_pretrained(folder)
    return model
