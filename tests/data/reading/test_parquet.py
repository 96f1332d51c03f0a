from pathlib import Path

import pyarrow
import pytest
from datasets import ClassLabel, Features, Sequence, Value
from pyarrow import parquet

from torch_linformer.data.reading import formats, readers


def repeated(text, times):
    """A column of one text many times, which takes no more memory than the text."""
    return pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * times, pyarrow.int32()), pyarrow.array([text]))


@pytest.fixture
def written(tmp_path):
    """A function: write a table and return its path."""

    def write(**columns):
        path = tmp_path / "a.parquet"
        parquet.write_table(pyarrow.table(columns), path, compression="zstd")
        return path

    return write


def test_rows(written, read):
    path = written(text=[f"row {number}" for number in range(130)], label=[1] * 130, extra=[None] * 130)
    outcome = read(path)
    assert outcome.rows == [{"text": f"row {number}", "label": 1, "extra": None} for number in range(130)]
    assert outcome.places[129] == f"{path}, row 130" and outcome.notes == outcome.problems == []


def test_names_of_classes_are_taken_from_the_file(tmp_path, read):
    label, tags = ClassLabel(names=["neg", "pos"]), Sequence(ClassLabel(names=["O", "B"]))
    features = Features({"text": Value("string"), "label": label, "tags": tags})
    columns = {"text": list("abcd"), "label": [1, 2, -1, None], "tags": [[0, 1], [0], None, [0, 2]]}
    path = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.table(columns, schema=features.arrow_schema), path)
    outcome = read(path)
    assert outcome.rows == [
        {"text": "a", "label": "pos", "tags": ["O", "B"]},
        {"text": "c", "label": None, "tags": None},  # -1 marks a missing label
    ]
    assert outcome.notes == [f"{path}: names of the classes of label, tags from the file itself"]
    told = "holds 2, the number of no class; there are 2, from 0 on"
    assert outcome.problems == [f"{path}, row 2: column 'label' {told}", f"{path}, row 4: column 'tags' {told}"]
    parquet.write_table(pyarrow.table(columns).replace_schema_metadata({"pandas": "{}"}), path)
    assert read(path).rows[0] == {"text": "a", "label": 1, "tags": [0, 1]}


def test_what_is_no_parquet(write, read):
    path = write("a.parquet", "text,label\n")
    (problem,) = read(path).problems
    assert problem.startswith(f"{path}: not a readable Parquet file (") and problem.endswith("; write it again")


@pytest.mark.parametrize("nested", [False, True])
def test_a_small_file_that_unfolds_to_more_than_the_memory(written, read, nested):
    text = repeated("a" * 1_000_000, 1_000_000)
    if nested:
        text = pyarrow.ListArray.from_arrays(pyarrow.array([0, 1_000_000], pyarrow.int32()), text)
    path = written(text=text)
    assert path.stat().st_size < 50_000
    (problem,) = read(path).problems
    rows = "1" if nested else "1,000,000"
    assert problem.startswith(f"{path}: its {rows} rows unfold to more than ")
    assert problem.endswith("; take repeated rows out")


def test_many_numbers_of_one_value(written, read, monkeypatch):
    monkeypatch.setattr("torch_linformer.measuring.machine.memory_bytes", lambda: 1_000_000)
    path = written(text=repeated("a", 1_000_000), label=pyarrow.array([7] * 1_000_000))
    assert "its 1,000,000 rows unfold to more than " in read(path).problems[0]


def test_the_bytes_that_rows_take_are_counted_and_not_guessed(written, read, monkeypatch):
    """The metadata alone would allow each value to be the whole dictionary."""
    monkeypatch.setattr("torch_linformer.measuring.machine.memory_bytes", lambda: 100_000)
    texts = [f"text {number % 1000}" for number in range(4000)]
    path = written(
        text=texts,
        tags=[["a", None], None] * 2000,
        nested=pyarrow.array([{"x": "a", "y": ["b", "c"]}, None] * 2000),
        raw=[b"ab"] * 4000,
    )
    monkeypatch.setattr(formats, "MOST_UNFOLDED", 0)
    metadata = parquet.ParquetFile(path).metadata
    text_bytes = sum(map(len, texts)) + 2000 + 2000 * 3 + 4000 * 2
    values = sum(metadata.row_group(0).column(number).num_values for number in range(metadata.num_columns))
    assert sum(readers._sizes(Path(path), metadata, 0)) == text_bytes + 8 * values
    assert list(readers._sizes(Path(path), metadata, 10**9)) == []  # which is told without reading
    assert read(path).rows == []
    monkeypatch.setattr("torch_linformer.measuring.machine.memory_bytes", lambda: text_bytes + 8 * values)
    assert len(read(path).rows) == 4000


def test_two_columns_of_one_name(tmp_path, read):
    path = tmp_path / "a.parquet"
    columns = [pyarrow.array(["a"]), pyarrow.array(["x"]), pyarrow.array(["y"])]
    parquet.write_table(pyarrow.Table.from_arrays(columns, names=["text", "label", "label"]), path)
    assert read(path).problems == [f"{path}: two columns are named 'label'; rename one of them"]
