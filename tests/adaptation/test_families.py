"""A distillation for each family of text encoders: the student learns from the layers of its original."""

import json

import pytest
import torch
import transformers
from encoders.families import TEXTS

import torch_linformer
from torch_linformer.adaptation.distillation import distillation_loss
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError

WORDS = ["wet", "grey", "mud", "warm", "sand", "sea", "ice", "cold", "white", "the", "of", "and", "naïve"]
OPTIONS = {"steps": 20, "batch_size": 8, "learning_rate": 5e-4, "device": "cpu", "precision": "fp32"}


@pytest.fixture(params=TEXTS, ids=repr)
def teacher(request):
    torch.manual_seed(0)
    return getattr(transformers, f"{request.param.name}Model")(request.param.config).eval()


@pytest.fixture
def tokenizer(teacher, word_tokenizer):
    """Words, and special tokens where a family has them."""
    names, padding = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"], teacher.config.pad_token_id or 0
    names[0], names[padding] = names[padding], names[0]
    backend = word_tokenizer([*names, *WORDS], pad_token="[PAD]", unk_token="[UNK]").backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]")


def test_a_family_is_distilled(teacher, tokenizer, weather, tmp_path):
    """It comes nearer to its original, new parameters learn, and the report compares with the window alone."""
    student = linearize(teacher, k=4, window=4, exact_below=0, max_length=32)
    first = {name: tensor.clone() for name, tensor in student.state_dict().items()}
    texts = [text for text, _ in weather(200, seed=5)]
    torch_linformer.distill(student, teacher, tokenizer, texts, output=tmp_path / "run", probe=False, **OPTIONS)
    assert type(student).__name__ == f"Linear{type(teacher).__name__}"
    still = {name for name, tensor in student.state_dict().items() if torch.equal(first[name], tensor)}
    assert not {name for name in still if ".linformer." in name}
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert result["window_alone"]["scores"].keys() == result["end"].keys() == result["start"].keys()
    assert result["end"]["cosine"] > result["start"]["cosine"]
    opened = transformers.AutoModel.from_pretrained(tmp_path / "run")
    assert all(torch.equal(*pair) for pair in zip(opened.parameters(), student.parameters(), strict=True))


def test_layers_line_up_with_those_of_the_original(teacher):
    """A student that reads exactly has its hidden states, layer by layer, and nothing to learn."""
    student = linearize(teacher, k=4, window=4, exact_below=50)
    batch = {"input_ids": torch.randint(5, 17, (4, 30)), "attention_mask": torch.ones(4, 30, dtype=torch.long)}
    batch["attention_mask"][2:, 11:] = 0
    with torch.no_grad():
        ours, theirs = (model.eval()(**batch, output_hidden_states=True) for model in (student, teacher))
    loss = distillation_loss(ours.hidden_states[1:], theirs.hidden_states[1:], batch["attention_mask"], "mean")
    assert loss < 1e-4
    torch.testing.assert_close(theirs.hidden_states[-1], theirs.last_hidden_state)  # which the scores are made of


def test_a_decoder_is_refused():
    decoder = transformers.GPT2Model(transformers.GPT2Config(n_layer=1, n_head=2, n_embd=8, vocab_size=50))
    with pytest.raises(ValueError, match=r"GPT2Model \(gpt2\) is a decoder: its tokens see only what comes before"):
        linearize(decoder)
    with pytest.raises(InputError, match="GPT2Model is not linear"):
        torch_linformer.distill(decoder, None, None, [])
