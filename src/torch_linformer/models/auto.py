"""Which of transformers' Auto classes opens which class, stored in every configuration and every saved folder."""

from typing import Any

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
