"""What the examples share: pieces of Python's own source files as labeled documents, and a tokenizer for them."""

import sysconfig
from pathlib import Path

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import WordLevelTrainer
from transformers import PreTrainedTokenizerFast

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
LINES = 40


def documents(*packages):
    """Pieces of 40 lines of packages of the standard library, each labeled with the number of its package.

    Two lists of ``{"text", "label"}``: those to train on, and those of every fourth file, which are held out.
    """
    train, held_out = [], []
    for label, package in enumerate(packages):
        files = sorted(Path(sysconfig.get_path("stdlib"), package).rglob("*.py"))
        for number, file in enumerate(files):
            lines = file.read_text(encoding="utf-8").splitlines()
            pieces = ["\n".join(lines[start : start + LINES]) for start in range(0, len(lines), LINES)]
            part = held_out if number % 4 == 3 else train
            part.extend({"text": piece, "label": label} for piece in pieces)
    return train, held_out


def word_tokenizer(texts, max_length):
    """A tokenizer whose vocabulary is the 4,000 most frequent words and punctuation marks of some texts."""
    tokenizer = Tokenizer(WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = Whitespace()
    trainer = WordLevelTrainer(vocab_size=4000, special_tokens=SPECIAL_TOKENS, show_progress=False)
    tokenizer.train_from_iterator(texts, trainer)
    ends = [(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing("[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", ends)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=max_length,
        model_input_names=["input_ids", "attention_mask"],
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )
