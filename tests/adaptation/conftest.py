"""A small encoder to adapt."""

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel

LONGEST = 10


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""


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
