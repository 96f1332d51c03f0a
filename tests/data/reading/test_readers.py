import io
import json
import os
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_linformer.data.reading import readers
from torch_linformer.data.reading.readers import iter_rows, iter_stream
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def read(path):
    report = ReadReport()
    return list(iter_rows(path, report)), report


def fails(path, message):
    """The reader stops at an error of one line which starts with the path and says `message`."""
    with pytest.raises(InputError) as raised:
        list(iter_rows(path))
    text = str(raised.value)
    assert text.startswith(str(path)) and message in text and "\n" not in text


TABLE = [{"text": "first, one", "label": "a"}, {"text": 'second "two"\nlines', "label": "b"}]


@pytest.mark.parametrize(
    ("name", "content", "place"),
    [
        ("t.csv", 'text,label\n"first, one",a\n\n"second ""two""\nlines",b\n', "row {}"),
        ("t.CSV", '\ufefftext,label\r\n"first, one",a\r\n"second ""two""\nlines",b', "row {}"),
        ("t.tsv", 'text\tlabel\nfirst, one\ta\n"second ""two""\nlines"\tb\n', "row {}"),
        ("t.jsonl", "\ufeff" + "\n".join(map(json.dumps, TABLE)), "line {}"),
        ("t.ndjson", "\r\n".join(map(json.dumps, TABLE)) + "\r\n", "line {}"),
        ("t.json", "\n".join(map(json.dumps, TABLE)), "line {}"),
        ("t.json", "\ufeff\n " + json.dumps(TABLE, indent=2), "item {}"),
    ],
    ids=["csv", "csv-windows", "tsv", "jsonl", "ndjson", "json-lines", "json-array"],
)
def test_tables(tmp_path, name, content, place):
    path = write(tmp_path / name, content)
    rows, report = read(path)
    assert [row.values for row in rows] == TABLE
    assert [row.where for row in rows] == [f"{path}, {place.format(number)}" for number in (1, 2)]
    assert report == ReadReport()


def test_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    values = [{"text": f"row {number}", "label": number % 3, "extra": None} for number in range(130)]
    pq.write_table(pa.Table.from_pylist(values), path)
    rows, report = read(path)
    assert [row.values for row in rows] == values
    assert rows[129].where == f"{path}, row 130"
    assert report == ReadReport()


@pytest.mark.parametrize("name", ["notes.txt", "notes.md", "main.py", "README"])
def test_any_other_file_is_one_document(tmp_path, name):
    path = write(tmp_path / name, "\ufefffirst\r\n\nsecond\n")
    assert read(path)[0] == [({"text": "first\r\n\nsecond\n"}, str(path))]


def test_folders_are_labels(tmp_path):
    write(tmp_path / "neg" / "2.txt", "bad")
    write(tmp_path / "neg" / "10.txt", "worse")
    write(tmp_path / "neg" / "deep" / "er" / "x", "worst")
    write(tmp_path / "pos" / "a.csv", "a,b\n1\n")  # in a folder every file is a document
    write(tmp_path / "readme.md", "no label")
    write(tmp_path / ".git" / "config", "hidden")
    write(tmp_path / "pos" / ".hidden", "hidden")
    write(tmp_path / "pos" / ".cache" / "x", "hidden")
    (tmp_path / "twin").symlink_to(tmp_path / "pos")
    rows, _ = read(tmp_path)
    assert [(row.values.get("label"), row.values["text"]) for row in rows] == [
        ("neg", "worse"),
        ("neg", "bad"),
        ("neg", "worst"),
        ("pos", "a,b\n1\n"),
        (None, "no label"),
        ("twin", "a,b\n1\n"),
    ]
    assert rows[2].where == str(tmp_path / "neg" / "deep" / "er" / "x")


def test_reading_is_lazy(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"text": "fine"}\nbroken\n')
    assert next(iter_rows(path)).values == {"text": "fine"}


def test_a_cell_may_be_a_book(tmp_path):
    book = "word " * 200_000
    assert read(write(tmp_path / "t.csv", f"text\n{book}\n"))[0][0].values == {"text": book}


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("t.csv", b"text\nfine\ncaf\xe9 \xff\nna\xc3\xafve\n", ["fine", "caf\ufffd \ufffd", "naïve"]),
        ("t.jsonl", b'{"text": "fine"}\n{"text": "caf\xe9"}\n', ["fine", "caf\ufffd"]),
        ("t.jsonl", b'{"text": "\\ud83d\\ude00"}\n{"text": "\\ud83d!"}', ["😀", "\ufffd!"]),
        ("t.json", b'[{"text": "caf\xe9"}, {"text": "\xc3\xa9"}]', ["caf\ufffd", "é"]),
        ("t.jsonl", b'{"text": ["a", {"b\xe9": "\\udc00"}]}\n{"text": []}', [["a", {"b\ufffd": "\ufffd"}], []]),
        ("t.txt", b"caf\xe9", ["caf\ufffd"]),
    ],
    ids=["csv", "jsonl", "escaped-surrogate", "json-array", "nested", "text"],
)
def test_bytes_that_are_not_utf8_are_replaced_and_counted(tmp_path, name, content, expected):
    rows, report = read(write(tmp_path / name, content))
    assert [row.values["text"] for row in rows] == expected
    assert report.replaced == 1


def test_column_names_are_decoded_but_not_counted(tmp_path):
    rows, report = read(write(tmp_path / "t.csv", b"cat\xe9gorie\nfine\n"))
    assert rows[0].values == {"cat\ufffdgorie": "fine"}
    assert report.replaced == 0


def test_a_genuine_replacement_character_is_not_counted(tmp_path):
    _, report = read(write(tmp_path / "t.txt", "a \ufffd stands here"))
    assert report.replaced == 0


def test_ragged_rows_name_the_row_and_both_counts(tmp_path):
    long = write(tmp_path / "long.csv", 'text,label\n"two\nlines",a\n\nyes, no,b\n')
    fails(long, ", row 2 (line 5): expected 2 cells as in the header, found 3; put quotes around")
    short = write(tmp_path / "short.tsv", "text\tlabel\nfine\ta\nmissing\n")
    fails(short, ", row 2 (line 3): expected 2 cells as in the header, found 1")


def test_broken_csv(tmp_path):
    fails(write(tmp_path / "q.csv", 'text,label\n"open,a\nfine,b\n'), ", line 3: unexpected end of data; check")
    fails(write(tmp_path / "h.csv", "text,label,text\n"), "two columns are named 'text'; rename one")


def test_broken_json(tmp_path):
    fails(write(tmp_path / "a.jsonl", '{"text": "x"}\n\n{"text": \n'), ", line 3: not valid JSON (")
    fails(write(tmp_path / "b.jsonl", '{"text": "x"}\n"text"\n'), ", line 2: expected a JSON object, found str")
    fails(write(tmp_path / "c.json", '[{"text": "x"},\n 3]'), ", item 2: expected a JSON object, found int")
    fails(write(tmp_path / "d.json", '[{"text": "x"}'), "write one array of JSON objects")
    fails(write(tmp_path / "e.json", '{\n"text": "x"}'), ", line 1: not valid JSON (")
    fails(write(tmp_path / "f.jsonl", '{"a":' + "[" * 100_000), ", line 1: not valid JSON (")


def test_broken_parquet(tmp_path):
    fails(write(tmp_path / "a.parquet", "text,label\n"), "not a readable Parquet file (")


@pytest.mark.parametrize("name", ["report.pdf", "table.xlsx", "all.ZIP", "paper.docx"])
def test_unknown_formats_are_named_by_their_suffix(tmp_path, name):
    fails(
        write(tmp_path / name, "whatever"),
        "known are .csv, .tsv, .jsonl, .ndjson, .json, .parquet, .conll, .iob, .iob2, .bio, plain text",
    )


@pytest.mark.parametrize("name", ["image", "t.csv", "t.jsonl", "folder/label/x.txt"])
def test_binary_files_are_no_text(tmp_path, name):
    path = write(tmp_path / name, b"\x89PNG\0\0")
    fails(path, "not a text file in UTF-8")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        list(iter_rows(tmp_path))


def test_missing_files_are_an_error_at_once(tmp_path):
    with pytest.raises(InputError, match=r"none\.csv: no such file or folder$"):
        iter_rows(tmp_path / "none.csv")


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_unreadable_files(tmp_path):
    path = write(tmp_path / "folder" / "label" / "t.csv", "text\nx\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read anything, so be nobody for a moment
        for folder in [tmp_path, *tmp_path.parents[:3], path.parent, path.parent.parent]:
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        fails(path, "cannot be read (Permission denied)")
        with pytest.raises(InputError, match=r"t\.csv: cannot be read \(Permission denied\)"):
            list(iter_rows(path.parent.parent))
    finally:
        os.seteuid(user)


@pytest.mark.parametrize("name", ["e.csv", "e.tsv", "e.jsonl", "e.json", "header.csv"])
def test_empty_tables_have_no_rows(tmp_path, name):
    assert read(write(tmp_path / name, "text,label\n" if name == "header.csv" else ""))[0] == []


def test_an_empty_text_file_is_an_empty_document(tmp_path):
    assert read(write(tmp_path / "e.txt", ""))[0][0].values == {"text": ""}


def stream(content):
    report = ReadReport()
    return list(iter_stream(io.BytesIO(content), report)), report


def test_stream_of_json_lines():
    rows, report = stream(b'\xef\xbb\xbf\n{"text": "a"}\n\n{"text": "\xff"}')
    assert rows == [({"text": "a"}, "standard input, line 2"), ({"text": "\ufffd"}, "standard input, line 4")]
    assert report == ReadReport(replaced=1)


@pytest.mark.parametrize("content", ["\n plain\ntext\n", "[1, 2]\n", "3\n", '{"open": \n', " \n\n"])
def test_stream_of_anything_else_is_one_document(content):
    assert stream(content.encode())[0] == [({"text": content}, "standard input")]


def test_broken_streams():
    with pytest.raises(InputError, match="standard input, line 2: not valid JSON"):
        stream(b'{"text": "a"}\nplain\n')
    with pytest.raises(InputError, match="standard input: not a text file in UTF-8"):
        stream(b"\x89PNG\0\n")
    assert stream(b"")[0] == []


def test_streams_are_read_as_they_come():
    source, sink = os.pipe()
    with open(source, "rb") as reader, open(sink, "wb") as writer:
        rows = iter_stream(reader)
        writer.write(b'{"text": "early"}\n')
        writer.flush()
        assert next(rows).values == {"text": "early"}


@pytest.mark.parametrize("suffix", ["conll", "iob", "iob2", "BIO"])
def test_tokens_and_tags(tmp_path, suffix):
    path = write(tmp_path / f"t.{suffix}", b"\xef\xbb\xbfa O\r\n\r\ncaf\xe9 B-\xff\r\nd O")
    rows, report = read(path)
    assert rows == [
        ({"tokens": ["a"], "tags": ["O"]}, f"{path}, line 1"),
        ({"tokens": ["caf\ufffd", "d"], "tags": ["B-\ufffd", "O"]}, f"{path}, line 3"),
    ]
    assert report == ReadReport(replaced=1)
    fails(write(tmp_path / f"broken.{suffix}", "a O\nb\n"), ", line 2: expected a token and its tag, found 'b'; put")


SQUAD = {
    "version": "v2.0",
    "data": [
        {
            "title": "café",
            "paragraphs": [
                {
                    "context": "The café is \u00e9legant.",
                    "qas": [
                        {"id": "5733be28", "question": "What?", "answers": [{"text": "café", "answer_start": 4}]},
                        {"id": "5733be29", "question": "Who?", "answers": [], "is_impossible": True},
                    ],
                }
            ],
        }
    ],
}


@pytest.mark.parametrize("indent", [None, 1], ids=["one-line", "many-lines"])
@pytest.mark.parametrize("mark", ["", "\ufeff\r\n "], ids=["plain", "marked"])
def test_squad(tmp_path, indent, mark):
    path = write(tmp_path / "dev.json", mark + json.dumps(SQUAD, indent=indent) + "\n")
    context = "The café is élegant."
    answers = [{"text": ["café"], "answer_start": [4]}, {"text": [], "answer_start": []}]
    rows, report = read(path)
    assert rows == [
        (
            {"id": "5733be28", "question": "What?", "context": context, "answers": answers[0]},
            f"{path}, question 5733be28",
        ),
        (
            {"id": "5733be29", "question": "Who?", "context": context, "answers": answers[1]},
            f"{path}, question 5733be29",
        ),
    ]
    assert report == ReadReport()


def test_replaced_bytes_leave_the_places_of_answers_as_they_are(tmp_path):
    content = json.dumps(SQUAD, ensure_ascii=False).encode("latin-1")
    rows, report = read(write(tmp_path / "dev.json", content))
    assert rows[0].values["context"] == "The caf\ufffd is \ufffdlegant."
    assert rows[0].values["answers"] == {"text": ["caf\ufffd"], "answer_start": [4]}
    assert report.replaced == 2


def test_broken_squad(tmp_path):
    whole = json.dumps(SQUAD, indent=1)
    fails(write(tmp_path / "a.json", whole[:-2]), ": not valid JSON (")
    fails(write(tmp_path / "b.json", json.dumps(SQUAD)[:-2]), "; write one object in the form of SQuAD")
    fails(write(tmp_path / "c.json", whole + "\n{}"), ": not valid JSON (Extra data: line ")
    fails(write(tmp_path / "d.json", whole.replace("context", "text")), ".paragraphs[0]: expected an object with 'co")


@pytest.mark.parametrize(
    "rows",
    [[{"data": [1, {"paragraphs": 2}]}, {"text": "x"}], [{"data": "paragraphs"}], [{"paragraphs": [{"context": ""}]}]],
    ids=["more lines", "no articles", "no data"],
)
def test_json_lines_that_resemble_squad_stay_lines(tmp_path, rows):
    path = write(tmp_path / "t.json", "\n".join(map(json.dumps, rows)))
    assert [row.values for row in read(path)[0]] == rows


def test_what_is_nested_too_deeply_is_refused(tmp_path):
    fails(
        write(tmp_path / "t.jsonl", '{"a":' + "[" * 900 + "]" * 900 + "}"),
        ": holds a value nested too deeply to be read; flatten it",
    )


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.booleans())
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_survives_a_round_trip(tmp_path, texts, escaped):
    path = tmp_path / "t.jsonl"
    lines = (json.dumps({"text": text}, ensure_ascii=escaped) for text in texts)
    write(path, "\n".join(lines))
    rows, report = read(path)
    assert [row.values["text"] for row in rows] == texts
    assert report.replaced == 0


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_bytes_are_read_or_refused(tmp_path, content):
    for name in ("t.csv", "t.jsonl", "t.json", "t.txt", "t.parquet", "t.conll"):
        path = Path(write(tmp_path / name, content))
        try:
            rows, _ = read(path)
        except InputError:
            continue
        json.dumps([row.values for row in rows], ensure_ascii=False).encode()  # raises if a surrogate is left


# Pieces and shards


def test_a_long_text_comes_in_pieces_if_it_need_not_be_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE_BYTES", 10)
    text = "short\nlonger line\nx" + "é" * 30 + "\n\nend"
    path = tmp_path / "book.txt"
    path.write_text(text, encoding="utf-8")
    pieces = [str(row.values["text"]) for row in iter_rows(path, whole=False)]
    assert "".join(pieces) == text and len(pieces) > 3
    assert pieces[0] == "short\nlonger line\n"  # to the end of the line that ten bytes reach into
    assert "\ufffd" not in "".join(pieces)  # no character is cut in two
    (whole,) = iter_rows(path)
    assert whole.values == {"text": text}
    folder = tmp_path / "a"
    folder.mkdir()
    path.rename(folder / "book.txt")
    assert [row.values["text"] for row in iter_rows(tmp_path, whole=False)] == pieces


def test_a_folder_of_tables_is_one_table(tmp_path):
    for name, texts in (("b.jsonl", ["3"]), ("a.JSONL", ["1", "2"])):
        (tmp_path / name).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    rows = list(iter_rows(tmp_path))
    assert [row.values["text"] for row in rows] == ["1", "2", "3"]
    assert rows[2].where == f"{tmp_path / 'b.jsonl'}, line 1"
    for other in ("notes.txt", "c.csv"):
        (tmp_path / other).write_text("mixed: every file is a text")
        assert len(list(iter_rows(tmp_path))) == 3
        assert next(iter(iter_rows(tmp_path))).values["text"].startswith('{"text"')
        (tmp_path / other).unlink()
