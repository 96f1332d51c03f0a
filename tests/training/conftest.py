"""Nothing in these tests touches the user's caches or the network."""

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache, one_thread):
    """Caches of the session's own, the hub switched off, and one thread."""


@pytest.fixture(scope="session")
def word_tokenizer():
    """A function: a small tokenizer of the WordPiece kind, as a checkpoint from elsewhere would bring it."""

    def build(words, **roles):
        backend = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="[UNK]"))
        backend.pre_tokenizer = pre_tokenizers.Whitespace()
        backend.add_special_tokens([word for word in words if word.startswith("[")])
        backend.post_processor = processors.TemplateProcessing(
            single="[CLS] [CLS] $A [SEP]",
            special_tokens=[(word, words.index(word)) for word in ("[CLS]", "[SEP]")],
        )
        backend.enable_truncation(4)
        if "[PAD]" in words:
            backend.enable_padding(pad_id=words.index("[PAD]"), length=9)
        return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)

    return build
