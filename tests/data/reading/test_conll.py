import tracemalloc
from pathlib import Path

import pytest

from torch_linformer.data.reading.conll import conll_rows
from torch_linformer.errors import InputError


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def read(content):
    Path("t.conll").write_text(content, encoding="utf-8")
    return list(conll_rows(Path("t.conll")))


def tokens(content):
    return [values["tokens"] for values, _ in read(content)]


def test_sentences_end_at_blank_lines():
    assert read("\n\nEU NNP B-ORG\nrejects VBZ O\n \t\n\nPeter B-PER\nBlackburn  I-PER") == [
        ({"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}, "t.conll, line 3"),
        ({"tokens": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]}, "t.conll, line 7"),
    ]


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_with_document_lines_has_a_row_for_each_document(mark):
    content = "-DOCSTART- -X- O\n\na O\n\nb B-X\n-DOCSTART-\n-DOCSTART-\tO\n\n\nc O\n\n"
    assert read(mark + content) == [
        ({"tokens": ["a", "b"], "tags": ["O", "B-X"]}, "t.conll, line 3"),
        ({"tokens": ["c"], "tags": ["O"]}, "t.conll, line 10"),
    ]


def test_what_stands_before_the_first_document_line_is_a_document():
    assert tokens("a O\n\nb O\n\n-DOCSTART- O\n\nc O\n") == [["a", "b"], ["c"]]


def test_a_document_line_behind_a_byte_order_mark_is_one():
    assert tokens("\ufeff-DOCSTART- O\n\na O\n\nb O\n") == [["a", "b"]]


def test_columns_between_tabs_may_hold_spaces():
    assert read("10 000\tB-N\t\nand\t_\tO\n") == [
        ({"tokens": ["10 000", "and"], "tags": ["B-N", "O"]}, "t.conll, line 1")
    ]


def test_white_space_beyond_ascii_belongs_to_the_token():
    assert tokens("10\u00a0000 O\n\u3000 O\n") == [["10\u00a0000", "\u3000"]]


@pytest.mark.parametrize(
    "comment", ["# newdoc", "# sent_id = 5", "# id 5b4d domain=train", "# text = Vitamin B-12", "# text = O"]
)
def test_comments_before_a_sentence_are_no_tokens(comment):
    assert read(f"{comment}\na O\n\n{comment}\n# newpar\nb O\n") == [
        ({"tokens": ["a"], "tags": ["O"]}, "t.conll, line 2"),
        ({"tokens": ["b"], "tags": ["O"]}, "t.conll, line 6"),
    ]


def test_a_number_sign_with_a_tag_is_a_token():
    assert tokens("# O\n# B-X\n# SYM\n#tag O\n\n#\tSYM\n") == [["#", "#", "#", "#tag"], ["#"]]
    assert tokens("# B\n") == [["#"]]
    assert tokens("-DOCSTART- O\na O\n\n# newpar\n# I-X\n") == [["a", "#"]]


@pytest.mark.parametrize("line", ["word", "word\t", "\tO", "#comment", "-DOC"])
def test_a_line_without_two_columns_is_refused(line):
    with pytest.raises(InputError) as raised:
        read(f"a O\n\n{line}\n")
    assert str(raised.value) == (
        f"t.conll, line 3: expected a token and its tag, found {line.strip()!r};"
        " put a space or a tab between the two, and a blank line between sentences"
    )


def test_rows_before_a_broken_line_are_given():
    Path("t.conll").write_bytes(b"a O\n\nb\n")
    rows = conll_rows(Path("t.conll"))
    assert next(rows)[0]["tokens"] == ["a"]
    with pytest.raises(InputError):
        next(rows)


def test_nothing_but_structure_has_no_rows():
    assert read("") == read("\n \n") == read("-DOCSTART- O\n\n-DOCSTART- O\n") == read("# newdoc\n") == []


def test_one_row_is_in_memory_at_a_time():
    path = Path("t.conll")
    path.write_bytes(b"-DOCSTART- O\n\n" + (b"word O\n" * 100 + b"\n-DOCSTART- O\n") * 500)
    tracemalloc.start()
    assert sum(1 for _ in conll_rows(path)) == 500
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000 < path.stat().st_size
