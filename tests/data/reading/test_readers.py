import io
import json
import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.readers import iter_parts, iter_rows, iter_stream
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError


def test_reading_is_lazy(write):
    path = write("t.jsonl", '{"text": "fine"}\nbroken\n')
    rows = iter_rows(path)
    assert next(rows).values == {"text": "fine"}
    with pytest.raises(InputError, match=r"t\.jsonl, line 2: not valid JSON"):  # as nobody takes bad rows
        next(rows)


def test_the_report_is_up_to_date_before_each_row(write):
    path = write("t.jsonl", '{"text": "\\ud83d!"}\nbroken\n{"text": "a"}\n')
    report = ReadReport(on_bad=lambda where, problem: None)
    counts = [(report.replaced, report.bad) for _ in iter_rows(path, report)]
    assert counts == [(1, 0), (1, 1)]


def test_several_files_are_one_part(write):
    paths = [write("a.csv", "text\na\n"), write("b.jsonl", '{"text": "b"}\n'), write("c/d.txt", "c").parent]
    rows = iter_parts(paths, ReadReport(), options=NO_OPTIONS, whole=True, labeled=False)
    assert [row.values["text"] for row in rows] == ["a", "b", "c"]


def test_missing_files_are_an_error_at_once(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: no such file or folder$"):
        iter_rows(tmp_path / "none.csv")


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_unreadable_files(tmp_path, write, read):
    path = write("folder/label/t.csv", "text\nx\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read anything, so be nobody for a moment
        for folder in [tmp_path, *tmp_path.parents[:3], path.parent, path.parent.parent]:
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        for source in (path, path.parent.parent):
            assert read(source).problems == [f"{path}: cannot be read (Permission denied)"]
    finally:
        os.seteuid(user)


def test_a_damaged_file_of_a_folder_leaves_the_others(write, read, tmp_path):
    broken = write("data/b.parquet", "no parquet")
    write("data/a.csv", "text\na\n")
    write("data/c.csv", "text\nc\n")
    outcome = read(tmp_path / "data")
    assert [row["text"] for row in outcome.rows] == ["a", "c"]
    assert len(outcome.problems) == 1 and outcome.problems[0].startswith(f"{broken}: not a readable Parquet file (")


def test_what_is_nested_too_deeply_is_refused(write):
    path = write("t.jsonl", '{"a":' + "[" * 900 + "]" * 900 + "}")
    with pytest.raises(InputError, match=f"^{path}: holds a value nested too deeply to be read; flatten it$"):
        list(iter_rows(path))


def test_half_characters_in_names_of_columns_are_replaced_too(write, read):
    outcome = read(write("t.jsonl", '{"a\\ud800": 1}'))
    assert outcome.rows == [{"a\ufffd": 1}] and outcome.replaced == 0


# Standard input


def stream(content, **options):
    report = ReadReport(on_bad=lambda where, problem: None)
    return list(iter_stream(io.BytesIO(content), report, DataOptions(**options))), report


def test_stream_of_json_lines():
    rows, report = stream(b'\xef\xbb\xbf\n{"text": "a"}\n\n{"text": "\xff"}\n{"text": "\\ud800"}')
    assert rows == [({"text": "a"}, "standard input, line 2"), ({"text": "\ufffd"}, "standard input, line 5")]
    assert (report.replaced, report.bad) == (1, 1)


@pytest.mark.parametrize("content", ["\n plain\ntext\n", "[1, 2]\n", "3\n", '{"open": \n', " \n\n"])
def test_stream_of_anything_else_is_one_document(content):
    (row,) = stream(content.encode())[0]
    assert row == ({"text": content}, "standard input") and not row.of_table


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8"])
def test_stream_in_an_encoding_that_is_named(encoding):
    assert stream("Größe\n".encode(encoding), encoding=encoding)[0] == [({"text": "Größe\n"}, "standard input")]
    rows, _ = stream('{"text": "Größe"}\n'.encode(encoding), encoding=encoding)
    assert rows == [({"text": "Größe"}, "standard input, line 1")]


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b'{"text": "a"}\nplain\n', None, "standard input, line 2: not valid JSON"),
        (b"\x89PNG\0\n", None, "standard input: not text, nor another known format"),
        (b"caf\xe9", None, r"standard input: holds bytes that are not UTF-8 \('caf\\xe9'\); save the file as"),
        (b'{"text": "caf\xc3"}', "ascii", "standard input, line 1: holds bytes that are not ascii"),
        (b"plain", "utf-16", r"standard input: not utf-16 \(.*\); name another with --encoding"),
        (b"abc", "utf-16-be", r"standard input: not utf-16-be \(.*\); name another with --encoding"),
    ],
)
def test_broken_streams(content, encoding, message):
    with pytest.raises(InputError, match=f"^{message}"):
        list(iter_stream(io.BytesIO(content), None, DataOptions(encoding=encoding)))


def test_an_empty_stream_has_no_rows():
    assert stream(b"")[0] == []


def test_streams_are_read_as_they_come():
    source, sink = os.pipe()
    with open(source, "rb") as reader, open(sink, "wb") as writer:
        rows = iter_stream(reader)
        writer.write(b'{"text": "early"}\n')
        writer.flush()
        assert next(rows).values == {"text": "early"}


# Anything


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_a_round_trip(write, read, texts, escaped):
    lines = (json.dumps({"text": text}, ensure_ascii=escaped) for text in texts)
    outcome = read(write("t.jsonl", "\n".join(lines)))
    assert [row["text"] for row in outcome.rows] == texts
    assert outcome.replaced == 0 and outcome.problems == []


@given(st.binary(max_size=200), st.sampled_from([None, "utf-8", "utf-16", "utf-16-le", "cp1252"]))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(write, read, content, encoding):
    for name in ("t.csv", "t.jsonl", "t.json", "t.txt", "t.parquet", "t.conll", "t.csv.gz"):
        path = Path(write(name, content))
        for whole in (True, False):
            try:
                rows = read(path, whole=whole, encoding=encoding).rows
            except InputError:
                continue
            json.dumps(rows, ensure_ascii=False).encode()  # raises if a surrogate is left
