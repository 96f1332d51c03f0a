"""Files of one token a line, as the CoNLL shared tasks and Universal Dependencies use them.

    -DOCSTART- -X- O O

    EU NNP I-NP B-ORG
    rejects VBZ I-VP O

A blank line ends a sentence. In a file with `-DOCSTART-` lines a row is what lies between two of them, however many
sentences that is; in any other file it is a sentence.
"""

import re
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from torch_linformer.data.reading.cells import counts_rows
from torch_linformer.data.reading.files import check_decoded, open_text
from torch_linformer.data.reading.options import DataOptions
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row
from torch_linformer.errors import InputError

_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # a token may hold a no-break space
_TAG = re.compile(r"O|[BIESLUM](-.+)?")  # a tag of IOB, IOBES, BILOU or BMES
_BEGINNING = re.compile(r"[BSU]-.+")
_CHUNKS = frozenset(
    ["NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"]
)  # the phrases of CoNLL-2000
_UNIVERSAL = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")  # of CoNLL-U
_SAMPLE_SENTENCES = 200
_SAMPLE_LINES = 200

Cells = list[str]


def conll_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """A row for each sentence or document, with a list for each column; its place is the line of its first token.

    "tokens" are the words and "tags" the tags, as far as that can be told; other columns are called by their numbers
    from 1, or as CoNLL-U calls them. The file is read several times, with no more than one row in memory.
    """
    with open_text(path, options, report) as stream:
        sample = list(islice(_sentences(stream, by_document=False), _SAMPLE_SENTENCES))
    with open_text(path, options, report) as stream:
        by_document = any(line.startswith(_DOCUMENT) for line in stream)
    width = min((len(cells) for _, rows in sample for cells in rows), default=0)
    if width < 2:
        line = next((number for number, rows in sample if any(len(row) < 2 for row in rows)), 1)
        raise InputError(f"{path}, line {line}: expected a token and its tag, found one column")
    names = _names(sample, width)
    tokens, tags = _token_column(sample, names), _tag_column(sample, names)
    kept = {at: "tokens" if at == tokens else name for at, name in enumerate(names) if at >= tokens}
    if width > 2:
        which = "" if tags is None else f", tags from column {names[tags]}"
        report.note(f"{path}: {width} columns; words from column {names[tokens]}{which}; --label-column names another")
    with open_text(path, options, report) as stream:
        for number, rows in _sentences(stream, by_document):
            where = f"{path}, line {number}"
            short = next((row for row in rows if len(row) < width), None)
            try:
                if short is not None:
                    raise InputError(f"{where}: expected {width} columns, found {len(short)} beside {short[0]!r}")
                columns: dict[str, object] = {name: [row[at] for row in rows] for at, name in kept.items()}
                check_decoded("".join(row[tokens] for row in rows), where, options.encoding)
            except InputError as problem:
                yield BadRow(where, problem)
                continue
            yield Row(columns if tags is None else {**columns, "tags": columns[names[tags]]}, where)


def is_conll(text: str) -> bool:
    """Whether a text of unknown kind is of words with tags of entities in columns."""
    sample = list(_sentences(text.splitlines()[:_SAMPLE_LINES], by_document=False))
    rows = [row for _, rows in sample for row in rows]
    widths = {len(row) for row in rows}
    if len(rows) < 2 or len(widths) != 1 or widths < {2}:
        return False
    return any(_are_tags([row[at] for row in rows]) for at in range(1, widths.pop()))


def _sentences(lines: Iterable[str], by_document: bool) -> Iterator[tuple[int, list[Cells]]]:
    """The rows of cells of each sentence or document, and the line of the first."""
    rows: list[Cells] = []
    first, in_sentence = 0, False
    for number, line in enumerate(lines, start=1):
        is_boundary = line.startswith(_DOCUMENT)
        if is_boundary or not line.strip():
            in_sentence = False
            if rows and (is_boundary or not by_document):
                yield first, rows
                rows = []
            continue
        cells = _cells(line)
        if _is_left_out(line, cells, in_sentence):
            continue
        if not rows:
            first = number
        in_sentence = True
        rows.append(cells)
    if rows:
        yield first, rows


def _cells(line: str) -> Cells:
    """The cells of a line, divided by tabs where it holds one (a token may then hold spaces), by spaces otherwise."""
    stripped = line.strip(" \t\r\n\v\f")
    return [cell.strip() for cell in stripped.split("\t")] if "\t" in stripped else _SPACES.split(stripped)


def _is_left_out(line: str, cells: Cells, in_sentence: bool) -> bool:
    """Whether a line is a comment (and not the token "#" with its tag), or a token that CoNLL-U adds to others."""
    if line.startswith("#") and not in_sentence:
        return len(cells) < 2 or " = " in line or not _TAG.fullmatch(cells[-1])
    return len(cells) == len(_UNIVERSAL) and re.fullmatch(r"\d+[-.]\d+", cells[0]) is not None


def _names(sample: list[tuple[int, list[Cells]]], width: int) -> tuple[str, ...]:
    is_universal = width == len(_UNIVERSAL) and _is_counted(sample, 0)
    return _UNIVERSAL if is_universal else tuple(str(number) for number in range(1, width + 1))


def _is_counted(sample: list[tuple[int, list[Cells]]], at: int) -> bool:
    """Whether a column numbers the tokens of each sentence."""
    counted = [counts_rows([row[at] for row in rows]) for _, rows in sample if len(rows) > 1]
    return bool(counted) and all(counted)


def _token_column(sample: list[tuple[int, list[Cells]]], names: tuple[str, ...]) -> int:
    return 1 if _is_counted(sample, 0) and len(names) > 2 else 0


def _tag_column(sample: list[tuple[int, list[Cells]]], names: tuple[str, ...]) -> int | None:
    """The column of entities, if there is one; otherwise the only one there is beside the tokens."""
    if names == _UNIVERSAL:
        return _UNIVERSAL.index("UPOS")
    first = _token_column(sample, names) + 1
    columns = {at: [row[at] for _, rows in sample for row in rows] for at in range(first, len(names))}
    entities = [at for at, values in columns.items() if _are_tags(values) and not _are_chunks(values)]
    candidates = entities or list(columns)
    return candidates[0] if len(candidates) == 1 else None


def _are_tags(values: list[str]) -> bool:
    return all(map(_TAG.fullmatch, values)) and any(value != "O" for value in values)


def _are_chunks(values: list[str]) -> bool:
    """Whether tags are of phrases, as CoNLL-2000 and CoNLL-2003 have them beside entities."""
    return {value.partition("-")[2] for value in values if value != "O"} <= _CHUNKS
