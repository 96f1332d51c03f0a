"""Keywords of a configuration: those of Python and of ``--config_overrides`` are checked, saved ones are not."""

from dataclasses import fields
from types import NoneType
from typing import Any, ClassVar, get_args

from transformers import GenerationConfig, PreTrainedConfig

from torch_linformer.models.arguments import refuse

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
BOOLS = {**dict.fromkeys(("true", "1", "y", "yes"), True), **dict.fromkeys(("false", "0", "n", "no"), False)}


class CheckedKeywords:
    """A configuration that refuses keywords which are neither its own nor transformers'.

    With ``model_type`` among them they are those of a saved configuration, where other libraries leave their own.
    """

    model_type: ClassVar[str]

    def __post_init__(self, **kwargs: Any) -> None:
        if "model_type" not in kwargs:
            for name in kwargs:
                if name not in _OF_TRANSFORMERS:
                    refuse(name, f"{type(self).__name__}()", [field.name for field in fields(self)])  # type: ignore[arg-type]
        super().__post_init__(**kwargs)  # type: ignore[misc]  # of transformers, after this class


class OverriddenByText(PreTrainedConfig):
    """A configuration whose optional fields can be set from text too: the declared type counts, not the value's."""

    def update_from_string(self, update_str: str) -> None:
        """Set fields from ``name=value,name=value``; optional ones take ``none``.

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
    if bool in types and word in BOOLS:
        return BOOLS[word]
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
