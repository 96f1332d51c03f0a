"""Records that cannot be read do not end a run over many others, if so many are allowed."""

import json
import re

import pyarrow
import pytest
from pyarrow import parquet

from torch_linformer.errors import InputError
from torch_linformer.inference.answer_files import EmbedSettings, PredictSettings, answer_files

LINES = ['{"text": "wet mud"}', '{"text": "wet', '{"text": "warm sand"}', "[1]", '{"text": 5}', '{"text": "ice"}']


@pytest.fixture
def given(tmp_path):
    """Files with a record of each kind: JSON lines, a table and a folder of texts."""
    lines, table, folder = tmp_path / "posts.jsonl", tmp_path / "posts.csv", tmp_path / "posts"
    lines.write_text("\n".join(LINES))
    table.write_text("text,note\ngrey mud,a\nsea\nwarm sea,b\n")
    folder.mkdir()
    (folder / "1.txt").write_text("cold ice")
    (folder / "2.txt").write_bytes(b"\0\0")
    return str(lines), str(table), str(folder)


EXPECTED = {
    "posts.jsonl, line 2": "not valid JSON",
    "posts.jsonl, line 4": "expected a JSON object, found list",
    "posts.jsonl, line 5": "not text",
    "posts.csv, row 2": "expected 2 cells as in the header, found 1",
    "2.txt": "not text",
}


@pytest.mark.parametrize("command", ["predict", "embed"])
def test_they_are_left_out_and_told(classifier_run, given, tmp_path, command):
    output = tmp_path / ("out.jsonl" if command == "predict" else "out.parquet")
    kinds = {"predict": (PredictSettings, answer_files), "embed": (EmbedSettings, answer_files)}
    settings, run = kinds[command][0](model=str(classifier_run.folder), files=given), kinds[command][1]
    said = run(settings, output, max_errors=5, device="cpu")
    assert said.startswith("6 documents") and said.endswith(", 5 left out, as they cannot be read")
    told = [json.loads(line) for line in (tmp_path / f"{output.name}.errors.jsonl").read_text().splitlines()]
    assert len(told) == 5
    for record, (where, error) in zip(told, EXPECTED.items(), strict=True):
        assert record["record"].endswith(where) and record["error"].startswith(record["record"])
        assert error in record["error"]
        place = f"{record['file']}, {'row' if '.csv' in where else 'line'} {record['row']}"
        assert record["record"] == (place if record["row"] else record["file"]) and record["file"].startswith("/")

    output.unlink()
    with pytest.raises(InputError, match=r"2\.txt: not text.*; it is one more than --max-errors 4, see .*errors"):
        run(settings, output, max_errors=4, device="cpu")
    with pytest.raises(InputError, match="line 2: not valid JSON"):
        run(settings, output, device="cpu")
    assert not output.exists()
    with pytest.raises(InputError, match="--max-errors must be 0 or more, got -1"):
        run(settings, output, max_errors=-1, device="cpu")


def test_a_damaged_table_is_one_of_them(classifier_run, tmp_path):
    """Among other tables of a folder, and given by itself; what stands before the damage is kept."""
    folder, columns = tmp_path / "tables", tmp_path / "columns.csv"
    folder.mkdir()
    for name in ("1.parquet", "2.parquet", "3.parquet"):
        parquet.write_table(pyarrow.table({"text": ["wet mud", "warm sand"]}), folder / name)
    (folder / "2.parquet").write_bytes((folder / "2.parquet").read_bytes()[:-9])
    (tmp_path / "quotes.csv").write_text('text,id\nwet mud,1\n"warm" sand,2\ncold,3\n')
    columns.write_text("a,b\nwet mud,warm sand\n")
    files = (str(folder), str(tmp_path / "quotes.csv"), str(columns), str(folder / "1.parquet"))
    settings = PredictSettings(model=str(classifier_run.folder), files=files)
    said = answer_files(settings, tmp_path / "out.jsonl", max_errors=3, device="cpu")
    assert said == "9 documents read, 2 left out, as they cannot be read"
    told = [json.loads(line) for line in (tmp_path / "out.jsonl.errors.jsonl").read_text().splitlines()]
    assert [record["file"] for record in told] == [str(folder / "2.parquet"), files[2]]
    assert [record["row"] for record in told] == [None] * 2
    for record, problem in zip(told, ("not a readable Parquet file", "name the text column with"), strict=True):
        assert problem in record["error"]
    with pytest.raises(InputError, match=r"2\.parquet: not a readable Parquet file"):
        answer_files(settings, tmp_path / "first.jsonl", device="cpu")


def test_nothing_else_says_where_they_are_told(classifier_run, tmp_path):
    (tmp_path / "t.jsonl").write_text("{\n{\n")
    settings = PredictSettings(model=str(classifier_run.folder), files=(str(tmp_path / "t.jsonl"),))
    for output, told in (("o.jsonl", "o.jsonl.errors.jsonl"), ("o", "o/_errors.jsonl"), ("o", "o/_errors.jsonl")):
        with pytest.raises(
            InputError, match=rf"t\.jsonl: no document with any text, 2 left out: see .*{re.escape(told)}$"
        ):
            answer_files(settings, tmp_path / output, max_errors=2, device="cpu")
        assert (tmp_path / told).read_text().count("\n") == 2


def test_they_need_a_file(classifier_run, given):
    settings = PredictSettings(model=str(classifier_run.folder), files=given)
    with pytest.raises(InputError, match="--max-errors writes bad records beside the file of --output: name it"):
        answer_files(settings, max_errors=1, device="cpu")
