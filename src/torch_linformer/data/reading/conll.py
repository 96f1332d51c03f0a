"""Files of one token a line, as the CoNLL shared tasks and Universal Dependencies use them.

    -DOCSTART- -X- O O

    EU NNP I-NP B-ORG
    rejects VBZ I-VP O

A blank line ends a sentence. In a file with `-DOCSTART-` lines a row is what lies between two of them, however many
sentences that is; in any other file it is a sentence.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.encodings import check_decoded, open_text
from torch_linformer.data.reading.rows import BadRow, ReadReport, Row, counts_rows
from torch_linformer.errors import InputError

_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # a token may hold a no-break space
_TAG = re.compile(r"O|[BIESLUM](-.+)?")  # a tag of IOB, IOBES, BILOU or BMES
_BEGINNING = re.compile(r"[BSU]-.+")
_CHUNKS = frozenset(
    ["NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"]
)  # the phrases of CoNLL-2000
_UNIVERSAL = ("ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC")  # of CoNLL-U
_NAMES_OF_WORDS = ("token", "tokens", "word", "words", "form")
_NAMES_OF_TAGS = ("tag", "tags", "ner", "ner_tag", "ner_tags", "pos", "pos_tags", "upos", "label", "labels")
_SAMPLE_LINES = 500
_LEAST_LINES = 2  # with a token


class TokenLine(NamedTuple):
    """A line with a token: its number and its cells."""

    number: int
    cells: list[str]


def conll_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """A row for each sentence or document, with a list for each column; its place is the line of its first token.

    "tokens" are the words and "tags" the tags, as far as that can be told; other columns are called by their numbers
    from 1, or as CoNLL-U calls them. The file is read several times, with no more than one row in memory.
    """
    with open_text(path, options, report) as stream:
        sample = list(_sentences(islice(stream, _SAMPLE_LINES), by_document=False))
    with open_text(path, options, report) as stream:
        by_document = any(line.startswith(_DOCUMENT) for line in stream)
    widths = Counter(len(line.cells) for lines in sample for line in lines)
    width = max(2, widths.most_common(1)[0][0]) if widths else 2
    sample = [lines for lines in sample if all(len(line.cells) == width for line in lines)]
    names = _names(sample, width)
    tokens, tags = _token_column(sample, names), _tag_column(sample, names)
    _check_sample(path, sample, tokens)
    kept = {at: "tokens" if at == tokens else name for at, name in enumerate(names) if at >= tokens}
    if width > 2:
        which = "" if tags is None else f", tags from column {names[tags]}"
        report.note(f"{path}: {width} columns; words from column {names[tokens]}{which}; --label-column names another")
    with open_text(path, options, report) as stream:
        for lines in _sentences(stream, by_document):
            try:
                for line in lines:
                    _check(line, width, path)
                where = f"{path}, line {lines[0].number}"
                check_decoded(" ".join(cell for line in lines for cell in line.cells), where, options.encoding)
            except InputError as problem:
                yield BadRow(f"{path}, line {lines[0].number}", problem)
                continue
            columns: dict[str, object] = {name: [line.cells[at] for line in lines] for at, name in kept.items()}
            if tags is not None:
                columns["tags"] = columns[names[tags]]
            yield Row({name: values for name, values in columns.items() if width > 2 or name != names[-1]}, where)


def _check_sample(path: Path, sample: list[list[TokenLine]], tokens: int) -> None:
    """Raise an `InputError` where the first line names the columns, or tags stand where words are expected."""
    first = sample[0][0] if sample else TokenLine(0, [])
    names = {cell.lower() for cell in first.cells}
    if names & {*_NAMES_OF_WORDS} and names & {*_NAMES_OF_TAGS}:
        raise InputError(f"{path}, line {first.number}: names the columns ({' '.join(first.cells)}); remove the line")
    if sample and len(first.cells) == 2 and _are_tags(_column(sample, tokens)):
        raise InputError(f"{path}: the first column holds tags; in each line write the word first, and then its tag")


def _check(line: TokenLine, width: int, path: Path) -> None:
    """Raise an `InputError` for a line with too few or too many cells."""
    where = f"{path}, line {line.number}"
    if len(line.cells) < 2 or "" in (line.cells[0], line.cells[-1]):
        shown = " ".join(line.cells).strip()
        raise InputError(
            f"{where}: expected a token and its tag, found {shown!r}; put a space or a tab between the two, and a "
            "blank line between sentences"
        )
    if len(line.cells) != width:
        raise InputError(f"{where}: expected {width} columns, found {len(line.cells)} from {line.cells[0]!r} on")


def is_conll(text: str) -> bool:
    """Whether a text of unknown kind is of words with tags of entities in columns."""
    sample = list(_sentences(text.splitlines()[:_SAMPLE_LINES], by_document=False))
    widths = {len(line.cells) for lines in sample for line in lines}
    if len(widths) != 1 or sum(map(len, sample)) < _LEAST_LINES:
        return False
    return any(_are_tags(_column(sample, at)) for at in range(1, widths.pop()))


def _sentences(lines: Iterable[str], by_document: bool) -> Iterator[list[TokenLine]]:
    """The lines with the tokens of each sentence or document."""
    rows: list[TokenLine] = []
    in_sentence = False
    for number, line in enumerate(lines, start=1):
        is_boundary = line.startswith(_DOCUMENT)
        if is_boundary or not line.strip():
            in_sentence = False
            if rows and (is_boundary or not by_document):
                yield rows
                rows = []
            continue
        cells = _cells(line)
        if not _is_left_out(line, cells, in_sentence):
            in_sentence = True
            rows.append(TokenLine(number, cells))
    if rows:
        yield rows


def _cells(line: str) -> list[str]:
    """The cells of a line, divided by tabs where it holds one (a token may then hold spaces), by spaces otherwise."""
    stripped = line.strip(" \t\r\n\v\f")
    return [cell.strip() for cell in stripped.split("\t")] if "\t" in stripped else _SPACES.split(stripped)


def _is_left_out(line: str, cells: list[str], in_sentence: bool) -> bool:
    """Whether a line is a comment (and not the token "#" with its tag), or a token that CoNLL-U adds to others."""
    if line.startswith("#") and not in_sentence:
        has_space = line.startswith("# ") or " " in cells[-1]  # a token and its tag are divided, by a tab or by a space
        may_be_token = _TAG.fullmatch(cells[-1]) or not (has_space or len(cells) > 2)
        return len(cells) < 2 or " = " in line or not may_be_token
    return len(cells) == len(_UNIVERSAL) and re.fullmatch(r"\d+[-.]\d+", cells[0]) is not None


def _column(sample: list[list[TokenLine]], at: int) -> list[str]:
    return [line.cells[at] for lines in sample for line in lines]


def _names(sample: list[list[TokenLine]], width: int) -> tuple[str, ...]:
    is_universal = width == len(_UNIVERSAL) and _is_counted(sample)
    return _UNIVERSAL if is_universal else tuple(str(number) for number in range(1, width + 1))


def _is_counted(sample: list[list[TokenLine]]) -> bool:
    """Whether the first column numbers the tokens of each sentence."""
    counted = [counts_rows([line.cells[0] for line in lines]) for lines in sample if len(lines) > 1]
    return bool(counted) and all(counted)


def _token_column(sample: list[list[TokenLine]], names: tuple[str, ...]) -> int:
    return 1 if _is_counted(sample) and len(names) > 2 else 0


def _tag_column(sample: list[list[TokenLine]], names: tuple[str, ...]) -> int | None:
    """The column of entities, if there is one; otherwise the only one there is beside the tokens."""
    if names == _UNIVERSAL:
        return _UNIVERSAL.index("UPOS")
    columns = {at: _column(sample, at) for at in range(_token_column(sample, names) + 1, len(names))}
    entities = [at for at, values in columns.items() if _are_tags(values) and not _are_chunks(values)]
    candidates = entities or list(columns)
    return candidates[0] if len(candidates) == 1 else None


def _are_tags(values: list[str]) -> bool:
    return all(map(_TAG.fullmatch, values)) and any(value != "O" for value in values)


def _are_chunks(values: list[str]) -> bool:
    """Whether tags are of phrases, as CoNLL-2000 and CoNLL-2003 have them beside entities."""
    return {value.partition("-")[2] for value in values if value != "O"} <= _CHUNKS
