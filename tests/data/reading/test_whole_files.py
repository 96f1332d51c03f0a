"""What has to be in memory as a whole is refused where the memory is too small for it."""

import gzip
import io
import json

import pytest

from torch_linformer.data.reading import plain_texts as whole_files
from torch_linformer.data.reading.data_options import NO_OPTIONS
from torch_linformer.data.reading.plain_texts import TextFolder
from torch_linformer.data.reading.readers import iter_stream
from torch_linformer.errors import InputError

REFUSED = "holds more than 1 kB, 1/64 of this machine's memory, as one text; split it, or write JSON lines with"


@pytest.fixture(autouse=True)
def little_memory(monkeypatch):
    """64 kB: a text of 1,000 characters is taken, and JSON of 4,000."""
    monkeypatch.setattr(whole_files, "memory_bytes", lambda: 64_000)


@pytest.mark.parametrize(("size", "taken"), [(1000, True), (1001, False)])
@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_a_text(write, read, suffix, size, taken):
    text = ("x" * (size - 1)) + "\n"
    path = write(f"t.txt{suffix}", gzip.compress(text.encode()) if suffix else text)
    outcome = read(path)
    assert [row["text"] for row in outcome.rows] == ([text] if taken else [])
    assert taken or outcome.problems[0].startswith(f"{path}: {REFUSED}")
    assert len(read(path, whole=False).rows) >= 1  # in pieces it may have any size


def test_a_value_of_json(write, read):
    for number, taken in ((180, True), (200, False)):
        path = write("t.json", json.dumps([{"text": f"{row:05d}"} for row in range(number)], indent=0))
        outcome = read(path)
        assert len(outcome.rows) == (number if taken else 0)
        assert taken or "holds more than 4 kB, 1/16 of this machine's memory" in outcome.problems[0]
    assert len(read(write("t.jsonl", '{"text": "wet"}\n' * 1000)).rows) == 1000


def test_standard_input():
    assert [row.values["text"] for row in iter_stream(io.BytesIO(b"x" * 1000))] == ["x" * 1000]
    with pytest.raises(InputError, match=f"^standard input: {REFUSED}"):
        list(iter_stream(io.BytesIO(b"x\n" * 501)))


def test_a_file_that_a_table_names(tmp_path):
    (tmp_path / "t.txt").write_text("x" * 1001)
    with pytest.raises(InputError, match=REFUSED):
        TextFolder(tmp_path, NO_OPTIONS).read("t.txt", "row 1")
