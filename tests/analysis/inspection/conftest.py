"""What the tests of inspections share: tiny models whose every number matters, and a tokenizer of words."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "wet", "mud", "sea", "sand", "<", "script", ">", "/"]
# Distinct sizes, so that no axis can stand in for another.
TINY = {
    "vocab_size": len(WORDS),
    "hidden_size": 12,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 29,
    "k": 7,
    "num_labels": 5,
    "problem_type": "single_label_classification",
}


@pytest.fixture(scope="session")
def words():
    """A tokenizer of whole words, with a special token at both ends."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.add_special_tokens(WORDS[:4])
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.fixture(scope="session")
def build():
    """A function: a tiny model in eval mode and float64, no bias of which is 0 and no norm 1."""

    def build_model(model_class=LinformerForSequenceClassification, **fields):
        torch.manual_seed(0)
        model = model_class(LinformerConfig(**{**TINY, **fields})).double().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model

    return build_model
