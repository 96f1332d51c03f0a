"""Keywords of a configuration: what is written in Python is checked, and what was saved is taken as it is."""

from dataclasses import fields
from typing import Any, ClassVar

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
