import pytest

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.errors import InputError

EXPECTED = [{"text": "first, one", "label": "a"}, {"text": 'second "two"\nlines', "label": "b"}]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv", 'text,label\n"first, one",a\n\n"second ""two""\nlines",b\n'),
        ("t.CSV", '\ufefftext,label\r\n"first, one",a\r\n"second ""two""\nlines",b'),
        ("t.tsv", 'text\tlabel\nfirst, one\ta\n"second ""two""\nlines"\tb\n'),
        ("t.csv", 'text;label\nfirst, one;a\n"second ""two""\nlines";b\n'),
    ],
    ids=["csv", "windows", "tsv", "semicolon"],
)
def test_rows(write, read, name, content):
    path = write(name, content)
    outcome = read(path)
    assert outcome.rows == EXPECTED and outcome.places == [f"{path}, row 1", f"{path}, row 2"]
    assert outcome.problems == [] and outcome.replaced == 0


def test_rows_without_a_header(write, read):
    path = write("t.tsv", "5\tgood\n3\tbad\n5\tfine\n")
    outcome = read(path)
    assert outcome.rows[0] == {"1": "5", "2": "good"} and outcome.places[0] == f"{path}, row 1"
    assert len(outcome.rows) == 3 and "no header" in outcome.notes[0]


def test_columns_that_are_left_out(write, read):
    assert read(write("t.csv", ",text\n0,a\n1,b\n")).rows == [{"text": "a"}, {"text": "b"}]


def test_quotes_that_are_text_are_kept(write, read):
    outcome = read(write("t.tsv", 'text\tlabel\n"Never,\ta\nhe said\tb\n'))
    assert [row["text"] for row in outcome.rows] == ['"Never,', "he said"]
    assert "are read as text" in outcome.notes[0]


def test_ragged_rows_name_the_row_and_both_counts(write, read):
    path = write("t.csv", 'text,label\n"two\nlines",a\n\nyes, no,b\nshort\nfine,c\nso,d\n')
    outcome = read(path)
    assert outcome.problems == [
        f"{path}, row 2 (line 5): expected 2 cells as in the header, found 3; put quotes around cells that hold the "
        "delimiter",
        f"{path}, row 3 (line 6): expected 2 cells as in the header, found 1; write empty cells too",
    ]
    assert [row["label"] for row in outcome.rows] == ["a", "c", "d"]


def test_a_quote_that_breaks_a_row_names_it(write, read):
    path = write("t.csv", 'text,label\n"a, b",x\n"c"d,y\n"e, f",z\n"g, h",z\n')
    outcome = read(path)
    (problem,) = outcome.problems
    assert problem.startswith(f"{path}, row 2 (line 3): ',' expected after ") and problem.endswith(
        "; check the quotes there (one within a quoted cell is doubled)"
    )
    assert [row["text"] for row in outcome.rows] == ["a, b", "e, f", "g, h"]
    (problem,) = read(path, quoting="quotes").problems
    assert problem.endswith(
        "; check the quotes there (one within a quoted cell is doubled), or leave out --quoting quotes"
    )


def test_a_broken_row_of_many_lines_does_not_outvote_the_whole_rows(write, read):
    """Nor do lines that are read as rows after a quote that ends a cell too early."""
    text = "\n".join(f"line {number}" for number in range(50))
    rows = [f'"{text}",{label}\n' for label in "abcd"]
    path = write("cells.csv", f'text,label\n{"".join(rows)}"{text}",e,f\n{"".join(rows)}')
    outcome = read(path)
    assert [row["text"] for row in outcome.rows] == [text] * 8
    assert outcome.problems == [
        f"{path}, row 5 (line 251): expected 2 cells as in the header, found 3; put quotes around cells that hold the "
        "delimiter"
    ]
    broken = text.replace(" 25", '" 25')
    path = write("quote.csv", f'text,label\n{"".join(rows)}"{broken}",e\n{"".join(rows)}')
    outcome = read(path)
    assert [row["text"] for row in outcome.rows if row["text"] == text] == [text] * 8
    assert outcome.problems[0].startswith(f"{path}, row 5 (line 227): ',' expected after")


def test_a_header_that_is_longer_than_the_rows(write, read):
    path = write("t.csv", "text,label\nfine\nso far\nand on\n")
    assert read(path, delimiter="comma").problems == [
        f"{path}, row {row} (line {row + 1}): expected 2 cells as in the header, found 1; write empty cells too"
        for row in (1, 2, 3)
    ]


def test_two_columns_of_one_name_make_no_row(write, read):
    outcome = read(write("t.csv", "text,label,text\n"))
    assert outcome.rows == [] and "two columns are named 'text'; rename one" in outcome.problems[0]


def test_bytes_of_another_encoding_make_a_bad_row(write, read):
    path = write("t.csv", b"text,label\nna\xc3\xafve,a\ncaf\xe9 \xff,b\nfine,c\n")
    outcome = read(path)
    assert [row["text"] for row in outcome.rows] == ["naïve", "fine"]
    assert outcome.problems == [
        f"{path}, row 2: holds bytes that are not UTF-8 ('caf\\xe9 \\xff'); "
        "save the file as UTF-8, or name its encoding with --encoding"
    ]


@pytest.mark.parametrize("content", ["", "text,label\n", "\n\n"])
def test_empty_tables_have_no_rows(write, read, content):
    assert read(write("t.csv", content))[:3] == ([], [], [])


def test_a_cell_may_be_a_book(write, read):
    book = "word " * 200_000
    assert read(write("t.csv", f"text\n{book}\n")).rows == [{"text": book}]


def test_a_header_that_comes_again_is_no_row(write, read):
    path = write("t.csv", "\ufefftext,label\na,x\n\ufefftext,label\nb,y\ntext,label\n")
    outcome = read(path)
    assert outcome.rows == [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    assert outcome.places == [f"{path}, row 1", f"{path}, row 3"]
    assert outcome.notes == [f"{path}: left out 2 rows with the names of the columns again"]
    other = write("o.csv", "text,label\na,x\nlabel,text\ny,b\n")
    assert read(other).problems == [
        f"{other}, row 2 (line 3): names the columns in another order; divide the file there"
    ]
    assert read(write("one.csv", "text\na\ntext\n")).rows == [{"text": "a"}, {"text": "text"}]


def test_rows_after_the_line_for_excel_keep_their_numbers(write, read):
    path = write("t.csv", "sep=;\ntext;label\na;x\nb\n")
    outcome = read(path)
    assert outcome.rows == [{"text": "a", "label": "x"}] and outcome.places == [f"{path}, row 1"]
    assert outcome.problems[0].startswith(f"{path}, row 2 (line 4): expected 2 cells")
    assert read(write("no.csv", "sep=;\n")).rows == []


def test_a_table_of_a_folder_without_the_column_is_told(write):
    write("data/a.csv", "text,label\n" + "good,x\nbad,y\n" * 2)
    path = write("data/b.csv", "5,good\n3,bad\n5,fine\n")
    with pytest.raises(InputError) as raised:
        load_documents(str(path.parent))
    assert f"3 of 7 rows cannot be read: {path}, row 1: no column 'text'; columns: '1', '2'; " in str(raised.value)


def test_bad_rows_are_counted_and_the_first_three_named(write):
    lines = "".join(f"text {number},a\n" for number in range(9)) + "short\n" * 4
    path = str(write("t.csv", f"text,label\n{lines}"))
    with pytest.raises(InputError) as raised:
        load_documents(path, max_errors=3)
    message = str(raised.value)
    assert message.startswith(
        f"{path}: 4 of 13 rows cannot be read: {path}, row 10 (line 11): expected 2 cells as in the header, found 1"
    )
    assert message.count("expected 2 cells") == 3 and message.endswith("; and 1 more; --max-errors 4 leaves them out")
    documents = load_documents(path, max_errors=4)
    assert len(documents.dataset) == 9
    assert documents.notes[-1].startswith("left out 4 rows that cannot be read: ")
    assert documents.notes[-1].count("expected 2 cells") == 3


def test_options_reach_the_table(write):
    path = str(write("t.csv", "5~good, so\n3~bad\n"))
    options = DataOptions(delimiter="~", header=False, text_column="2", label_column="1")
    assert load_documents(path, options=options).dataset[:] == {"text": ["good, so", "bad"], "label": ["5", "3"]}
