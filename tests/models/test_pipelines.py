"""The pipelines of transformers, from a saved folder alone."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast, pipeline

from torch_linformer.models import (
    LinformerForMaskedLM,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)

WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "wet", "grey", "mud", "warm", "sea"]
TEXTS = ["wet grey mud", "sea", "warm wet sea grey mud wet"]


@pytest.fixture(scope="module")
def tokenizer():
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, **names)


@pytest.fixture
def run(build, tokenizer, tmp_path):
    """A function: the model, and what the pipeline of its folder says of the texts, all in one padded batch."""

    def call(task, model_class, texts, **fields):
        model = build(model_class, dtype=torch.float32, **fields)
        model.save_pretrained(tmp_path)
        tokenizer.save_pretrained(tmp_path)
        with torch.no_grad():
            return model, pipeline(task, model=str(tmp_path))(texts, batch_size=len(texts))

    return call


@torch.no_grad()
def test_text_classification(run, tokenizer):
    model, found = run("text-classification", LinformerForSequenceClassification, TEXTS, num_labels=3)
    for text, answer in zip(TEXTS, found, strict=True):
        p = model(**tokenizer(text, return_tensors="pt", return_token_type_ids=False)).logits.softmax(-1)[0]
        assert answer["label"] == f"LABEL_{p.argmax()}" and answer["score"] == pytest.approx(p.max().item(), abs=1e-5)


@torch.no_grad()
def test_fill_mask(run, tokenizer):
    texts = ["wet [MASK] mud", "sea warm wet [MASK] sea"]
    model, found = run("fill-mask", LinformerForMaskedLM, texts)
    for text, answers in zip(texts, found, strict=True):
        ids = tokenizer(text, return_tensors="pt").input_ids
        p = model(ids).logits[ids == tokenizer.mask_token_id].softmax(-1)[0]
        assert [answer["token"] for answer in answers] == p.topk(5).indices.tolist()
        assert answers[0]["score"] == pytest.approx(p.max().item(), abs=1e-5)


@torch.no_grad()
def test_token_classification(run, tokenizer):
    model, found = run("token-classification", LinformerForTokenClassification, TEXTS, num_labels=3)
    for text, answers in zip(TEXTS, found, strict=True):
        labels = model(tokenizer(text, return_tensors="pt").input_ids).logits[0].argmax(-1).tolist()
        assert [answer["entity"] for answer in answers] == [f"LABEL_{label}" for label in labels[1:-1]]
        assert [text[answer["start"] : answer["end"]] for answer in answers] == text.split()


@torch.no_grad()
def test_feature_extraction(run, tokenizer):
    model, found = run("feature-extraction", LinformerModel, TEXTS)
    for text, hidden in zip(TEXTS, found, strict=True):
        expected = model(tokenizer(text, return_tensors="pt").input_ids).last_hidden_state
        assert_close(torch.tensor(hidden)[:, : expected.shape[1]], expected, rtol=0, atol=1e-4)
