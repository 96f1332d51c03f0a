"""Tables with one word a row, as some corpora of tagged words come: the rows of a sentence made one."""

import re
from collections.abc import Iterable, Iterator, Sequence

from torch_linformer.data.reading.cells import is_missing
from torch_linformer.data.reading.columns import ChosenColumns, listed
from torch_linformer.data.reading.rows import Row
from torch_linformer.errors import InputError

_SENTENCE = re.compile(r"sent(ence)?[ _-]*(#|id|idx|no|nr|num(ber)?)?", re.IGNORECASE)


def sentence_column(rows: Sequence[Row], columns: ChosenColumns, source: str) -> str | None:
    """The column that tells the sentence of each row, where the rows of a table are words; None where they are not.

    Raises:
        InputError: there is no such column.
    """
    words = [row.values.get(columns.text) for row in rows]
    if len(rows) < 2 or not all(isinstance(word, str) and len(word.split()) < 2 for word in words):
        return None
    names = list(rows[0].values)
    fitting = [name for name in names if _SENTENCE.fullmatch(name.strip()) and name not in columns[:2]]
    if len(fitting) == 1:
        return fitting[0]
    raise InputError(
        f"{source}: one word a row; call the column that numbers the sentences 'sentence', or write one sentence a row "
        f"or CoNLL; columns: {listed(names)}"
    )


def joined_sentences(rows: Iterable[Row], columns: ChosenColumns, sentence: str) -> Iterator[Row]:
    """A row for each sentence, with the lists of its words and tags; an empty cell goes on with the sentence.

    Other columns have the values of its first word.
    """
    taken = [column for column in (columns.text, columns.label) if column is not None]
    number: object = None
    lists: dict[str, list[object]] = {}
    first: Row | None = None
    for row in rows:
        value = row.cell(sentence)
        if first is None or not (is_missing(value) or value == number):
            if first is not None:
                yield first._replace(values={**first.values, **lists})
            number, lists, first = value, {column: [] for column in taken}, row
        for column in taken:
            lists[column].append(row.cell(column))
    if first is not None:
        yield first._replace(values={**first.values, **lists})
