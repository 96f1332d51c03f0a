"""What both configurations share: keywords are checked, fields may be set from text, the Auto classes open them."""

import os
from dataclasses import fields
from pathlib import Path
from types import NoneType
from typing import Any, ClassVar, get_args

from transformers import GenerationConfig, PreTrainedConfig

from torch_linformer.models.arguments import refuse
from torch_linformer.models.auto import AUTO_CLASSES, CODE, CODE_TEXT, NotCopied

# What configurations of transformers 4 have, and tools still write.
_FORMER = {
    "add_cross_attention",
    "cross_attention_hidden_size",
    "finetuning_task",
    "gradient_checkpointing",
    "is_decoder",
    "prefix",
    "pruned_heads",
    "quantization_config",
    "sep_token_id",
    "task_specific_params",
    "tf_legacy_loss",
    "tie_encoder_decoder",
    "tokenizer_class",
    "torchscript",
    "use_bfloat16",
    "_commit_hash",
}
_OF_TRANSFORMERS = {
    *(name for name in dir(PreTrainedConfig) if not callable(getattr(PreTrainedConfig, name, None))),
    *vars(PreTrainedConfig()),
    *vars(GenerationConfig()),
    *_FORMER,
    "attn_implementation",
    "auto_map",
    "experts_implementation",
}
_BOOLS = {**dict.fromkeys(("true", "1", "y", "yes"), True), **dict.fromkeys(("false", "0", "n", "no"), False)}


class BaseConfig(NotCopied, PreTrainedConfig):
    """A configuration that refuses keywords which are neither its own nor transformers'.

    With ``model_type`` among them they are those of a saved configuration, where other libraries leave their own.
    Its ``auto_map`` names our classes, and it saves the module that imports them.
    """

    model_type: ClassVar[str]

    def __post_init__(self, **kwargs: Any) -> None:
        if "model_type" not in kwargs:
            for name in kwargs:
                if name not in _OF_TRANSFORMERS:
                    refuse(name, f"{type(self).__name__}()", [field.name for field in fields(self)])
        ours = {auto: f"{CODE}.{name}" for auto, name in AUTO_CLASSES[self.model_type].items()}
        self.auto_map = {**ours, **(kwargs.pop("auto_map", None) or {})}
        super().__post_init__(**kwargs)  # type: ignore[no-untyped-call]

    def to_diff_dict(self) -> dict[str, Any]:
        """What ``config.json`` holds; its parts have no ``auto_map``, because nothing opens them on their own."""
        written: dict[str, Any] = super().to_diff_dict()
        for part in self.sub_configs:
            written[part].pop("auto_map", None)
        return written

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save ``config.json`` and the module that its ``auto_map`` names."""
        super().save_pretrained(save_directory)
        names = ", ".join(sorted(set(AUTO_CLASSES[self.model_type].values())))
        (Path(save_directory) / f"{CODE}.py").write_text(CODE_TEXT.format(names=names), encoding="utf-8")
        if push_to_hub:
            repo_id = kwargs.pop("repo_id", Path(save_directory).name)
            self.push_to_hub(repo_id, **kwargs)

    def update_from_string(self, update_str: str) -> None:
        """Set fields from ``name=value,name=value``, as ``--config_overrides`` of transformers' scripts has them.

        The declared type of a field counts, not that of its value: optional ones take ``none``, or a value.

        Raises:
            ValueError: for an unknown name, a value of another type, or fields from which no model can be built; the
                configuration is then unchanged.
        """
        types = {field.name: field.type for field in fields(self)}
        changes: dict[str, Any] = {}
        for part in update_str.split(","):
            name, _, text = (x.strip() for x in part.partition("="))
            if not hasattr(self, name):
                raise ValueError(f"{type(self).__name__} has no field {name!r}: write name=value,name=value")
            changes[name] = _read(name, text, types.get(name, type(getattr(self, name))))
        changes.update(self._dependent(changes))
        checked = type(self)(**{**self.to_dict(), **{name: changes[name] for name in changes if name in types}})
        for name, value in changes.items():
            setattr(self, name, getattr(checked, name) if name in types else value)

    def _dependent(self, changes: dict[str, Any]) -> dict[str, Any]:
        """Fields whose defaults depend on these, unless they are given too."""
        return {}


def _read(name: str, text: str, hint: Any) -> Any:
    """A field's value parsed from text; a float where it may be one, a str where it is nothing else."""
    types = [hint, *get_args(hint)]
    word = text.lower()
    if bool in types and word in _BOOLS:
        return _BOOLS[word]
    if NoneType in types and word == "none":
        return None
    for kind in (float, int, str):
        if kind in types:
            try:
                return kind(text)
            except ValueError:
                continue
    declared = getattr(hint, "__name__", str(hint)).replace("float | int", "float")  # as one says it: 1 is a float too
    raise ValueError(f"{name} cannot be {text!r}: it is {declared}")
