"""What a document of each task holds, which columns of the user's table it comes from, and how a row is read."""

import ast
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from datasets import Sequence as ListOf
from datasets import Value

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.formats import open_file
from torch_linformer.data.reading.readers import read_whole
from torch_linformer.data.reading.rows import (
    LABEL_COLUMNS,
    TEXT_COLUMNS,
    Row,
    bad_cell,
    cell,
    check_decoded,
    counts_rows,
    is_missing,
    is_number,
    known,
    listed,
    needed,
    no_value,
    read_label,
    read_text,
    several,
    without_fraction,
)
from torch_linformer.errors import InputError

SOURCE_COLUMNS = ("source", "input", "document", "article", "text", "report", "dialogue", "question", "content", "body")
TARGET_COLUMNS = ("target", "output", "summary", "highlights", "abstract", "translation", "answer", "response")
DOCUMENT_COLUMNS = ("document", "passage", "positive", "context", *TEXT_COLUMNS[:2], *TEXT_COLUMNS[3:])
QUERY_COLUMNS = ("query", "queries", "question", "anchor")
ID_COLUMNS = ("document_id", "doc_id", "corpus_id", "corpus-id", "document", "_id", "id")
NAME_COLUMNS = ("id", "_id", "doc_id", "document_id")  # of a name that predictions and vectors keep unasked
_NAMES = re.compile(r"(.*[-_ ])?(id|ids|qid|pid|uid|docid)", re.IGNORECASE)  # columns of names, which are no texts
_SENTENCE = re.compile(r"sent(ence)?[ _-]*(#|id|idx|no|nr|num(ber)?)?", re.IGNORECASE)
_TEXT_FILE = re.compile(r".{1,255}\.txt\s*", re.IGNORECASE)
_SEPARATORS = re.compile(r"\s*[,;|]\s*")  # between the labels of one cell
_IN_BRACKETS = re.compile(r"\s*(\[.*\]|\(.*\)|\{.*\}|set\(\))\s*", re.DOTALL)
_BARE_LIST = re.compile(r"\s*(\[[^\[\]]*,[^\[\]]*\]|\{[^{}]*,[^{}]*\})\s*")
_NUMBER = r"(\d+\.?|True|False)"
_NUMBERS = re.compile(rf"\s*\[\s*{_NUMBER}(\s+{_NUMBER})*\s*\]\s*")  # as NumPy prints them
_SIDE_BY_SIDE = re.compile(r"""(['"])\s+(['"])""")  # strings, as NumPy prints them
NULL = ""  # in the place of a list of labels: nobody knows them
_TRUE, _FALSE, _NULLS = ("1", "1.0", "true", "yes"), ("0", "0.0", "false", "no"), ("none", "null")
_READ = ("text", "label", "question")  # what is read of columns
_TEXTS, _PLACES = ListOf(Value("string")), ListOf(Value("int64"))


class ChosenColumns(NamedTuple):
    """The columns of the texts, the labels, the questions, names, groups and sentences (None: not read).

    ``reason`` says in words why they were chosen; ``folder`` has the texts where their column names files, which are
    written as ``options`` says. Where the rows of a table are words, ``sentence`` tells to which one each belongs.
    """

    text: str
    label: str | None = None
    question: str | None = None
    reason: str = ""
    id: str | None = None
    group: str | None = None
    folder: Path | None = None
    sentence: str | None = None
    options: DataOptions = NO_OPTIONS

    def read_text(self, row: Row, called: str = "text") -> str:
        """The text of a row; "" where the cell is missing or holds only white space."""
        text = read_text(row, self.text, called)
        if self.folder is None or not text:
            return text
        if not names_file(self.folder, text):
            raise InputError(f"no file {text!r} in {self.folder}; --text-folder names another folder")
        file = open_file(self.folder / text, self.options, lambda note: None)
        with file.open() as stream:
            return check_decoded(read_whole(stream, file.path), file.encoding)

    def id_of(self, row: Row) -> str | None:
        """The name of a row, if there is a column of them."""
        name = cell(row, self.id)
        return None if self.id is None else "" if name is None or name != name else without_fraction(name)

    def group_of(self, row: Row) -> str:
        """What a row has in common with others, as text without outer white space.

        As one group, rows without any would stay together though they have nothing in common.
        """
        return without_fraction(needed(row, self.group, "group")).strip()

    @property
    def used(self) -> dict[str, str]:
        """The columns by what they hold, as a run keeps them."""
        columns = {"text": self.text, "label": self.label, "question": self.question}
        return {what: column for what, column in columns.items() if column is not None}


class UsualNames(NamedTuple):
    """What the columns are called in most files, in lower case; without a name for questions there are none.

    ``called`` are the words for a text and a label, in messages and in the options that name their columns.
    """

    text: tuple[str, ...] = TEXT_COLUMNS
    label: tuple[str, ...] = LABEL_COLUMNS
    question: tuple[str, ...] = ()
    called: tuple[str, str] = ("text", "label")


USUAL = UsualNames()


@dataclass(frozen=True)
class Record:
    """The columns of a task's documents beside "text": which of the user's they come from, and how they are read.

    Attributes:
        features: name and type of each column beside "text".
        read: the record of a row; one whose "text" is empty is skipped.
        usual: what the user's columns are usually called.
        several_labels: whether ``--label-column`` may name several columns, each a label.
        of_words: whether a text is a list of words, each with a tag.
    """

    features: dict[str, Any]
    read: Callable[[Row, ChosenColumns], dict[str, Any]]
    usual: UsualNames = USUAL
    several_labels: bool = False
    of_words: bool = False


def find_columns(
    rows: Sequence[Row], source: str, options: DataOptions, record: Record, *, needs_label: bool
) -> ChosenColumns:
    """Choose the columns from the first rows of a source.

    A column that is named is taken, or the one that the model was trained with. Otherwise the one whose name is usual,
    whatever its case; otherwise the only candidate: for the texts the only column of strings that are not all numbers
    and that is not called an id (of several, the one most of whose values differ), for the labels the only other one
    that does not count the rows. Without `needs_label`, labels are read only if their column is named.

    Raises:
        InputError: a column that is named is missing, or it cannot be told which one to read.
    """
    columns = {name: [row.values.get(name) for row in rows] for row in rows for name in row.values}
    names, is_table, chosen = list(columns), any(row.kind != "text" for row in rows), dict[str, tuple[str, str]]()
    trained = dict(options.trained) if is_table else {}
    usual, (one, two) = record.usual, record.usual.called
    for other in ("text", "label", "source", "target", "query", "document"):
        if other not in usual.called and options.column(other) is not None:
            raise InputError(f"--{other}-column is for another task; this one reads a {one} column and a {two} column")
    called_by = {"text": one, "label": two, "question": "question", "id": "id", "group": "group"}
    for what, called in called_by.items():
        named = options.column(called)
        is_read = {"label": needs_label, "question": bool(usual.question)}.get(what, True)
        column = trained.get(what) if named is None and is_read else named
        if column is None:
            continue
        are_several = record.several_labels and what == "label" and column not in names
        for name in column.split(",") if are_several else [column]:
            if name not in names and named is not None:
                raise InputError(
                    f"{source}: no column {name!r}, which --{called}-column names; columns: {listed(names)}"
                )
            if name not in names:
                header = "; --no-header, if the first row is one like the others" if column.isdecimal() else ""
                raise InputError(
                    f"{source}: no column {column!r}, which the model was trained with; name the {called} column with "
                    f"--{called}-column; columns: {listed(names)}{header}"
                )
        chosen[what] = column, "as the model was trained" if named is None else "as asked"

    def choose(what: str, by_name: Sequence[str], candidates: Sequence[str]) -> None:
        used, called, fitting = [chosen[each][0] for each in chosen if each in _READ], called_by[what], list[str]()
        for choices, why in ((by_name, "by its name"), (candidates, "the only candidate")):
            fitting = fitting or [name for name in choices if name not in used]
            if len(fitting) == 1:
                chosen[what] = fitting[0], why
                return
        problem = f"{listed(fitting)} could each be the {called} column" if fitting else f"no {called} column found"
        raise InputError(f"{source}: {problem}; name it with --{called}-column; columns: {listed(names)}")

    if usual.question and "question" not in chosen:
        choose("question", known(names, usual.question), [])
    if "text" not in chosen:
        texts, labels = known(names, usual.text), known(names, usual.label)
        strings = [name for name in names if name not in labels and not _NAMES.fullmatch(name.strip())]
        strings = [name for name in strings if _are_texts(columns[name])]
        differ = [name for name in strings if needs_label and 2 * len({*map(str, columns[name])}) > len(rows)]
        texts = [name for name in texts if not all(map(is_number, columns[name]))] or texts
        choose("text", texts, differ if len(strings) > 1 and differ else strings)
    if needs_label and "label" not in chosen:
        own = [] if "id" in usual.label else known(names, NAME_COLUMNS[:2])
        others = [name for name in names if name not in own and not (len(rows) > 2 and counts_rows(columns[name]))]
        choose("label", known(names, usual.label), others)
    text, label, question = (chosen.get(what, (None, ""))[0] for what in _READ)
    assert text is not None
    if text == label:
        raise InputError(f"{source}: column {text!r} cannot be both {one} and {two}; columns: {listed(names)}")
    reason = ", ".join(
        f"{several(called_by[what])} from column {chosen[what][0]!r} ({chosen[what][1]})"
        for what in _READ
        if what in chosen
    )
    folder = _text_folder(columns[text], text, source, options, is_table)
    reason += f"; the texts are the files of that name in {folder}" if folder else ""
    unasked = [name for name in known(names, NAME_COLUMNS) if name not in (text, label, question)]
    identity, group = chosen.get("id", (unasked[0] if unasked else None, ""))[0], chosen.get("group", (None, ""))[0]
    sentence = _sentence_column(columns, text, label, source) if record.of_words and is_table else None
    return ChosenColumns(text, label, question, reason, identity, group, folder, sentence, options)


def _are_texts(values: Iterable[Any]) -> bool:
    filled = [value for value in values if value is not None]
    return all(isinstance(value, str) for value in filled) and not all(map(is_number, filled))


def _text_folder(cells: list[Any], text: str, source: str, options: DataOptions, is_table: bool) -> Path | None:
    """The folder of the files that a column names, if it names files."""
    if options.text_folder is not None:
        if not Path(options.text_folder).is_dir():
            raise InputError(f"--text-folder {options.text_folder}: no such folder")
        return Path(options.text_folder)
    path = Path(source)
    if not is_table or not path.exists():
        return None
    folder = path if path.is_dir() else path.parent
    if len(cells) <= 2 * sum(names_file(folder, cell) for cell in cells):  # a few that are missing are bad rows
        return folder
    if all(isinstance(cell, str) and _TEXT_FILE.fullmatch(cell) for cell in cells):
        raise InputError(
            f"{source}: column {text!r} holds names of files, such as {cells[0]!r:.60}, and {folder} holds no such "
            "files; --text-folder names the folder that does"
        )
    return None


def names_file(folder: Path, name: object) -> bool:
    """Whether a cell names a file in a folder; a table may not reach what lies outside."""
    if not isinstance(name, str) or not 0 < len(name) <= 255 or "\0" in name:
        return False
    # Not `Path.is_file`, to which a name that is too long is an error.
    return os.path.isfile(folder / name) and (folder / name).resolve().is_relative_to(folder.resolve())


def _sentence_column(columns: dict[str, list[Any]], text: str, label: str | None, source: str) -> str | None:
    """The column that tells the sentence of each row, where the rows of a table are words; None where they are not."""
    words = columns[text]
    if len(words) < 2 or not all(isinstance(word, str) and len(word.split()) < 2 for word in words):
        return None
    fitting = [name for name in columns if _SENTENCE.fullmatch(name.strip()) and name not in (text, label)]
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        f"{source}: one word a row; call the column that numbers the sentences 'sentence', or write one sentence a row "
        f"or CoNLL; columns: {listed(columns)}"
    )


def joined_sentences(rows: Iterable[Row], columns: ChosenColumns) -> Iterator[Row]:
    """A row for each sentence, with the lists of its words and tags; an empty cell goes on with the sentence.

    Other columns have the values of its first word. Rows that are no single words stay as they are.
    """
    if columns.sentence is None:
        yield from rows
        return
    number, sentence = None, None
    for row in rows:
        if isinstance(row.values, InputError):
            yield row
            continue
        value = cell(row, columns.sentence)
        if sentence is None or not (is_missing(value) or value == number):
            if sentence is not None:
                yield sentence
            number = value
            sentence = row._replace(values={**row.values, **{name: [] for name in columns[:2] if name is not None}})
        for name in columns[:2]:
            if name is not None:
                sentence.values[name].append(row.values.get(name))
    if sentence is not None:
        yield sentence


# The records of the tasks


def _text(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    return {"text": columns.read_text(row)}


def _labeled(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = columns.read_text(row)
    label = read_label(row, columns.label) if text else ""
    if isinstance(_parsed(label), list):
        raise bad_cell(columns.label, label, ", a list; --task multilabel learns lists of labels")
    return {"text": text, "label": label}


def _scored(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text = columns.read_text(row)
    return {"text": text, "label": _number(row, columns.label) if text else 0.0}


def _several(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text, label = columns.read_text(row), columns.label or ""
    if label in row.values or "," not in label:
        value = cell(row, label)
        written = value.strip() if isinstance(value, str) else NULL  # an empty cell has no labels
        unknown = [written] if is_missing(value) and (written or not isinstance(value, str)) else []
        return {"text": text, "label": _labels(value, label), "unknown": unknown}
    held = {name: _holds(row, name) for name in label.split(",")}
    labels, unknown = ([name for name, holds in held.items() if holds is answer] for answer in (True, None))
    return {"text": text, "label": labels, "unknown": unknown}


def _tagged(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    words, tags = read_words(row, columns.text), read_words(row, columns.label)
    if len(words) != len(tags):
        raise InputError(f"{len(words)} words and {len(tags)} tags; give each word one tag")
    return {**join_words(words), "label": tags}


def _asked(row: Row, columns: ChosenColumns) -> dict[str, Any]:
    text, question = columns.read_text(row), read_text(row, columns.question or "")
    if text and not question:
        raise no_value(columns.question, "question")
    answers = _answers(row, columns.label, text) if columns.label else {"answers": [], "starts": []}
    return {"text": text, "question": question, "name": str(cell(row, "id") or row.where), **answers}


def _two_texts(one: str, other: str) -> Callable[[Row, ChosenColumns], dict[str, Any]]:
    """How a text and another that belongs to it are read; what they are called is said in errors."""

    def read(row: Row, columns: ChosenColumns) -> dict[str, Any]:
        text, second = columns.read_text(row, one), read_text(row, columns.label or "", other)
        if text and not second:
            raise no_value(columns.label, other)
        return {"text": text, other: second}

    return read


def _with_name(called: str) -> Callable[[Row, ChosenColumns], dict[str, Any]]:
    """How a text and the name of a document are read."""

    def read(row: Row, columns: ChosenColumns) -> dict[str, Any]:
        text = columns.read_text(row, called)
        return {"text": text, "id": read_label(row, columns.label) if text else ""}

    return read


TEXT = Record({}, _text)
QUERIES = Record({}, _text, UsualNames((*QUERY_COLUMNS, *TEXT_COLUMNS)))
LABELED = Record({"label": Value("string")}, _labeled)
SCORED = Record({"label": Value("float64")}, _scored, UsualNames(label=("label", "score", "target", "value", "rating")))
SEVERAL = Record({"label": _TEXTS, "unknown": _TEXTS}, _several, several_labels=True)
TAGGED = Record(
    {"word_starts": _PLACES, "word_ends": _PLACES, "label": _TEXTS},
    _tagged,
    UsualNames(
        ("tokens", "words", "token", "word", *TEXT_COLUMNS),
        ("tags", "ner_tags", "pos_tags", "tag", "ner", *LABEL_COLUMNS),
    ),
    of_words=True,
)
ASKED = Record(
    {"question": Value("string"), "name": Value("string"), "answers": _TEXTS, "starts": _PLACES},
    _asked,
    UsualNames(("context", "passage", *TEXT_COLUMNS), ("answers", "answer"), ("question", "query")),
)
PAIRED = Record(
    {"target": Value("string")},
    _two_texts("source", "target"),
    UsualNames(SOURCE_COLUMNS, TARGET_COLUMNS, called=("source", "target")),
)
SEARCHED = Record(
    {"query": Value("string")},
    _two_texts("document", "query"),
    UsualNames(DOCUMENT_COLUMNS, QUERY_COLUMNS, called=("document", "query")),
)
# Of a collection in two tables: the queries with the names of their documents, and the documents with theirs.
JUDGED = Record(
    {"id": Value("string")},
    _with_name("query"),
    # "id" and "_id" are names of the queries themselves (BEIR), which may be those of other documents.
    UsualNames((*QUERY_COLUMNS, "text"), ID_COLUMNS[:-2], called=("query", "document")),
)
NAMED = Record(
    {"id": Value("string")},
    _with_name("text"),
    UsualNames(DOCUMENT_COLUMNS[1:], ID_COLUMNS, called=("text", "document")),
)


# Cells


def join_words(words: Iterable[str]) -> dict[str, Any]:
    """Words as one text with a space between them, and where in it each begins and ends, in characters."""
    starts, ends, place = [], [], 0
    words = list(words)
    for word in words:
        starts.append(place)
        ends.append(place + len(word))
        place = ends[-1] + 1
    return {"text": " ".join(words), "word_starts": starts, "word_ends": ends}


def _number(row: Row, column: str | None) -> float:
    value = needed(row, column, "label")
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = math.nan
    if not math.isfinite(number):
        raise bad_cell(column, value, ", no number; --task regress learns numbers")
    return number


def _labels(written: Any, column: str) -> list[str]:
    """A list as it is, or as a cell spells it; other text cut at commas, semicolons, bars; nothing has no label."""
    if is_missing(written):
        return []
    value = _parsed(written) if isinstance(written, str) else written
    if isinstance(value, str):
        if _BARE_LIST.fullmatch(value):  # as YAML, Java or Postgres write it
            raise bad_cell(column, value, '; write all lists of the column as JSON, ["a", "b"], or as a, b')
        value = _SEPARATORS.split(value)
    items = value if isinstance(value, list) else [value] if isinstance(value, int) else [None]
    if any(isinstance(item, bool) for item in items) and (len(items) < 2 or any(item not in (0, 1) for item in items)):
        raise bad_cell(column, written, "; a list of truth values has one for each label, two at least")
    items = [int(item) if isinstance(item, bool | float) and item in (0, 1) else item for item in items]
    if not all(isinstance(item, str | int) for item in items):
        raise bad_cell(column, value, ", no labels; expected a list of them")
    labels = [str(item).strip() for item in items]
    # A list of zeros and ones keeps its order: each may stand for the label at its position.
    return labels if {"0", "1"}.issuperset(labels) else sorted({*labels} - {""})


def _parsed(cell: str) -> Any:
    """What a cell in brackets spells in JSON, in Python, or as NumPy prints it; other text as it is."""
    if not _IN_BRACKETS.fullmatch(cell):
        return cell
    if _NUMBERS.fullmatch(cell):
        numbers = cell.strip(" []\n").split()
        return [number == "True" if number.isalpha() else int(number.strip(".")) for number in numbers]
    spelled = _SIDE_BY_SIDE.sub(r"\1, \2", cell).strip()  # which to Python would be one string
    for parse in (json.loads, ast.literal_eval):
        try:
            value = parse(spelled)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        return list(value) if isinstance(value, tuple | set) else value
    return [] if spelled == "set()" else cell


def _holds(row: Row, column: str) -> bool | None:
    """Whether a row has the label that a column of 0 and 1 is named after; None where that is unknown."""
    value = cell(row, column)
    word = str(value).strip().lower()
    if is_missing(value) or word in _NULLS:
        return None
    if word not in _TRUE + _FALSE:
        raise bad_cell(column, value, "; a column for one label holds 0 or 1, or nothing where it is unknown")
    return word in _TRUE


def read_words(row: Row, column: str | None) -> list[str]:
    """The words, or tags, in a list, as a cell spells one, or with white space between them."""
    value = cell(row, column)
    if isinstance(value, str):
        spelled = spelled_words(value)
        value = value.split() if spelled is None else spelled
    if not isinstance(value, list) or not all(isinstance(item, str | int) and item != "" for item in value):
        raise bad_cell(column, value, ", no list of words or tags")
    words = [str(item) for item in value]
    check_decoded(" ".join(words), row.encoding)
    return words


def spelled_words(cell: str) -> list[Any] | None:
    """The words that a cell spells as a list; None where it spells none, or one number in brackets, which is a word."""
    spelled = _parsed(cell)
    is_list = isinstance(spelled, list) and (len(spelled) > 1 or all(isinstance(word, str) for word in spelled))
    return spelled if is_list else None


def _answers(row: Row, column: str, text: str) -> dict[str, Any]:
    """Answers and where each begins: as SQuAD has them, or one answer as text, found in the context."""
    value = cell(row, column)
    if isinstance(value, str) and value.lstrip().startswith("{"):  # a cell of CSV, in JSON or as Python prints it
        value = _parsed(value)
        if isinstance(value, str):
            raise bad_cell(column, value, ", which is not valid JSON")
    if isinstance(value, str):
        texts = [value] if value.strip() else []
        told = None if cell(row, "answer_start") in (None, "") else int(_number(row, "answer_start"))
        value = {"text": texts, "answer_start": [text.find(each) if told is None else told for each in texts]}
    squad: dict[str, Any] = value if isinstance(value, dict) else {}
    answers: Any = squad.get("text")
    starts: Any = squad.get("answer_start")
    are_lists = isinstance(answers, list) and isinstance(starts, list) and len(answers) == len(starts)
    if not are_lists or not all(type(a) is str and type(s) is int for a, s in zip(answers, starts, strict=True)):
        raise bad_cell(column, value, "; expected an answer, or text and answer_start as in SQuAD")
    for answer, start in zip(answers, starts, strict=True):
        if not answer.strip():
            raise InputError("an answer is empty; where there is none, leave the list of answers empty")
        if text and (start < 0 or text[start : start + len(answer)] != answer):
            where = f" at character {start} of" if start >= 0 else " in"
            raise InputError(f"the answer {answer!r:.40} does not stand{where} the text")
    return {"answers": answers, "starts": starts}
