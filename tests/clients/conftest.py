"""What the tests with other packages share: a tiny classifier that learns in seconds, and a browser."""

import random
import shutil

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification

TOPICS = {"rain": ["wet", "grey", "mud"], "sun": ["warm", "sand", "sea"]}
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
OTHERS = ["the", "of", "and"]
BROWSER_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")  # while it is open its event loop is the thread's, and no other can run
def browser():
    """Debian's chromium, headless, by Playwright."""
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("no chromium on this machine: apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=BROWSER_ARGUMENTS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def tokenizer():
    words = [*SPECIAL, *OTHERS, *TOPICS["rain"], *TOPICS["sun"]]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=32, **names)


@pytest.fixture(scope="session")
def texts():
    """96 texts of 4 to 24 words, and whether each tells of the sun."""
    draw = random.Random(0)
    labels = [draw.randrange(2) for _ in range(96)]
    words = [[*OTHERS, *TOPICS[sorted(TOPICS)[label]]] for label in labels]
    return [" ".join(draw.choices(each, k=draw.randint(4, 24))) for each in words], labels


@pytest.fixture
def config(tokenizer):
    return LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=32,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        k=8,
    )


@pytest.fixture
def model(config):
    torch.manual_seed(0)
    return LinformerForSequenceClassification(config)


@pytest.fixture
def batch(tokenizer, texts):
    """All texts as one padded batch with labels."""
    encoded = tokenizer(texts[0], padding=True, return_tensors="pt", return_token_type_ids=False)
    return {**encoded, "labels": torch.tensor(texts[1])}


@pytest.fixture
def examples(tokenizer, texts):
    """The texts as the Trainer takes them."""
    encoded = tokenizer(texts[0], return_token_type_ids=False)["input_ids"]
    return [{"input_ids": ids, "labels": label} for ids, label in zip(encoded, texts[1], strict=True)]
