"""Which of transformers' Auto classes opens which class, stored in every configuration and every saved folder."""

import os
from pathlib import Path
from typing import Any, ClassVar

AUTO_CLASSES = {  # of a model type
    "linformer": {
        "AutoConfig": "LinformerConfig",
        "AutoModel": "LinformerModel",
        "AutoModelForCausalLM": "LinformerForCausalLM",
        "AutoModelForMaskedLM": "LinformerForMaskedLM",
        "AutoModelForMultipleChoice": "LinformerForMultipleChoice",
        "AutoModelForPreTraining": "LinformerForMaskedLM",
        "AutoModelForQuestionAnswering": "LinformerForQuestionAnswering",
        "AutoModelForSequenceClassification": "LinformerForSequenceClassification",
        "AutoModelForTextEncoding": "LinformerModel",
        "AutoModelForTokenClassification": "LinformerForTokenClassification",
    },
    "linformer_seq2seq": {
        "AutoConfig": "LinformerSeq2SeqConfig",
        "AutoModel": "LinformerForConditionalGeneration",
        "AutoModelForPreTraining": "LinformerForConditionalGeneration",
        "AutoModelForSeq2SeqLM": "LinformerForConditionalGeneration",
    },
}
CODE = "modeling_linformer"  # the module in a saved folder
CODE_TEXT = '''"""Opens this folder with trust_remote_code=True where torch-linformer is installed."""

from torch_linformer import {names}
'''


class NotCopied:
    """A class whose code transformers never copies into a saved folder: the module there imports it.

    Otherwise opening a folder with ``trust_remote_code=True`` would have the next save copy it, as a second class of
    the same name. Subclasses in other packages are copied as usual.
    """

    @classmethod
    def register_for_auto_class(cls, auto_class: Any = None) -> None:
        if cls.__module__.partition(".")[0] != "torch_linformer":
            options = {} if auto_class is None else {"auto_class": auto_class}
            super().register_for_auto_class(**options)  # type: ignore[misc]  # of transformers, after this class


class OpenedByAutoClasses(NotCopied):
    """A configuration that names our classes in its ``auto_map`` and saves the module that imports them."""

    model_type: ClassVar[str]
    auto_map: dict[str, str]

    def __post_init__(self, **kwargs: Any) -> None:
        ours = {auto: f"{CODE}.{name}" for auto, name in AUTO_CLASSES[self.model_type].items()}
        self.auto_map = {**ours, **(kwargs.pop("auto_map", None) or {})}
        super().__post_init__(**kwargs)  # type: ignore[misc]  # of transformers, after this class

    def to_diff_dict(self) -> dict[str, Any]:
        """What ``config.json`` holds; its parts have no ``auto_map``, because nothing opens them on their own."""
        fields: dict[str, Any] = super().to_diff_dict()  # type: ignore[misc]
        for part in self.sub_configs:  # type: ignore[attr-defined]
            fields[part].pop("auto_map", None)
        return fields

    def save_pretrained(self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **kwargs: Any) -> None:
        """Save ``config.json`` and the module that its ``auto_map`` names."""
        super().save_pretrained(save_directory)  # type: ignore[misc]
        names = ", ".join(sorted(set(AUTO_CLASSES[self.model_type].values())))
        (Path(save_directory) / f"{CODE}.py").write_text(CODE_TEXT.format(names=names), encoding="utf-8")
        if push_to_hub:
            repo_id = kwargs.pop("repo_id", Path(save_directory).name)
            self.push_to_hub(repo_id, **kwargs)  # type: ignore[attr-defined]
