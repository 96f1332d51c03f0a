"""Files of tokens and tags in columns, as the CoNLL shared tasks use them.

    -DOCSTART- -X- O O

    EU NNP I-NP B-ORG
    rejects VBZ I-VP O

The first column is the token, the last one its tag; a blank line ends a sentence. In a file with `-DOCSTART-`
lines a row is what lies between two of them, however many sentences that is; in any other file it is a sentence.
"""

import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from torch_linformer.data.reading.text_files import Row, decode, opened
from torch_linformer.errors import InputError

_DOCUMENT = b"-DOCSTART-"
_COMMENT = b"# "
_TAG = re.compile(rb"O|[BIESLUM](-.+)?")  # a tag of IOB, IOBES, BILOU or BMES


def conll_rows(path: Path) -> Iterator[Row]:
    """Each row as {"tokens": [...], "tags": [...]}; its place is the line of its first token.

    Columns are separated by tabs where the line holds one (a token may then hold spaces), by spaces otherwise.
    The file is read twice, with no more than one row in memory.
    """
    with opened(path) as stream:
        start = stream.tell()
        by_document = any(line.startswith(_DOCUMENT) for line in stream)
        stream.seek(start)
        yield from _rows(stream, str(path), by_document)


def _rows(lines: Iterable[bytes], name: str, by_document: bool) -> Iterator[Row]:
    tokens: list[str] = []
    tags: list[str] = []
    where = ""
    in_sentence = False
    for number, line in enumerate(lines, start=1):
        is_boundary = line.startswith(_DOCUMENT)
        if is_boundary or not line.strip():
            in_sentence = False
            if tokens and (is_boundary or not by_document):
                yield Row({"tokens": tokens, "tags": tags}, where)
                tokens, tags = [], []
            continue
        columns = _columns(line)
        if not in_sentence and _is_comment(line, columns):
            continue
        if len(columns) < 2:
            raise InputError(
                f"{name}, line {number}: expected a token and its tag, found {decode(line.strip())!r:.40};"
                " put a space or a tab between the two, and a blank line between sentences"
            )
        if not tokens:
            where = f"{name}, line {number}"
        in_sentence = True
        tokens.append(decode(columns[0]))
        tags.append(decode(columns[-1]))
    if tokens:
        yield Row({"tokens": tokens, "tags": tags}, where)


def _columns(line: bytes) -> list[bytes]:
    # Split as bytes, where only ASCII's white space counts: a token may hold a no-break space.
    if b"\t" in line.strip():
        return [column.strip() for column in line.strip().split(b"\t")]
    return line.split()


def _is_comment(line: bytes, columns: list[bytes]) -> bool:
    """Whether a line before a sentence is a comment of CoNLL-U, rather than the token "#" with its tag."""
    return line.startswith(_COMMENT) and (b" = " in line or not _TAG.fullmatch(columns[-1]))
