"""What the tests of the analysis share: tiny models whose every number matters, documents, and a tokenizer of words."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertModel,
    GPT2Config,
    GPT2Model,
    LlamaConfig,
    LlamaModel,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaModel,
)

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification, LinformerModel

SIZES = {
    "vocab_size": 50,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 41,
    "max_position_embeddings": 64,
}
MARKS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}


CHOSEN = {"k": 8, "projection": "dynamic", "slot_mass": "learned", "window": 4, "exact_first": 1}
MODELS = {
    "bert": lambda: BertModel(BertConfig(**SIZES)),
    "roberta": lambda: RobertaModel(RobertaConfig(**SIZES)),
    "gpt2": lambda: GPT2Model(
        GPT2Config(vocab_size=50, n_embd=30, n_layer=2, n_head=3, n_positions=64, bos_token_id=1, eos_token_id=2)
    ),
    # Four layers, so that some see a window of 7 tokens to each side and some all.
    "modernbert": lambda: ModernBertModel(
        ModernBertConfig(**{**SIZES, "num_hidden_layers": 4}, **MARKS, local_attention=14)
    ),
    "llama, two key heads": lambda: LlamaModel(
        LlamaConfig(**{**SIZES, "hidden_size": 36, "num_attention_heads": 6}, num_key_value_heads=2)
    ),
    "our twin": lambda: LinformerModel(LinformerConfig(**SIZES, k=8, attention="full")),
    "our twin in chunks": lambda: LinformerModel(LinformerConfig(**SIZES, k=8, attention="full", chunk_size=9)),
    "our slots, one P a head": lambda: LinformerModel(LinformerConfig(**SIZES, **CHOSEN, sharing="kv_per_head")),
    "our slots, one w": lambda: LinformerModel(LinformerConfig(**SIZES, **CHOSEN, sharing="layerwise")),
    "our causal twin": lambda: LinformerModel(
        LinformerConfig(
            **{**SIZES, "hidden_size": 36, "num_attention_heads": 6},
            num_key_value_heads=2,
            k=8,
            attention="full",
            causal=True,
            position_embedding="rotary",
        )
    ),
}


@pytest.fixture
def lively():
    """A function: a model, or a tiny one by its name in MODELS, whose weights are so large that its heads attend."""

    def draw_weights(model):
        model = MODELS[model]() if isinstance(model, str) else model
        torch.manual_seed(0)
        for parameter in model.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, std=0.3)
        return model.eval()

    return draw_weights


@pytest.fixture
def draw_documents():
    """A function: so many documents of that many random tokens."""

    def draw(number, length):
        generator = torch.Generator().manual_seed(5)
        return [torch.randint(3, 50, (length,), generator=generator) for _ in range(number)]

    return draw


@pytest.fixture
def eager_weights():
    """A function: what the model itself says its attention weights are, a tensor (H, N, N) a layer."""

    @torch.no_grad()
    def weights(model, document):
        if not isinstance(model, LinformerModel):
            model.set_attn_implementation("eager")
        return [each[0] for each in model(input_ids=document.unsqueeze(0), output_attentions=True).attentions]

    return weights


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
