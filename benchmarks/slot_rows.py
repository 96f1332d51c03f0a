"""The rows of `slot_tasks.py`: lookup, needle and ListOps, drawn as they are needed, so none repeats; and texts."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

Rows = dict[str, np.ndarray]  # what a model is called with
NOT_ASKED = -100  # the label of a token that is not to be named

KEYS, VALUES, ASKED, TOKENS_A_RECORD = 64, 8, 32, 64
FILLER, QUESTION, FIRST_VALUE = 0, 1, 2  # types of tokens

FIRST, NEEDLES = 0, 16  # the token that answers, and the number of words

PAD, FIRST_DIGIT, FIRST_OPERATOR, CLOSE = 0, 1, 11, 15
OPERATORS = {
    "MAX": max,
    "MIN": min,
    "MED": lambda values: int(np.median(values)),
    "SM": lambda values: sum(values) % 10,
}
MOST_FREQUENT = {"MAX": 9, "MIN": 0, "MED": 4, "SM": 0}  # values of long expressions; all of SM's are as frequent
ARGUMENTS, DEPTH = 10, 10  # at most
SHORTEST_EXPRESSION = 4  # tokens: operator, two digits, the bracket


def lookup(draws: np.random.Generator, rows: int, length: int, *, gap: int) -> Rows:
    """The last tokens of a row are keys: what are their values? Before them stand records among fillers, then a gap.

    A record is one token, the key, whose type is the value.
    """
    records = max(2, min(KEYS, length // TOKENS_A_RECORD))
    keys = 1 + shuffled(draws, rows, KEYS)[:, :records]
    values = draws.integers(VALUES, size=(rows, records))
    places = shuffled(draws, rows, length - ASKED - gap)[:, :records]
    words, types = np.zeros((rows, length), dtype=np.int64), np.full((rows, length), FILLER)
    np.put_along_axis(words, places, keys, axis=1)
    np.put_along_axis(types, places, FIRST_VALUE + values, axis=1)
    asked, labels = draws.integers(records, size=(rows, ASKED)), np.full((rows, length), NOT_ASKED)
    words[:, -ASKED:] = np.take_along_axis(keys, asked, axis=1)
    types[:, -ASKED:] = QUESTION
    labels[:, -ASKED:] = np.take_along_axis(values, asked, axis=1)
    return {"input_ids": words, "token_type_ids": types, "labels": labels}


def most_frequent_value(rows: Rows) -> np.ndarray:
    """A guess for each row: the value that most of its records have."""
    counts = [np.bincount(types, minlength=FIRST_VALUE + VALUES)[FIRST_VALUE:] for types in rows["token_type_ids"]]
    return np.argmax(counts, axis=1)[:, None]


def needle(draws: np.random.Generator, rows: int, length: int, *, gap: int) -> Rows:
    """Which word is marked? One token, farther than the gap from the first, which answers; its type is the mark."""
    words = 1 + draws.integers(NEEDLES, size=(rows, length))
    words[:, 0] = FIRST
    places = draws.integers(1 + gap, length, size=(rows, 1))
    marks = np.zeros((rows, length), dtype=np.int64)
    np.put_along_axis(marks, places, 1, axis=1)
    labels = np.take_along_axis(words, places, axis=1)[:, 0] - 1
    return {"input_ids": words, "token_type_ids": marks, "labels": labels}


def listops(draws: np.random.Generator, rows: int, length: int, *, shortest: int, depth: int = DEPTH) -> Rows:
    """Nested expressions such as [MAX 2 [SM 5 9 ] 0 ] of about ``shortest`` to ``length`` tokens, and their values.

    Source: the task is that of Nangia and Bowman, arXiv 1804.06028, in the lengths of Long Range Arena, 2011.04006;
    there the number of arguments and their nesting are drawn, and what has the wrong length is thrown away.
    """
    rooms = draws.integers(max(shortest, SHORTEST_EXPRESSION), length + 1, size=rows)
    expressions, values = zip(*(expression(draws, room, depth) for room in rooms), strict=True)
    return padded(expressions) | {"labels": np.array(values)}


def expression(draws: np.random.Generator, room: int, depth: int) -> tuple[list[int], int]:
    """Tokens and value of an expression of ``room`` tokens or some fewer; a digit where there is no room or depth."""
    if room < SHORTEST_EXPRESSION or depth == 0:
        digit = int(draws.integers(10))
        return [FIRST_DIGIT + digit], digit
    operator = int(draws.integers(len(OPERATORS)))
    number = int(draws.integers(2, min(ARGUMENTS, room - 2) + 1))
    cuts = np.sort(draws.integers(room - 2 - number + 1, size=number - 1))
    rooms = 1 + np.diff(cuts, prepend=0, append=room - 2 - number)
    arguments, spare = [], 0  # what one argument leaves is the next one's
    for each in rooms:
        arguments.append(expression(draws, int(each) + spare, depth - 1))
        spare += int(each) - len(arguments[-1][0])
    tokens = [FIRST_OPERATOR + operator, *(token for part, _ in arguments for token in part), CLOSE]
    return tokens, list(OPERATORS.values())[operator]([value for _, value in arguments])


def by_outer_operator(rows: Rows) -> np.ndarray:
    """A guess for each row, which reads its first token only: the most frequent value of that operator."""
    values = np.array([MOST_FREQUENT[name] for name in OPERATORS])
    return values[rows["input_ids"][:, 0] - FIRST_OPERATOR]


@dataclass(frozen=True)
class Texts:
    """Texts as bytes, each a word of its own after padding, with their labels."""

    texts: list[bytes]
    labels: np.ndarray

    @classmethod
    def read(cls, file: Path) -> "Texts":
        """The columns ``text`` and ``label`` of a CSV or Parquet file, which has every label at least once."""
        table = pd.read_csv(file) if file.suffix == ".csv" else pd.read_parquet(file)
        _, labels = np.unique(table["label"].to_numpy(), return_inverse=True)
        return cls([text.encode() for text in table["text"]], labels)

    def draw(self, draws: np.random.Generator, rows: int, length: int) -> Rows:
        """The first bytes of different texts."""
        chosen = draws.choice(len(self.texts), rows, replace=False)
        texts = [[1 + byte for byte in self.texts[row][:length]] for row in chosen]
        return padded(texts) | {"labels": self.labels[chosen]}


def padded(rows: "list[list[int]] | tuple[list[int], ...]") -> Rows:
    """Tokens and mask of rows that are as long as the longest."""
    tokens = np.full((len(rows), max(map(len, rows))), PAD)
    for row, own in zip(tokens, rows, strict=True):
        row[: len(own)] = own
    return {"input_ids": tokens, "attention_mask": (tokens != PAD).astype(np.int64)}


def shuffled(draws: np.random.Generator, rows: int, size: int) -> np.ndarray:
    """``(rows, size)``: the numbers from 0, in a different order in each row."""
    return draws.permuted(np.tile(np.arange(size), (rows, 1)), axis=1)
