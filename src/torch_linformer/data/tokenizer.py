"""Tokenizers for documents of any length.

Two tokenizers are built here and need no download: `bytes` gives every byte of UTF-8 a token, `bpe:SIZE`
learns to merge frequent neighbours on the training texts. Both take any text without loss and begin with the
same four special tokens. What a document holds is text: `<mask>` in one is six characters, no special token.
"""

import os
from collections.abc import Iterable
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from torch_linformer.data.reading.sources import ask_hub
from torch_linformer.errors import InputError

SPECIAL_TOKENS = {"pad_token": "<pad>", "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
_MIN_BPE_SIZE = len(SPECIAL_TOKENS) + 256
_LONGEST_WORD = 256  # characters; training takes quadratic time in the length of a word


def build_tokenizer(
    spec: str, texts: Iterable[str], *, max_length: int, goes_on: bool = False
) -> PreTrainedTokenizerFast:
    """Build or load the tokenizer that `spec` names.

    - "bytes": 260 tokens, `<pad>` (0), `<cls>`, `<sep>`, `<mask>` and the 256 bytes.
    - "bpe:SIZE": byte-level pair encoding with at most SIZE tokens, learnt from `texts`; the same texts give
      the same tokenizer.
    - the path of a tokenizer's folder or `tokenizer.json`, or a name on the Hugging Face hub. One without a
      padding token is given `<pad>`.

    Args:
        spec: one of the above.
        texts: what "bpe:SIZE" learns from; not read otherwise.
        max_length: the tokens a document may have, special tokens included.
        goes_on: for a model that goes on with texts: the tokens at their beginning and end are also what generation
            calls them, `bos_token` and `eos_token`, and the first two put no end behind a single text.

    Raises:
        InputError: SIZE is not a whole number from 260, or there is no such tokenizer, or it cannot be used.
    """
    kind, _, size = spec.partition(":")
    if spec == "bytes":
        tokenizer = _wrap(_byte_level(), goes_on)
    elif kind == "bpe":
        if not size.isdecimal() or int(size) < _MIN_BPE_SIZE:
            raise InputError(f"tokenizer {spec!r}: write bpe:SIZE with a whole number from {_MIN_BPE_SIZE}")
        tokenizer = _wrap(_train_bpe(texts, int(size)), goes_on)
    else:
        tokenizer = _load(spec)
    if goes_on:
        tokenizer.bos_token = tokenizer.bos_token or tokenizer.cls_token
        tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    tokenizer.model_max_length = max_length
    tokenizer.padding_side = "right"
    return tokenizer


def _byte_level() -> Tokenizer:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*SPECIAL_TOKENS.values(), *alphabet])}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    # Without merges there is no use in looking for words first.
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return tokenizer


def _train_bpe(texts: Iterable[str], size: int) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    words = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, pre_tokenizers.FixedLength(_LONGEST_WORD)])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = words
    return tokenizer


def _wrap(tokenizer: Tokenizer, goes_on: bool) -> PreTrainedTokenizerFast:
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A" if goes_on else f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B:1 {sep}:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        clean_up_tokenization_spaces=False,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],  # models without types pass them over
        **SPECIAL_TOKENS,
    )


def _load(spec: str) -> PreTrainedTokenizerFast:
    path = Path(spec)
    try:
        tokenizer = _load_file(path) if path.is_file() else _load_pretrained(spec, path.is_dir())
    except Exception as error:  # transformers, the hub and the network share no base class of errors
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        missing = "neither bytes, nor bpe:SIZE, nor a file or folder, nor within reach as a model of the hub"
        problem = "cannot be loaded" if os.path.exists(spec) else missing
        raise InputError(f"tokenizer {spec!r}: {problem} ({reason})") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"tokenizer {spec!r}: has no tokenizer.json; save it from a fast tokenizer first")
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": SPECIAL_TOKENS["pad_token"]})
    return tokenizer


def _load_pretrained(name: str, is_folder: bool) -> PreTrainedTokenizerBase:
    if not is_folder:
        ask_hub("model", name)
    return AutoTokenizer.from_pretrained(name, local_files_only=is_folder, trust_remote_code=False)


def _load_file(path: Path) -> PreTrainedTokenizerFast:
    """A tokenizer.json does not say what its special tokens are for; the usual names tell."""
    backend = Tokenizer.from_file(str(path))
    known = {role: (token, f"[{token[1:-1].upper()}]") for role, token in SPECIAL_TOKENS.items()}
    roles = {
        role: next((name for name in names if backend.token_to_id(name) is not None), None)
        for role, names in known.items()
    }
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
