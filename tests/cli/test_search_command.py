import io
import json

import pytest

from torch_linformer.cli.app import run

TABLE = [("wet grey mud", "rain"), ("warm sand\nand the sea", "sun"), ("ice and cold ice", "snow")]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def search(plain_encoder, capsys, tmp_path, monkeypatch, write_csv):
    """A function: run `linformer search` beside a table of three texts; returns status, output and standard error."""
    monkeypatch.chdir(tmp_path)
    write_csv("t.csv", TABLE, header=("text", "id"))

    def call(*arguments, model=plain_encoder, stdin=""):
        monkeypatch.setattr("sys.stdin", stdin if isinstance(stdin, Terminal) else io.StringIO(stdin))
        with pytest.raises(SystemExit) as exit_:
            run(["search", str(model), *arguments, "--device", "cpu", "--precision", "fp32"])
        return exit_.value.code, *capsys.readouterr()

    return call


def test_a_query_finds_passages(search, plain_encoder):
    status, out, error = search("sand", "--documents", "t.csv", "--top-k", "2")
    score, sun, *lines = out.split("\n")[0].split()[0], *out.splitlines()
    assert (status, sun.split()[1:]) == (0, ["sun"]) and float(score) > 0
    assert lines[:2] == ["      warm sand", "      and the sea"] and len(lines) == 4
    assert error.startswith(f"{plain_encoder} reads a document in windows of 16 tokens and makes a vector of each\n")
    assert "texts from column 'text'" in error and "reading 3 documents of 3\n" in error
    assert search("sand", "--top-k", "2", model="t.csv.search") == (0, out, "")


def test_lines_of_json(search):
    status, out, _ = search("sand", "mud", "--documents", "t.csv", "--json", "--output", "kept")
    records = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [record["query"] for record in records] == ["sand", "mud"]
    assert [record["hits"][0]["id"] for record in records] == ["sun", "rain"]
    assert list(records[0]["hits"][0]) == ["score", "id", "passage", "document", "start", "similarity", "words"]
    assert [len(record["hits"]) for record in records] == [3, 3]


def test_queries_of_a_file_of_standard_input_and_of_a_table(search, tmp_path):
    kept = ("--documents", "t.csv", "--top-k", "1")
    (tmp_path / "q.txt").write_text("sand\n\n mud \n", encoding="utf-8-sig")
    (tmp_path / "q.csv").write_text('number,query\n1,sand\n2,"mud"\n')
    status, out, _ = search("--queries", "q.txt", *kept)
    names = [line.split()[-1] for line in out.splitlines() if not line.startswith(" " * 6)]
    assert status == 0 and names == ["sand", "sun", "mud", "rain"]
    assert search("--queries", "q.csv", *kept)[1] == search("--queries", "-", *kept, stdin="sand\nmud")[1] == out
    (tmp_path / "q.txt").write_bytes("écume".encode("latin-1"))
    assert search("--queries", "q.txt", *kept)[2].endswith("q.txt: queries must be UTF-8, and these are not\n")


def test_a_terminal_is_asked(search):
    status, out, error = search("--documents", "t.csv", "--top-k", "1", stdin=Terminal("sand\n\u200b\nmud\n\nice\n"))
    assert status == 0 and out.count("query> ") == 4 and "sun" in out and "rain" in out and "snow" not in out
    assert error.splitlines()[-1] == "query '\\u200b': has no text; leave it out"
    status, out, _ = search(model="t.csv.search", stdin=Terminal("sand"))  # and Ctrl-D
    assert status == 0 and out.count("query> ") == 2 and out.endswith("query> \n")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--documents", "t.csv"), "no query: give one as an argument, or many with --queries"),
        (("mud", "--queries", "q.txt", "--documents", "t.csv"), "--queries takes the place of queries as arguments"),
        (("--queries", "-", "--documents", "-"), "--documents -: standard input has the documents"),
        (("mud",), "search in what? Name documents (--documents), or a folder"),
        (("mud", "--documents", "none.csv"), "none.csv: no such file or folder"),
        (("--queries", "none.txt", "--documents", "t.csv"), "none.txt: no such file or folder"),
        (("mud", "--documents", "t.csv", "--text-column", "x"), "t.csv: no column 'x'"),
    ],
)
def test_bad_input_is_one_line(search, arguments, said, tmp_path):
    status, out, error = search(*arguments)
    assert (status, out) == (2, "") and said in error and error.splitlines()[-1].startswith("linformer: ")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
