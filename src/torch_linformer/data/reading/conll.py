"""Files of tokens and tags in columns, as the CoNLL shared tasks use them.

    -DOCSTART- -X- O O

    EU NNP I-NP B-ORG
    rejects VBZ I-VP O

The first column is the token, the last one its tag; a blank line ends a sentence. In a file with `-DOCSTART-`
lines a row is what lies between two of them, however many sentences that is; in any other file it is a sentence.
"""

import re
from collections.abc import Iterator
from typing import BinaryIO

from torch_linformer.errors import InputError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_DOCUMENT = b"-DOCSTART-"
_COMMENT = b"# "
_TAG = re.compile(rb"O|[BIESLUM](-.+)?")  # a tag of IOB, IOBES, BILOU or BMES


def conll_rows(stream: BinaryIO, name: str) -> Iterator[tuple[dict[str, object], str]]:
    """Yield each row as ({"tokens": [...], "tags": [...]}, "name, line of its first token").

    ChosenColumns are separated by tabs where the line holds one (a token may then hold spaces), by spaces otherwise.
    Bytes that are not UTF-8 become lone surrogates. The stream is gone through twice, and no more than one row
    of it is in memory.

    Raises:
        InputError: a line with fewer than two columns.
    """
    by_document = any(line.removeprefix(_BYTE_ORDER_MARK).startswith(_DOCUMENT) for line in stream)
    stream.seek(0)
    tokens: list[str] = []
    tags: list[str] = []
    first = 0
    in_sentence = False
    for number, line in enumerate(stream, start=1):
        if number == 1:
            line = line.removeprefix(_BYTE_ORDER_MARK)
        is_boundary = line.startswith(_DOCUMENT)
        if is_boundary or not line.strip():
            in_sentence = False
            if tokens and (is_boundary or not by_document):
                yield {"tokens": tokens, "tags": tags}, f"{name}, line {first}"
                tokens, tags = [], []
            continue
        columns = _columns(line)
        if not in_sentence and _is_comment(line, columns):
            continue
        if len(columns) < 2:
            raise InputError(
                f"{name}, line {number}: expected a token and its tag, found {_decode(line.strip())!r:.40};"
                " put a space or a tab between the two, and a blank line between sentences"
            )
        if not tokens:
            first = number
        in_sentence = True
        tokens.append(_decode(columns[0]))
        tags.append(_decode(columns[-1]))
    if tokens:
        yield {"tokens": tokens, "tags": tags}, f"{name}, line {first}"


def _columns(line: bytes) -> list[bytes]:
    # Split as bytes, white space is ASCII's alone: a token may hold a no-break space.
    if b"\t" in line.strip():
        return [column.strip() for column in line.strip().split(b"\t")]
    return line.split()


def _is_comment(line: bytes, columns: list[bytes]) -> bool:
    """Whether a line before a sentence is a comment of CoNLL-U, rather than the token "#" with its tag."""
    return line.startswith(_COMMENT) and (b" = " in line or not _TAG.fullmatch(columns[-1]))


def _decode(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
