"""Tokenizers for documents of any length, and data sets of token ids made with them.

Two tokenizers are built here and need no download: `bytes` gives every byte of UTF-8 a token, `bpe:SIZE`
learns to merge frequent neighbours on the training texts. Both take any text without loss and begin with the
same four special tokens. What a document holds is text: `<mask>` in one is six characters, no special token.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from datasets import Dataset, Features, Value
from datasets import Sequence as ListOf
from datasets.fingerprint import Hasher
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from torch_linformer.training.data import quiet
from torch_linformer.training.errors import InputError
from torch_linformer.training.sources import ask_hub

SPECIAL_TOKENS = {"pad_token": "<pad>", "cls_token": "<cls>", "sep_token": "<sep>", "mask_token": "<mask>"}
_MIN_BPE_SIZE = len(SPECIAL_TOKENS) + 256
_LONGEST_WORD = 256  # characters; training takes quadratic time in the length of a word
_BATCH_BYTES = 4_000_000  # text per batch; an encoding takes about a hundred bytes of memory a token


def build_tokenizer(spec: str, texts: Iterable[str], *, max_length: int) -> PreTrainedTokenizerFast:
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

    Raises:
        InputError: SIZE is not a whole number from 260, or there is no such tokenizer, or it cannot be used.
    """
    kind, _, size = spec.partition(":")
    if spec == "bytes":
        tokenizer = _wrap(_byte_level())
    elif kind == "bpe":
        if not size.isdecimal() or int(size) < _MIN_BPE_SIZE:
            raise InputError(f"tokenizer {spec!r}: write bpe:SIZE with a whole number from {_MIN_BPE_SIZE}")
        tokenizer = _wrap(_train_bpe(texts, int(size)))
    else:
        tokenizer = _load(spec)
    tokenizer.model_max_length = max_length
    tokenizer.padding_side = "right"
    return tokenizer


class DocumentEncoder:
    """Turns texts into token ids, cut to `max_length` tokens with the special tokens kept at both ends.

    Args:
        tokenizer: left as it is; the encoder works on a copy.
        max_length: the tokens an encoded document may have, special tokens included.

    Raises:
        InputError: `max_length` leaves no room beside the special tokens.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerFast, max_length: int) -> None:
        self.max_length = max_length
        self._backend = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
        self._backend.no_truncation()
        self._backend.no_padding()
        self._backend.encode_special_tokens = True  # which means: split them like any other text
        self._before, self._after = _special_ids(self._backend)
        self._room = max_length - len(self._before) - len(self._after)
        if self._room < 1:
            raise InputError(f"{max_length} tokens leave no room for text beside the special tokens; allow more")

    def __call__(self, texts: Sequence[str]) -> dict[str, list]:
        """Return for each text `input_ids`, their number `length`, and `num_tokens`, that before the cut."""
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        input_ids = [self._before + encoding.ids[: self._room] + self._after for encoding in encodings]
        special = len(self._before) + len(self._after)
        return {
            "input_ids": input_ids,
            "length": [len(ids) for ids in input_ids],
            "num_tokens": [len(encoding) + special for encoding in encodings],
        }

    @property
    def fingerprint(self) -> str:
        """Differs whenever the token ids might."""
        return Hasher.hash([self._backend.to_str(), self.max_length])


def tokenize_documents(dataset: Dataset, tokenizer: PreTrainedTokenizerFast, max_length: int) -> Dataset:
    """Replace the column "text" by `input_ids`, `length` and `num_tokens` (see `DocumentEncoder`).

    The result is memory-mapped, and found in the cache when the same documents come with the same tokenizer.

    Raises:
        InputError: `max_length` leaves no room beside the special tokens.
    """
    encoder = DocumentEncoder(tokenizer, max_length)
    new = {"input_ids": ListOf(Value("int32")), "length": Value("int32"), "num_tokens": Value("int64")}
    kept = {name: kind for name, kind in dataset.features.items() if name != "text"}
    bytes_per_row = dataset.data.nbytes // max(1, dataset.data.num_rows) + 1
    with quiet():
        return dataset.map(
            encoder,
            input_columns="text",
            remove_columns="text",
            features=Features({**kept, **new}),
            batched=True,
            batch_size=min(1000, _BATCH_BYTES // bytes_per_row + 1),
            # Hashed here, because the default hashes the encoder by pickling it, which is not stable.
            new_fingerprint=Hasher.hash([dataset._fingerprint, encoder.fingerprint]),
        )


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


def _special_ids(tokenizer: Tokenizer) -> tuple[list[int], list[int]]:
    """The special tokens that the post-processor puts before and after a text of one token."""
    probe = Tokenizer(models.WordLevel({"x": 0}, unk_token="x"))
    if tokenizer.post_processor is not None:
        probe.post_processor = tokenizer.post_processor
    encoding = probe.encode("x")
    place = encoding.special_tokens_mask.index(0)
    return encoding.ids[:place], encoding.ids[place + 1 :]


def _wrap(tokenizer: Tokenizer) -> PreTrainedTokenizerFast:
    cls, sep = SPECIAL_TOKENS["cls_token"], SPECIAL_TOKENS["sep_token"]
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS.values()))
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}",
        pair=f"{cls} $A {sep} $B {sep}",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in (cls, sep)],
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **SPECIAL_TOKENS)


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
