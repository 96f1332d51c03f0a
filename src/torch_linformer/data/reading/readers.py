"""Rows of JSON, of Parquet, of words with tags, and of plain texts; which of these, or a table, a file holds."""

import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import accumulate, chain, islice
from pathlib import Path
from typing import Any, TextIO

from torch_linformer.data.reading.delimited import is_divided_by_tabs, table_rows
from torch_linformer.data.reading.formats import (
    COMPRESSED_SUFFIXES,
    CONLL_SUFFIXES,
    MOST_UNFOLDED,
    SNIFFED_BYTES,
    File,
    file_stem,
    file_suffix,
    most_unfolded,
)
from torch_linformer.data.reading.rows import (
    TEXT_COLUMNS,
    Row,
    bad_cell,
    check_decoded,
    check_once,
    counts_rows,
    known,
)
from torch_linformer.errors import InputError, first_line
from torch_linformer.measuring.machine import memory_bytes
from torch_linformer.reporting.tables import format_bytes, format_count

PART_SUFFIXES = (".train", ".dev", ".test", ".testa", ".testb")  # of words with tags, as CoNLL-2003 is divided
# Parts of the memory. A character takes 33 bytes where each is a token (docs/scale.md), and ten as an object of JSON.
OF_DOCUMENT, OF_JSON = 64, 16
_PIECE = 2**20  # characters of a text of which only parts are needed at once
_READ = 2**16  # characters of an array of JSON read at once
_SHORTEST_PIECE = 1000
_PIECES = 50  # of a file alone, at least: some are held out
_LEAST_LINES = 20  # of a file whose lines are documents
_OVERLONG = 4  # times a piece, after which it ends at a line that ends no paragraph
_BATCH = 64  # rows of Parquet in memory at once; a row may be a book
_COUNTED = 65_536  # rows whose lengths are counted at once
_NUMBER_BYTES = 8  # at most, of a value that is no text
_SURROGATE = re.compile("[\ud800-\udfff]")
_SPACE = re.compile(r"[ \t\r\n]*")
_DOCUMENT = "-DOCSTART-"
_SPACES = re.compile(r"[ \t\r\n\v\f]+")  # a token may hold a no-break space
_TAG = re.compile(r"O|[BIESLUM](-.+)?")  # a tag of IOB, IOBES, BILOU or BMES
_CHUNKS = {"NP", "VP", "PP", "ADVP", "ADJP", "SBAR", "PRT", "CONJP", "INTJ", "LST", "UCP"}  # of CoNLL-2000
_UNIVERSAL = ["ID", "FORM", "LEMMA", "UPOS", "XPOS", "FEATS", "HEAD", "DEPREL", "DEPS", "MISC"]  # of CoNLL-U
_NAMES_OF_WORDS = ("token", "tokens", "word", "words", "form")
_NAMES_OF_TAGS = ("tag", "tags", "ner", "ner_tag", "ner_tags", "pos", "pos_tags", "upos", "label", "labels")
_SAMPLE_LINES = 500

Reader = Callable[[File], Iterator[Row]]


def reader_of(file: File, whole: bool) -> Reader | None:
    """What reads the rows of a file, by its content where the suffix does not tell; None for a text."""
    suffix = file_suffix(file.path)
    if suffix in (".txt", ".tsv", "", *PART_SUFFIXES):
        with file.open() as stream:
            lines = stream.read(SNIFFED_BYTES).splitlines()
        if _is_conll(lines):
            return conll_rows
        if whole and suffix != ".tsv" and is_divided_by_tabs([line for line in lines if line.strip()][:-1]):
            file.note(f"{file.path}: a table, as all lines have as many tabs")  # the last line may have been cut
            return table_rows
    return READERS.get(suffix)


# JSON


def json_rows(file: File) -> Iterator[Row]:
    """A row for each object of a file: one a line, those of an array, or those in a value that is read whole."""
    with file.open() as stream:
        head, by_lines = list[str](), file_suffix(file.path) in (".jsonl", ".ndjson")
        while not any(map(str.strip, head)) and (line := stream.readline(_PIECE)):
            head.append(line)
        if head and head[-1].lstrip().startswith("[") and not by_lines:
            yield from _array(stream, head[-1].lstrip(), file)
            return
        first = len(head) - 1
        if head and not head[first].endswith("\n"):
            head[first] += stream.readline()
        while not by_lines and (line := stream.readline()):
            head.append(line)
            if line.strip():  # one line alone is a whole value
                continues = head[first].rstrip().endswith(("{", ",", ":"))
                by_lines = _looks_like_object(head[first]) or (_looks_like_object(line) and not continues)
                break
        if by_lines:
            yield from json_lines(chain(head, stream), str(file.path), file.encoding)
        elif any(map(str.strip, head)):
            yield from _value(read_whole(stream, file.path, "".join(head), OF_JSON), file)


def json_lines(lines: Iterable[str], name: str, encoding: str | None) -> Iterator[Row]:
    """Rows of JSON lines; blank lines are passed over."""
    for number, line in enumerate(lines, start=1):
        if line.strip():
            where = f"{name}, line {number}"
            try:
                check_decoded(line, encoding)
                yield _object(_DECODER.decode(line), where, _escapes(line))
            except InputError as problem:
                yield Row(where, problem)
            except (ValueError, RecursionError) as error:
                yield Row(where, InputError(f"not valid JSON ({error}); write one JSON object on each line"))


def is_object(line: str) -> bool:
    """Whether a line is a JSON object."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False


def _looks_like_object(line: str) -> bool:
    line = line.strip()
    return (line.startswith("{") and line.endswith("}")) or is_object(line)


class _Twice(ValueError):
    """An object has two values of one name, of which the parser would keep the last."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        twice = next(name for name, count in Counter(name for name, _ in pairs).items() if count > 1)
        raise _Twice(f"two values are called {twice!r}")
    return values


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def _array(stream: TextIO, text: str, file: File) -> Iterator[Row]:
    """The objects of an array that begins with ``text``; only one of them has to be in memory."""
    at, number, more, mark = 1, 0, _READ, ","
    while mark == ",":
        try:
            begin = _SPACE.match(text, at).end()  # type: ignore[union-attr]
            value: Any = None
            if not number and text[begin] == "]":
                end = begin
            else:
                try:
                    value, end = _DECODER.raw_decode(text, begin)
                except _Twice as problem:
                    value, end = problem, json.JSONDecoder().raw_decode(text, begin)[1]
                end = _SPACE.match(text, end).end()  # type: ignore[union-attr]
            mark = text[end]  # without which a number might go on
            if mark not in ",]":
                raise json.JSONDecodeError("Expecting ',' delimiter", text, end)
        except RecursionError as error:
            yield _invalid(file, error)
            return
        except (json.JSONDecodeError, IndexError) as error:
            mark, left = ",", len(text) - at
            added = stream.read(more)
            if not added:
                yield _invalid(file, error if isinstance(error, json.JSONDecodeError) else "it is cut")
                return
            if left > (most := memory_bytes() // OF_JSON):
                raise _too_large(file.path, most, OF_JSON) from None
            text, at, more = text[at:] + added, 0, 2 * more  # a long item is not begun too often
            continue
        number, more, where = number + 1, _READ, f"{file.path}, item {number + 1}"
        if begin < end:
            try:
                check_decoded(text[begin:end], file.encoding)
                yield _object(value, where, _escapes(text[begin:end]))
            except InputError as problem:
                yield Row(where, problem)
        at = end + 1
    if text[at:].strip() or any(chunk.strip() for chunk in iter(partial(stream.read, _READ), "")):
        yield _invalid(file, "Extra data after the array")


def _invalid(file: File, error: object) -> Row:
    remedy = "write an array of objects, or one object on each line"
    return Row(str(file.path), InputError(f"{file.path}: not valid JSON ({error}); {remedy}"))


def _object(value: Any, where: str, escapes: bool) -> Row:
    """The row of a value; where its text escapes half characters, they become U+FFFD."""
    if isinstance(value, _Twice):
        value = InputError(f"not valid JSON ({value}); give each a name of its own")
    elif not isinstance(value, dict | InputError):
        value = InputError(f"expected a JSON object, found {type(value).__name__}")
    if not escapes or not isinstance(value, dict):
        return Row(where, value)
    clean = _clean(value)
    return Row(where, clean, replaced=[*clean.values()] != [*value.values()])


def _escapes(text: str) -> bool:
    """Whether a text of JSON may hold half a character."""
    return "\\ud" in text or "\\uD" in text


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, list):
        return [_clean(item) for item in value]
    if isinstance(value, dict):
        return {_clean(key): _clean(item) for key, item in value.items()}
    return value


def _value(text: str, file: File) -> Iterator[Row]:
    """The objects in a value: itself, those of its one array, a table as pandas writes it, or questions of SQuAD."""
    try:
        content = _DECODER.decode(check_decoded(text, file.encoding))
    except InputError as problem:
        yield Row(str(file.path), problem)
        return
    except (ValueError, RecursionError) as error:
        yield _invalid(file, error)
        return
    data = content.get("data") if isinstance(content, dict) else None
    escapes = _escapes(text)
    if isinstance(data, list) and any(isinstance(item, dict) and "paragraphs" in item for item in data):
        yield from (_object(row.values, row.where, escapes) for row in squad_rows(data, str(file.path)))
    else:
        items = enumerate(_items(content, file), start=1)
        yield from (_object(item, f"{file.path}, item {number}", escapes) for number, item in items)


def _items(content: Any, file: File) -> Iterable[Any]:
    if not isinstance(content, dict):
        return [content]
    columns, data = content.get("columns"), content.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        names = list(map(str, columns))
        check_once(file.path, names)
        return [dict(zip(names, row, strict=True)) if len(row) == len(names) else row for row in data]  # orient="split"
    arrays = [
        name
        for name, value in content.items()
        if isinstance(value, list) and value and all(isinstance(item, dict) for item in value)
    ]
    if any(isinstance(content[name], str) for name in known(content, TEXT_COLUMNS)):
        return [content]
    if len(arrays) > 1:
        raise InputError(f"{file.path}: holds several arrays of objects ({', '.join(arrays)}); save each as a file")
    if arrays:
        file.note(f"{file.path}: a row is an object in {arrays[0]!r}")
        return list(content[arrays[0]])
    if len(content) < 2 or not all(isinstance(value, dict) for value in content.values()):
        return [content]
    file.note(f"{file.path}: an object of {len(content):,} objects, read as a table")
    within = dict.fromkeys(key for values in content.values() for key in values)
    if within and all(key.isdecimal() for key in within):  # of columns, by the numbers of rows
        return [{name: column.get(key) for name, column in content.items()} for key in within]
    if known(content, TEXT_COLUMNS) and not known(within, TEXT_COLUMNS):  # by their names
        return [{"id": key, **{name: column.get(key) for name, column in content.items()}} for key in within]
    return [{"id": name, **row} for name, row in content.items()]


def squad_rows(articles: list[Any], name: str) -> Iterator[Row]:
    """Each question of SQuAD: `id`, `question`, `context`, and `answers`, lists of their `text` and `answer_start`.

    Places are in characters. A question without `answers` that is not marked impossible is there to be answered.
    """
    for number, article in enumerate(articles):
        try:
            passages = [(passage["context"], [*passage["qas"]]) for passage in article["paragraphs"]]
            if not all(isinstance(passage["qas"], list) for passage in article["paragraphs"]):
                raise TypeError("'qas' is no array")
        except (KeyError, TypeError) as error:
            yield _not_squad(f"{name}, data[{number}]", error)
            continue
        for context, question in ((context, question) for context, questions in passages for question in questions):
            where = f"{name}, data[{number}]"
            try:
                if type(question["id"]) not in (str, int):
                    raise TypeError(f"the id {question['id']!r:.40} is neither text nor a whole number")
                where = f"{name}, question {question['id']}"
                values = {"id": str(question["id"]), "question": question["question"], "context": context}
                if not all(isinstance(text, str) for text in values.values()):
                    raise TypeError("question and context are texts")
                impossible = question.get("is_impossible")
                if not isinstance(impossible, bool | None):  # "false" would be true
                    raise TypeError(f"expected 'is_impossible' to be true or false, found {impossible!r:.40}")
                if impossible or "answers" in question:
                    answers = [] if impossible else question["answers"]
                    texts, starts = ([answer[key] for answer in answers] for key in ("text", "answer_start"))
                    values["answers"] = {"text": texts, "answer_start": starts}
                yield Row(where, values)
            except (KeyError, TypeError) as error:
                yield _not_squad(where, error)


def _not_squad(where: str, error: Exception) -> Row:
    problem = f"expected an object with {error}" if isinstance(error, KeyError) else str(error)
    return Row(where, InputError(f"{problem}, as in SQuAD: id, question and answers in qas, these in paragraphs"))


# Parquet


def parquet_rows(file: File) -> Iterator[Row]:
    """The rows of a file, with the names of classes that `datasets` has written into it.

    One that unfolds to more than the memory and `MOST_UNFOLDED` times its size is refused.
    """
    import pyarrow
    from datasets import Features
    from pyarrow.parquet import ParquetFile

    path = file.path
    try:
        with ParquetFile(path) as table:
            most = most_unfolded(path)
            if any(unfolded > most for unfolded in accumulate(_sizes(path, table.metadata, most))):
                raise InputError(
                    f"{path}: its {format_count(table.metadata.num_rows)} rows unfold to more than "
                    f"{format_bytes(most)}, from {format_bytes(path.stat().st_size)}: the memory of this machine and "
                    f"{MOST_UNFOLDED} times the file; take repeated rows out"
                )
            schema = table.schema_arrow
            check_once(path, schema.names)
            classes = class_names(
                Features.from_arrow_schema(schema) if b"huggingface" in (schema.metadata or {}) else {}
            )
            if classes:
                file.note(f"{path}: names of the classes of {', '.join(classes)} from the file itself")
            rows = chain.from_iterable(batch.to_pylist() for batch in table.iter_batches(batch_size=_BATCH))
            for number, values in enumerate(rows, start=1):
                yield named_row(values, classes, f"{path}, row {number}")
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)}); write it again") from None


def _sizes(path: Path, metadata: Any, most: int) -> Iterator[int]:
    """Bytes of the values, a batch at a time, without unfolding dictionaries; nothing where the metadata are enough."""
    import pyarrow
    import pyarrow.compute as compute
    from pyarrow.parquet import ParquetFile

    chunks = [
        metadata.row_group(g).column(c) for g in range(metadata.num_row_groups) for c in range(metadata.num_columns)
    ]
    numbers = sum(_NUMBER_BYTES * chunk.num_values for chunk in chunks)
    # Each value of a dictionary may be all of it.
    times = (chunk.num_values if chunk.has_dictionary_page else 1 for chunk in chunks)
    texts = sum(chunk.total_uncompressed_size * number for chunk, number in zip(chunks, times, strict=True))
    if numbers + texts <= most:
        return

    def dictionaries(values: Any) -> Iterator[Any]:
        """Those in an array, however deep they lie in lists and objects."""
        if isinstance(values, pyarrow.DictionaryArray):
            yield values
        elif isinstance(values, pyarrow.StructArray):
            yield from chain.from_iterable(map(dictionaries, values.flatten()))
        elif hasattr(values, "flatten"):
            yield from dictionaries(values.flatten())

    yield numbers
    columns = sorted({chunk.path_in_schema for chunk in chunks if chunk.physical_type == "BYTE_ARRAY"})
    with ParquetFile(path, read_dictionary=columns) as table:
        for batch in table.iter_batches(batch_size=_COUNTED, columns=columns):
            for values in dictionaries(batch.to_struct_array()):
                yield compute.sum(compute.binary_length(values.dictionary).take(values.indices)).as_py() or 0


def class_names(features: Mapping[str, Any]) -> dict[str, list[str]]:
    """The names of the classes of columns of class numbers, or of lists of them."""
    kinds = {name: getattr(kind, "feature", kind) for name, kind in features.items()}
    return {name: kind.names for name, kind in kinds.items() if hasattr(kind, "names")}


def named_row(values: dict[str, Any], classes: dict[str, list[str]], where: str) -> Row:
    """A row with the names of its classes in place of their numbers; -1 marks a missing one."""

    def named(number: Any, column: str) -> Any:
        names = classes[column]
        if isinstance(number, list):
            return [named(item, column) for item in number]
        if number is None or number < 0:
            return None
        if number >= len(names):
            raise bad_cell(column, number, f", the number of no class; there are {len(names)}, from 0 on")
        return names[number]

    try:
        return Row(where, {**values, **{column: named(values[column], column) for column in classes}}, "cells")
    except InputError as problem:
        return Row(where, problem)


# Words with tags


def conll_rows(file: File) -> Iterator[Row]:
    """A row for each sentence of a file of one token a line, or for each document where `-DOCSTART-` lines divide them.

    "tokens" are the words and "tags" the tags, as far as that can be told; other columns are called by their numbers
    from 1, or as CoNLL-U calls them. The place of a row is the line of its first token. The file is read several times,
    with no more than one row in memory.
    """
    with file.open() as stream:
        sample = [cells for _, cells in _sentences(islice(stream, _SAMPLE_LINES), by_document=False)]
    with file.open() as stream:
        by_document = any(line.startswith(_DOCUMENT) for line in stream)
    widths = Counter(len(cells) for lines in sample for cells in lines)
    width = max(2, widths.most_common(1)[0][0]) if widths else 2
    sample = [lines for lines in sample if all(len(cells) == width for cells in lines)]
    columns = [[cells[at] for lines in sample for cells in lines] for at in range(width)]
    counted = [counts_rows([cells[0] for cells in lines]) for lines in sample if len(lines) > 1]
    words = int(width > 2 and bool(counted) and all(counted))  # after a column that numbers them
    is_universal = words and width == len(_UNIVERSAL)
    names = _UNIVERSAL if is_universal else [str(number + 1) for number in range(width)]
    of_phrases = [{tag.partition("-")[2] for tag in column if tag != "O"} <= _CHUNKS for column in columns]
    entities = [at for at in range(words + 1, width) if _are_tags(columns[at]) and not of_phrases[at]]
    candidates = [_UNIVERSAL.index("UPOS")] if is_universal else entities or [*range(words + 1, width)]
    tags = candidates[0] if len(candidates) == 1 else None
    first = sample[0][0] if sample else []
    if known(first, _NAMES_OF_WORDS) and known(first, _NAMES_OF_TAGS):
        raise InputError(f"{file.path}: its first line names the columns ({' '.join(first)}); remove the line")
    if width == 2 and _are_tags(columns[words]):
        raise InputError(
            f"{file.path}: the first column holds tags; write the word first in each line, and then its tag"
        )
    if width > 2:
        which = "" if tags is None else f", tags from column {names[tags]}"
        file.note(
            f"{file.path}: {width} columns; words from column {names[words]}{which}; --label-column names another"
        )
    kept = {at: "tokens" if at == words else name for at, name in enumerate(names) if at >= words}
    with file.open() as stream:
        for numbers, lines in _sentences(stream, by_document):
            where = f"{file.path}, line {numbers[0]}"
            ragged = (at for at, cells in enumerate(lines) if len(cells) != width or not (cells[0] and cells[-1]))
            at = next(ragged, None)
            if at is not None:
                wrong = lines[at]
                expected = f"{width} columns" if len(wrong) > 1 and wrong[0] and wrong[-1] else "a token and its tag"
                problem = f"expected {expected}, found {' '.join(wrong).strip()!r:.60}"
                remedy = "put a space or a tab between the two, and a blank line between sentences"
                yield Row(f"{file.path}, line {numbers[at]}", InputError(f"{problem}; {remedy}"))
                continue
            values: dict[str, Any] = {name: [cells[at] for cells in lines] for at, name in kept.items()}
            if tags is not None:
                values["tags"] = values[names[tags]] if width > 2 else values.pop(names[tags])
            yield Row(where, values, encoding=file.encoding)


def _is_conll(lines: list[str]) -> bool:
    """Whether the lines of a text of unknown kind are words with tags of entities in columns."""
    cells = [cells for _, rows in _sentences(lines[:_SAMPLE_LINES], by_document=False) for cells in rows]
    return len(cells) > 1 and len({*map(len, cells)}) == 1 and any(map(_are_tags, [*zip(*cells, strict=True)][1:]))


def _sentences(lines: Iterable[str], by_document: bool) -> Iterator[tuple[list[int], list[list[str]]]]:
    """The numbers of the lines with the tokens of each sentence or document, and their cells."""
    numbers, rows, inside = list[int](), list[list[str]](), False
    for number, line in enumerate(chain(lines, [_DOCUMENT]), start=1):
        is_boundary = line.startswith(_DOCUMENT)
        if is_boundary or not line.strip():
            inside = False
            if rows and (is_boundary or not by_document):
                yield numbers, rows
                numbers, rows = [], []
            continue
        stripped = line.strip(" \t\r\n\v\f")  # between tabs a token may hold spaces
        cells = [cell.strip() for cell in stripped.split("\t")] if "\t" in stripped else _SPACES.split(stripped)
        if line.startswith("#") and not inside:  # a comment, unless it is the token "#" with its tag
            has_space = line.startswith("# ") or " " in cells[-1]
            may_be_token = _TAG.fullmatch(cells[-1]) or not (has_space or len(cells) > 2)
            is_left_out = len(cells) < 2 or " = " in line or not may_be_token
        else:  # CoNLL-U adds tokens to others
            is_left_out = len(cells) == len(_UNIVERSAL) and re.fullmatch(r"\d+[-.]\d+", cells[0]) is not None
        if not is_left_out:
            inside = True
            numbers.append(number)
            rows.append(cells)


def _are_tags(values: Iterable[str]) -> bool:
    values = {*values}
    return all(map(_TAG.fullmatch, values)) and bool(values - {"O"})


# Plain texts


def read_whole(stream: TextIO, name: str | Path, head: str = "", part: int = OF_DOCUMENT) -> str:
    """What is left of a stream, after the ``head`` that was read before.

    Raises:
        InputError: it is larger than that part of the machine's memory.
    """
    most = memory_bytes() // part
    text = head + stream.read(max(0, most + 1 - len(head)))
    if len(text) > most:
        raise _too_large(name, most, part)
    return text


def _too_large(name: str | Path, most: int, part: int) -> InputError:
    return InputError(
        f"{name}: holds more than {format_bytes(most)}, 1/{part} of this machine's memory, as one text; split it, or "
        "write JSON lines with a document on each"
    )


def text_rows(file: File, *, whole: bool, alone: bool) -> Iterator[Row]:
    """A file as one row; or as many: its lines if it is ``alone`` and has no paragraphs, else pieces of paragraphs.

    Pieces have a million characters; a fiftieth of a file alone, if that is less. No size of file is too large.
    """
    path, by_lines, most = file.path, False, _PIECE

    def row(text: str) -> Row:
        return Row(str(path), {"text": text}, "text", encoding=file.encoding)

    with file.open() as stream:
        if whole:
            yield row(read_whole(stream, path))
            return
        if alone:
            lines = stream.read(_PIECE).splitlines()
            if len(lines) > 1 and all(map(is_object, lines[:_LEAST_LINES])):
                packed = path.suffix if path.suffix.lower() in COMPRESSED_SUFFIXES else ""
                name = f"{file_stem(path)}.jsonl{packed}"
                raise InputError(f"{path}: its lines are JSON objects: call it {name} to have them read")
            by_lines = len(lines) >= _LEAST_LINES and all(line.strip() for line in lines)
            most = max(_SHORTEST_PIECE, min(_PIECE, path.stat().st_size // _PIECES))
            piece = f"each piece of about {most:,} characters, cut between paragraphs or lines,"
            what = "each line" if by_lines else piece
            file.note(f"{path}: {what} is a document; for others give a folder of files, or JSON lines")
    with file.open() as stream:
        lines, length = [], 0
        for line in iter(partial(stream.readline, _PIECE), ""):
            lines.append(line)
            length += len(line)
            is_end = length >= most and (not line.strip() or length >= _OVERLONG * most or most == _PIECE)
            if by_lines or is_end:
                yield row("".join(lines))
                lines, length = [], 0
        if lines:
            yield row("".join(lines))


READERS: dict[str, Reader] = {
    ".csv": table_rows,
    ".tsv": table_rows,
    ".parquet": parquet_rows,
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), json_rows),
    **dict.fromkeys(CONLL_SUFFIXES, conll_rows),
}
