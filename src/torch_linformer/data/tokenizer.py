"""Tokenizers for documents of any length.

Two tokenizers are built here and need no download: `bytes` gives every byte of UTF-8 a token, `bpe:SIZE`
learns to merge frequent neighbors on the training texts. Both take any text without loss and begin with the
same four special tokens. A document holds only text: `<mask>` in one is six characters, no special token.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TypeVar

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from torch_linformer.data.reading.sources import ask_hub
from torch_linformer.errors import InputError, first_line

T = TypeVar("T", bound=PreTrainedTokenizerBase)
SPECIAL_TOKENS = {"pad_token": "<pad>", "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
_MIN_BPE_SIZE = len(SPECIAL_TOKENS) + 256
# The words of GPT-2, in which combining marks are no letters, with those marks.
_WORDS = r"'s|'t|'re|'ve|'m|'ll|'d| ?[\p{L}\p{M}]+| ?\p{N}+| ?[^\s\p{L}\p{M}\p{N}]+|\s+(?!\S)|\s+"
_LONGEST_WORD = 256  # characters; training takes quadratic time in the length of a word


def build_tokenizer(
    spec: str, texts: Iterable[str], *, max_length: int, goes_on: bool = False
) -> PreTrainedTokenizerFast:
    """Build or load the tokenizer that `spec` names.

    - "bytes": 260 tokens, `<pad>` (0), `<cls>`, `<sep>`, `<mask>` and the 256 bytes.
    - "bpe:SIZE": byte-level pair encoding with at most SIZE tokens, learned from `texts`; the same texts give
      the same tokenizer.
    - the path of a tokenizer's folder or `tokenizer.json`, or a name on the Hugging Face hub. One without a
      padding token is given `<pad>`.

    Args:
        spec: one of the above.
        texts: what "bpe:SIZE" learns from; not read otherwise.
        max_length: tokens that a document may have, special tokens included.
        goes_on: for a model that continues texts: the tokens at their beginning and end are also `bos_token` and
            `eos_token`, as generation calls them, and "bytes" and "bpe:SIZE" put no end after a single text.
    """
    kind, _, size = spec.partition(":")
    if spec == "bytes":
        tokenizer = _wrap(_train_bpe((), _MIN_BPE_SIZE), goes_on)  # no merges, so no words
    elif kind == "bpe":
        if not size.isdecimal() or int(size) < _MIN_BPE_SIZE:
            raise InputError(f"tokenizer {spec!r}: write bpe:SIZE with a whole number from {_MIN_BPE_SIZE}")
        tokenizer = _wrap(_train_bpe(texts, int(size), pre_tokenizers.Split(Regex(_WORDS), "isolated")), goes_on)
    else:
        tokenizer = _load(spec)
    return for_documents(tokenizer, max_length=max_length, goes_on=goes_on)


def for_documents(
    tokenizer: PreTrainedTokenizerFast, *, max_length: int, goes_on: bool = False
) -> PreTrainedTokenizerFast:
    """The same tokenizer with what :func:`build_tokenizer` says of padding, of the length and of both ends."""
    if tokenizer.pad_token is None:
        tokenizer.add_special_tokens({"pad_token": SPECIAL_TOKENS["pad_token"]})
    if goes_on:
        tokenizer.bos_token = tokenizer.bos_token or tokenizer.cls_token
        tokenizer.eos_token = tokenizer.eos_token or tokenizer.sep_token
    tokenizer.model_max_length = max_length
    return reads_from_the_left(tokenizer)


def reads_from_the_left(tokenizer: T) -> T:
    """The same tokenizer, which pads and cuts on the right: encoders count positions from the first column."""
    tokenizer.padding_side = tokenizer.truncation_side = "right"
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None and backend.padding is not None:  # tokenizer.json says it too
        backend.enable_padding(**{**backend.padding, "direction": "right"})
    return tokenizer


def _train_bpe(texts: Iterable[str], size: int, *words: pre_tokenizers.PreTokenizer) -> Tokenizer:
    """Byte-level pair encoding; merges stay within the words into which a text is divided."""
    tokenizer = Tokenizer(models.BPE())
    parts = [*words, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*parts, pre_tokenizers.FixedLength(_LONGEST_WORD)])
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS.values()),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(parts)
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
    tokenizer: object
    try:
        if path.is_file():
            tokenizer = _load_file(path)
        else:
            if not path.is_dir():
                ask_hub("model", spec)
            tokenizer = AutoTokenizer.from_pretrained(spec, local_files_only=path.is_dir(), trust_remote_code=False)
    except Exception as error:  # transformers, the hub and the network share no base class of errors
        missing = "neither bytes, nor bpe:SIZE, nor a file or folder, nor within reach as a model of the hub"
        problem = "cannot be loaded" if os.path.exists(spec) else missing
        raise InputError(f"tokenizer {spec!r}: {problem} ({first_line(error)})") from None
    if not isinstance(tokenizer, PreTrainedTokenizerFast):
        raise InputError(f"tokenizer {spec!r}: has no tokenizer.json; save it from a fast tokenizer first")
    return tokenizer


def _load_file(path: Path) -> PreTrainedTokenizerFast:
    """A tokenizer.json does not record what its special tokens are for; their usual names do."""
    backend = Tokenizer.from_file(str(path))
    roles = {}
    for role, token in SPECIAL_TOKENS.items():
        names = (token, f"[{token[1:-1].upper()}]")
        roles[role] = next((name for name in names if backend.token_to_id(name) is not None), None)
    return PreTrainedTokenizerFast(tokenizer_object=backend, **roles)
