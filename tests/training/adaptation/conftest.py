"""Small encoders to adapt."""

import json

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

from torch_linformer.models.convert import from_bert
from torch_linformer.models.with_attention import with_attention

LONGEST = 10
MODULES = [
    {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
    {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    {"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"},
]


@pytest.fixture(autouse=True, scope="module")
def single(one_thread):
    """One thread."""


@pytest.fixture(scope="session")
def small_bert():
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=60,
        hidden_size=12,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=20,
        max_position_embeddings=LONGEST,
        initializer_range=0.3,
    )
    return BertModel(config).double().eval()


@pytest.fixture(scope="session")
def imported(small_bert):
    return with_attention(from_bert(small_bert), attention="full")


@pytest.fixture
def rows():
    """A function: ids and mask of rows of so many tokens, one [1] before and one [2] behind each text."""

    def make(*lengths):
        generator = torch.Generator().manual_seed(3)
        ids = torch.zeros(len(lengths), max(lengths), dtype=torch.long)
        for row, length in enumerate(lengths):
            ids[row, :length] = torch.randint(3, 60, (length,), generator=generator)
            ids[row, 0], ids[row, length - 1] = 1, 2
        mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
        return ids, mask

    return make


@pytest.fixture(scope="session")
def tokenizer(masked_run):
    """One with a mask token."""
    return AutoTokenizer.from_pretrained(masked_run.folder)


@pytest.fixture(scope="session")
def save_source():
    """A function: a folder with a small encoder of 16 tokens; of sentence-transformers if a pooling is given."""

    def save(folder, tokenizer, model_class=BertModel, pooling=None, **fields):
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=24,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=32,
            max_position_embeddings=16,
            initializer_range=0.2,
            pad_token_id=tokenizer.pad_token_id,
            **fields,
        )
        model_class(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        if pooling is not None:
            (folder / "modules.json").write_text(json.dumps(MODULES))
            (folder / "config_sentence_transformers.json").write_text('{"prompts": {}}')
            (folder / "1_Pooling").mkdir()
            ways = {f"pooling_mode_{way}": way == pooling for way in ("cls_token", "mean_tokens", "max_tokens")}
            (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 24, **ways}))
        return folder

    return save
