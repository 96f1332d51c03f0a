"""One step of distillation for each family of text encoders: the student learns from the layers of its original."""

import json

import pytest
import torch
import transformers
from transformers import PreTrainedTokenizerFast

import torch_linformer
from torch_linformer.adaptation.distillation import distillation_loss
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError

VOCABULARY, READ = 99, 64
SIZES = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": READ,
    "initializer_range": 0.3,
}
AFTER_PADDING = {**SIZES, "max_position_embeddings": READ + 2, "pad_token_id": 1}  # positions of RoBERTa and its kin
OF_DISTILBERT = {"dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 64}
MARKS = {"bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2, "sep_token_id": 3, "pad_token_id": 0}
FAMILIES = {
    "Bert": SIZES,
    "Roberta": AFTER_PADDING,
    "XLMRoberta": AFTER_PADDING,
    "Camembert": AFTER_PADDING,
    "DistilBert": {
        **{name: SIZES[name] for name in ("vocab_size", "max_position_embeddings", "initializer_range")},
        **OF_DISTILBERT,
    },
    "Electra": {**SIZES, "embedding_size": 16},
    "Albert": {**SIZES, "embedding_size": 16},
    "Ernie": SIZES,
    "Esm": {**AFTER_PADDING, "position_embedding_type": "rotary", "mask_token_id": 4},
    "EuroBert": {**SIZES, "num_key_value_heads": 2, **MARKS},
    "NomicBert": SIZES,
    "Gte": SIZES,
    "JinaEmbeddingsV3": AFTER_PADDING,
    "ModernBert": {**SIZES, "local_attention": 8, **MARKS},
}
LIKE_BERT = ("Roberta", "XLMRoberta", "Camembert", "Electra", "Ernie")  # its layers, under other names
WORDS = ["wet", "grey", "mud", "warm", "sand", "sea", "ice", "cold", "white", "the", "of", "and"]
OPTIONS = {"steps": 10, "batch_size": 8, "learning_rate": 5e-4, "device": "cpu", "precision": "fp32"}


def encoder(family):
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**FAMILIES[family])
    return getattr(transformers, f"{family}Model")(config).eval()


@pytest.fixture(scope="module")
def texts(weather):
    return [text for text, _ in weather(200, seed=5)]


def tokenizer_of(model, words):
    """Words, and special tokens where a family has them."""
    padding = model.config.pad_token_id or 0
    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    names[0], names[padding] = names[padding], names[0]
    tokenizer = words([*names, *WORDS, "naïve"], pad_token="[PAD]", unk_token="[UNK]")
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


@pytest.mark.parametrize("family", [family for family in FAMILIES if family not in LIKE_BERT])
def test_a_family_is_distilled(family, texts, word_tokenizer, tmp_path):
    """It comes nearer to its original, new parameters learn, and the report compares with the window alone."""
    teacher = encoder(family)
    student = linearize(teacher, k=4, window=4, exact_below=0, max_length=32)
    first = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    tokenizer = tokenizer_of(teacher, word_tokenizer)
    torch_linformer.distill(student, teacher, tokenizer, texts, output=tmp_path / "run", probe=False, **OPTIONS)
    assert type(student).__name__ == f"Linear{family}Model"
    still = {name for name, tensor in student.state_dict().items() if torch.equal(first[name], tensor)}
    assert not {name for name in still if ".linformer." in name}
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert result["window_alone"]["scores"].keys() == result["end"].keys() == result["start"].keys()
    assert result["end"]["cosine"] > result["start"]["cosine"]
    opened = transformers.AutoModel.from_pretrained(tmp_path / "run")
    assert all(torch.equal(*pair) for pair in zip(opened.parameters(), student.parameters(), strict=True))


@pytest.mark.parametrize("family", FAMILIES)
def test_layers_line_up_with_those_of_the_original(family):
    """A student that reads exactly has its hidden states, layer by layer, and nothing to learn."""
    teacher = encoder(family)
    student = linearize(teacher, k=4, window=4, exact_below=READ)
    batch = {"input_ids": torch.randint(5, 17, (4, 30)), "attention_mask": torch.ones(4, 30, dtype=torch.long)}
    batch["attention_mask"][2:, 11:] = 0
    with torch.no_grad():
        ours, theirs = (model.eval()(**batch, output_hidden_states=True) for model in (student, teacher))
    loss = distillation_loss(ours.hidden_states[1:], theirs.hidden_states[1:], batch["attention_mask"], "mean")
    assert loss < 1e-4
    torch.testing.assert_close(theirs.hidden_states[-1], theirs.last_hidden_state)  # which the scores are made of


def test_a_decoder_is_refused(texts):
    config = transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=50)
    with pytest.raises(
        ValueError, match=r"GPT2Model \(gpt2\) is a decoder: its tokens see only what comes before them"
    ):
        linearize(transformers.GPT2Model(config))
    with pytest.raises(InputError, match="GPT2Model is not linear"):
        torch_linformer.distill(transformers.GPT2Model(config), None, None, texts)
