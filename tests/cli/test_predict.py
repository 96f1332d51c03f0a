import io
import json
import os
import subprocess
import sys

import pyarrow
import pytest
from pyarrow import parquet

from torch_linformer.cli.app import run

TEXTS = ["wet grey mud", "naïve sand and sea", "ice " * 60]

COLUMNS = "texts from column 'text' (as the model was trained)\n"  # what is said of a table


@pytest.fixture
def predict(classifier_run, capsys):
    """A function: run `linformer predict` on the trained classifier; returns status, records and standard error."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run(["predict", str(classifier_run.folder), *map(str, arguments), "--device", "cpu", "--precision", "fp32"])
        shown, error = capsys.readouterr()
        return exit_.value.code, [json.loads(line) for line in shown.splitlines()], error

    return call


@pytest.fixture
def standard_input(monkeypatch):
    """A function: bytes for the command to find on its standard input."""
    return lambda data: monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data)))


@pytest.fixture
def files(tmp_path, monkeypatch, write_csv):
    """A file of each kind, each with the same three texts (a text file holds one)."""
    monkeypatch.chdir(tmp_path)
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_text(text, encoding="utf-8")
    write_csv("t.csv", [(text, "7") for text in TEXTS], header=("text", "id"))
    (tmp_path / "t.jsonl").write_text(
        "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS), encoding="utf-8"
    )
    parquet.write_table(pyarrow.table({"text": TEXTS}), "t.parquet")
    return tmp_path


@pytest.mark.parametrize(
    ("name", "place"), [("t.csv", "t.csv, row {}"), ("t.jsonl", "t.jsonl, line {}"), ("t.parquet", "t.parquet, row {}")]
)
def test_tables(predict, files, name, place):
    status, records, error = predict(name)
    assert (status, error) == (0, f"{COLUMNS}3 documents read, 1 cut at 24 tokens\n")
    assert [record["document"] for record in records] == [place.format(number) for number in (1, 2, 3)]
    assert [record["label"] for record in records] == ["rain", "sun", "snow"]
    assert [record["cut"] for record in records] == [False, False, True]
    ids = [] if name == "t.parquet" else ["id"]
    for record in records:
        assert list(record) == ["document", *ids, "label", "probabilities", "tokens", "cut"]
        assert sum(record["probabilities"].values()) == pytest.approx(1, abs=3e-6)
        assert record["tokens"] > 24 or not record["cut"]


def test_every_kind_gives_the_same_and_in_the_order_asked_for(predict, files):
    names = ["2.txt", "t.parquet", "0.txt", "t.csv", "1.txt", "t.jsonl"]
    status, records, error = predict(*names, "--batch-size", "2")
    assert (status, error) == (0, f"{COLUMNS}12 documents read, 4 cut at 24 tokens\n")
    assert [record.pop("document").partition(",")[0] for record in records] == [
        name for name in names for _ in range(1 if name.endswith("txt") else 3)
    ]
    by_text = [records[i] for i in (4, 8, 0)]  # the text files
    for table in (records[1:4], records[5:8], records[9:12]):
        for record, expected in zip(table, by_text, strict=True):
            record.pop("id", None)
            assert record.pop("probabilities") == pytest.approx(expected["probabilities"], abs=5e-6)
            assert record == {name: value for name, value in expected.items() if name != "probabilities"}


def test_standard_input_as_text(predict, standard_input):
    standard_input("wet grey mud\nin two lines naïve".encode())
    status, (record,), _ = predict("-")
    assert status == 0 and record["document"] == "standard input" and record["label"] == "rain"


def test_standard_input_as_json_lines(predict, standard_input, files):
    standard_input((files / "t.jsonl").read_bytes())
    status, records, _ = predict("-", "--batch-size", "2")
    assert status == 0
    assert [record["document"] for record in records] == [f"standard input, line {number}" for number in (1, 2, 3)]
    assert [record["label"] for record in records] == ["rain", "sun", "snow"]


def test_a_folder_of_files(predict, files):
    (files / "folder").mkdir()
    for number in range(3):
        os.rename(f"{number}.txt", files / "folder" / f"{number}.txt")
    _, records, _ = predict("folder")
    assert [record["document"] for record in records] == [f"folder{os.sep}{number}.txt" for number in range(3)]


def test_what_is_skipped_and_replaced_is_counted_and_rows_keep_their_names(predict, tmp_path):
    path = tmp_path / "t.jsonl"
    path.write_text(
        "".join(json.dumps({"text": text, "id": n}) + "\n" for n, text in enumerate(["a", "", " ", "\ud83d"]))
    )
    status, records, error = predict(path)
    assert status == 0 and [record["document"] for record in records] == [f"{path}, line 1", f"{path}, line 4"]
    assert [record["id"] for record in records] == ["0", "3"]
    assert error == f"{COLUMNS}2 documents read, 2 skipped, without text, 1 with half a character replaced\n"
    status, records, error = predict(path, "--id-column", "text")
    assert [record["id"] for record in records] == ["a", "\ufffd"]


def test_a_column_that_is_named(predict, tmp_path, write_csv):
    path = write_csv(tmp_path / "t.csv", [("wet mud grey", "sand sea warm")], header=("first", "second"))
    labels = [predict(path, "--text-column", name)[1][0]["label"] for name in ("first", "second")]
    assert labels == ["rain", "sun"]


def test_output_is_written_as_a_whole(predict, files):
    status, records, error = predict("t.csv", "--output", "new folder/out.jsonl")
    assert (status, records) == (0, []) and "3 documents read" in error
    lines = (files / "new folder" / "out.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines and [json.loads(line) for line in lines] == predict("t.csv")[1]
    assert os.listdir("new folder") == ["out.jsonl"]


def test_a_folder_of_parts(predict, files):
    status, records, error = predict("t.*", "--output", "parts")
    assert (status, records, error) == (0, [], f"{COLUMNS}9 documents read, 3 cut at 24 tokens\n")
    assert sorted(os.listdir("parts")) == ["_manifest.json", "part-00000.jsonl"]
    assert COLUMNS + predict("t.*", "--output", "parts", "--resume")[2] == error
    status, _, error = predict("t.*", "--output", "parts")
    assert (status, error) == (
        2,
        "linformer: --output parts: holds a finished run; add --resume to go on, or remove parts\n",
    )


def test_an_engine_that_is_refused(predict, files):
    for arguments, problem in (
        (("--engine", "spark"), "--engine must be one of local, ray, got 'spark'"),
        (("--workers", "2"), "--workers 2 cannot share 1 threads (OMP_NUM_THREADS): take fewer"),
        (("--ray-address", "auto"), "--ray-address is for --engine ray"),
    ):
        assert predict("t.csv", *arguments)[::2] == (2, f"linformer: {problem}\n")


@pytest.mark.parametrize("before", [None, "earlier results\n"])
def test_a_failure_in_the_middle_leaves_no_output(predict, files, before):
    with open("ragged.csv", "w") as file:
        file.write("text,id\n" + "wet mud,1\n" * 200 + "a,b,c\n")
    folder = files / "out"
    folder.mkdir()
    if before:
        (folder / "out.jsonl").write_text(before)
    status, _, error = predict("t.csv", "ragged.csv", "--output", "out/out.jsonl", "--batch-size", "2")
    assert status == 2
    assert error.startswith(f"{COLUMNS}linformer: ragged.csv, row 201 (line 202): expected 2 cells as in the header")
    assert error.count("\n") == 2
    assert os.listdir(folder) == (["out.jsonl"] if before else [])
    assert not before or (folder / "out.jsonl").read_text() == before


def test_nothing_with_text_is_an_error_and_leaves_no_output(predict, tmp_path):
    (tmp_path / "empty.txt").write_text(" \n")
    status, records, error = predict(tmp_path / "empty.txt", "--output", tmp_path / "out.jsonl")
    assert (status, records) == (2, [])
    assert error == f"linformer: {tmp_path / 'empty.txt'}: no document with any text\n"
    assert os.listdir(tmp_path) == ["empty.txt"]


@pytest.mark.skipif(sys.platform == "darwin", reason="names of files are always text on macOS")
def test_a_file_whose_name_is_no_text(predict, tmp_path):
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with open(path, "w") as file:
        file.write("wet grey mud")
    status, (record,), _ = predict(os.fsdecode(path))
    assert status == 0 and os.fsencode(record["document"]) == path


def test_it_streams(run_with_client, classifier_run, capsys):
    """A line comes out as soon as the first batches are full, while the input stays open; stdout holds no more."""
    arguments = (str(classifier_run.folder), "-", "--batch-size", "1", "--device", "cpu", "--precision", "fp32")
    line = json.dumps({"text": "wet mud " * 3}) + "\n"

    def talk(writer, reader):
        # More than is read ahead and than stdout buffers, less than either pipe holds; the input is not at its end.
        writer.write(line * 300)
        writer.flush()
        first = reader.readline()
        writer.write(line)
        writer.close()
        return [first, *reader]

    status, lines = run_with_client(["predict", *arguments], talk)
    assert status == 0 and capsys.readouterr().err == f"{COLUMNS}301 documents read\n"
    assert [json.loads(line)["document"] for line in lines] == [f"standard input, line {n}" for n in range(1, 302)]


def test_a_reader_that_goes_away_is_no_error_to_talk_about(start_command, classifier_run, tmp_path, write_csv):
    path = write_csv(tmp_path / "t.csv", [("wet mud", i) for i in range(3_000)], header=("text", "id"))
    arguments = ("predict", str(classifier_run.folder), path, "--device", "cpu", "--precision", "fp32")
    process = start_command(*arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    process.stdout.readline()
    process.stdout.close()
    assert "Traceback" not in process.stderr.read()
    assert process.wait() != 2


def test_an_encoder_decoder_writes_targets(seq2seq_run, standard_input, capsys, tmp_path):
    text = seq2seq_run.rows[0]["article"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"id": "x", "story": text}) + "\n")
    standard_input(text.encode())
    records = []
    for arguments in (["-"], [str(rows), "--source-column", "story"]):
        with pytest.raises(SystemExit) as exit_:
            run(["predict", str(seq2seq_run.folder), *arguments, "--device", "cpu", "--precision", "fp32"])
        assert exit_.value.code == 0
        records += map(json.loads, capsys.readouterr().out.splitlines())
    assert [record["target"] for record in records] == [records[0]["target"]] * 2
    assert records[0].keys() == {"document", "target", "tokens", "cut"}
    assert records[0]["target"].startswith("naïve ")
