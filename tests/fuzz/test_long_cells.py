"""Tables of long documents, as `csv` and pandas write them: read as Python's `csv` reads them."""

import csv
import os
import random
from typing import NamedTuple

from fuzz_strategies import FUZZ
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from torch_linformer.data.reading.data_options import NO_OPTIONS
from torch_linformer.data.reading.sources import read_rows

# Files of up to 20 MB, which take long to shrink: `make test` reads 12, and `make fuzz` one for 20 cases of the others.
FILES = settings(
    FUZZ, max_examples=max(12, int(os.environ.get("CASES", "0")) // 20), phases=[Phase.explicit, Phase.generate]
)
COLUMNS = {  # of a text, or of a label, or of a number
    "text": "t",
    "text,label": "tl",
    "label,text": "lt",
    "id,text,label": "ntl",
    "paper,score": "tn",
    "text,title,label": "tsl",
}
WORDS = ("so", "far", "and", "on", "reports", "of", "it", "2019", "3.5", "naïve")
MARKS = {
    "neither": ("", ".", " -"),
    "commas": (",", ", ", ";", "\t", " | ", "", ""),
    "quotes": ('"', ' "so"', '"so" ', "'", '""', "", ""),
    "both": (",", '"', '","', '", "', '"\t"', '";', ' "so, far" ', "\\", '\\"', "", "", ""),
}


class Table(NamedTuple):
    """How a file is written, and what its documents hold; all lines of a "table" but the last would each be a row."""

    delimiter: str
    suffix: str
    header: bool
    columns: str
    inside: str
    documents: int
    lines: int
    quoting: int
    end: str
    seed: int

    def write(self, path):
        draws = random.Random(self.seed)
        cells = {
            "t": lambda number: self.text(draws),
            "l": lambda number: draws.choice(["good", "bad"]),
            "n": lambda number: str(number),
            "s": lambda number: f"part {number}, so far",
        }
        with path.open("w", encoding="utf-8", newline="") as file:
            table = csv.writer(file, delimiter=self.delimiter, quoting=self.quoting, lineterminator=self.end)
            if self.header:
                table.writerow(self.columns.split(","))
            for number in range(self.documents):
                table.writerow([cells[kind](number) for kind in COLUMNS[self.columns]])

    def text(self, draws):
        lines = draws.randint(50, self.lines)
        if self.inside == "table":
            within = self.delimiter.join(["so far"] * len(COLUMNS[self.columns]))
            return "\n".join([*[within] * (lines - 1), "so far"])
        marks = MARKS[self.inside]
        few = [" ".join(draws.choices(WORDS, k=draws.randint(0, 6))) + draws.choice(marks) for _ in range(50)]
        return "\n".join(["so it begins", *draws.choices(few, k=lines - 1)])


TABLES = st.builds(
    lambda form, *others: Table(*form, *others),
    st.sampled_from([(",", ".csv"), ("\t", ".tsv"), (";", ".csv"), ("\t", ".csv")]),
    st.booleans(),
    st.sampled_from(list(COLUMNS)),
    st.sampled_from([*MARKS, "table"]),
    st.integers(60, 300),
    st.integers(50, 2000),
    st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL, csv.QUOTE_NONNUMERIC]),
    st.sampled_from(["\n", "\r\n"]),
    st.integers(0, 2**32),
)


@FILES
@given(table=TABLES, whole=st.booleans())
def test_long_cells_are_read_as_csv_reads_them(tmp_path_factory, table, whole):
    path = tmp_path_factory.mktemp("tables") / f"table{table.suffix}"
    table.write(path)
    csv.field_size_limit(2**31 - 1)
    with path.open(encoding="utf-8", newline="") as file:
        records = list(csv.reader(file, delimiter=table.delimiter))
    names = records.pop(0) if table.header else [str(number + 1) for number in range(len(records[0]))]
    rows = read_rows([path], NO_OPTIONS, lambda note: None, whole=whole)
    for record, row in zip(records, rows, strict=True):
        assert row.values == dict(zip(names, record, strict=True))
    path.unlink()
