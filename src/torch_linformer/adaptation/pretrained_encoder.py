"""The encoder to be adapted: imported, with its tokenizer and the pooling that makes embeddings."""

import json
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import transformers
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerFast
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_MASKED_LM_MAPPING_NAMES,
)

from torch_linformer.adaptation.objectives import OBJECTIVES, Embeddings
from torch_linformer.adaptation.remote_code import names_own_code, run_own_code
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerPreTrainedModel
from torch_linformer.models.with_attention import with_attention
from torch_linformer.opening.devices import WEIGHTS
from torch_linformer.opening.importing import ORIGINS
from torch_linformer.opening.model_checks import check_model
from torch_linformer.opening.model_files import model_file
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.opening.pretrained import load_any_config, needs_code
from torch_linformer.opening.sentence_pooling import sentence_pooling
from torch_linformer.opening.sentence_settings import (
    AS_THEY_ARE,
    MODULES,
    PROMPTS,
    SentenceSettings,
    sentence_settings,
    write_transformer,
)
from torch_linformer.opening.tokenizers import check_vocabulary

FAMILIES = {name: origin.convert for name, origin in ORIGINS.items() if origin.is_folder}
ROTARY = ("rope_theta", "rope_parameters", "rotary_dim")  # in configurations of rotary models
RELATIVE = ("relative_attention", "relative_attention_num_buckets")


@dataclass(frozen=True)
class PretrainedEncoder:
    """An encoder to be adapted.

    Attributes:
        path: folder, or name on the hub.
        model: the encoder with the head that is kept, as this package's twin with full attention.
        tokenizer: its own.
        objective: what it is used for.
        sentences: whether it is a folder of sentence-transformers.
        settings: how that reads texts.
    """

    path: str
    model: LinformerPreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    objective: Embeddings
    sentences: bool = False
    settings: SentenceSettings = AS_THEY_ARE

    @property
    def longest(self) -> int:
        """Tokens that it can read at once."""
        return self.model.config.max_position_embeddings

    @property
    def usual_length(self) -> int:
        """Tokens that it reads at once in use."""
        return self.settings.longest(self.longest)


def load_encoder(
    path: str, task: str | None = None, seed: int = 0, trust_remote_code: bool = False
) -> PretrainedEncoder:
    """Import an encoder for a task, by default that of its head.

    Raises:
        InputError: it is missing, damaged, or of a kind that cannot be adapted, has no head for the task, or needs code
            that is not trusted.
    """
    config = load_any_config(path, trust_remote_code)
    check_model(path, config)
    pooling = sentence_pooling(path)
    if task is None and pooling is not None:
        task = "embed"
    model: PreTrainedModel | str = path
    if trust_remote_code and names_own_code(config):
        model = run_own_code(path, config, task)
        config = model.config
    elif names_own_code(config) and not hasattr(transformers, (config.architectures or ["Auto"])[0]):
        raise needs_code(path)
    check_kind(path, config)
    if isinstance(config, LinformerConfig):
        model = load_model(path)
    tokenizer = load_tokenizer(path)
    sentences = pooling is not None
    pooling = pooling or "mean"
    original = encoder_of(model, tokenizer, config, path, task=task, pooling=pooling, seed=seed)
    return replace(original, sentences=sentences, settings=sentence_settings(path)) if sentences else original


def encoder_of(
    model: PreTrainedModel | str,
    tokenizer: PreTrainedTokenizerFast,
    config: PreTrainedConfig,
    path: str,
    *,
    task: str | None = None,
    pooling: str = "mean",
    seed: int = 0,
) -> PretrainedEncoder:
    """What is adapted, a copy in float32, from a model that :func:`check_kind` accepted, or from its folder.

    Raises:
        InputError: it cannot be expressed, has no head for the task, or is not the tokenizer's.
    """
    try:
        imported = model if isinstance(model, LinformerPreTrainedModel) else FAMILIES[config.model_type](model)
    except (ValueError, OSError) as error:
        raise InputError(f"{path}: {error}") from None
    twin: Any = with_attention(imported, attention="full")
    twin.to(WEIGHTS)
    if task is None:
        task = next((name for name, objective in OBJECTIVES.items() if type(twin) is objective.model_class), "embed")
    if task == "embed":
        twin = twin.base_model
    elif not isinstance(twin, OBJECTIVES[task].model_class):
        raise InputError(f"--task {task}: {path} has no head for it; --task embed adapts only the encoder")
    if task != "classify":  # whose head has its own pooling
        twin.config.pooling = pooling
    check_vocabulary(path, tokenizer, config.vocab_size)
    return PretrainedEncoder(path, twin, tokenizer, OBJECTIVES[task](twin, tokenizer, seed))


def copy_sentence_modules(source: str, folder: Path, max_length: int) -> None:
    """Make a model folder one of sentence-transformers, with pooling and normalization as they were."""
    modules = json.loads(cast(Path, model_file(source, MODULES)).read_text(encoding="utf-8"))
    configs = [f"{module['path']}/config.json" for module in modules if module["path"]]
    for name in (MODULES, PROMPTS, *configs):
        (folder / name).parent.mkdir(exist_ok=True)
        file = model_file(source, name)
        if file is not None:
            shutil.copyfile(file, folder / name)
    write_transformer(folder, max_length, sentence_settings(source))


def check_kind(path: str, config: Any) -> None:
    """Raise ``InputError`` for a model whose attention cannot be replaced by slots."""
    kind = config.model_type
    if isinstance(config, LinformerConfig):
        if config.attention != "full" or config.causal:
            raise InputError(f"{path}: is a Linformer already; linformer train --from {path} goes on with it")
        return
    known = kind in FAMILIES
    decodes = kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES and kind not in MODEL_FOR_MASKED_LM_MAPPING_NAMES
    problems = {
        f"is an encoder-decoder ({kind})": config.is_encoder_decoder,
        f"is a decoder ({kind}), whose tokens see only what stands before them": (
            getattr(config, "is_decoder", False) if known else decodes
        ),
        f"has rotary positions ({kind}): each key is turned by its own position, and a mean of keys has none": (
            not known and any(hasattr(config, name) for name in ROTARY)
        ),
        f"has relative positions ({kind}): scores depend on the distance to a key, and a slot has none": (
            not known and any(hasattr(config, name) for name in RELATIVE)
        ),
        f"is of a kind that cannot be adapted ({kind})": not known,
    }
    for problem, applies in problems.items():
        if applies:
            raise InputError(
                f"{path}: {problem}; adapted are {', '.join(FAMILIES)}, and this package's own with --attention full"
            )
