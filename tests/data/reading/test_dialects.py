import pytest

from torch_linformer.data.reading import dialects
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.dialects import ONE_CELL, Quoting, divide, find_dialect
from torch_linformer.errors import InputError

PLAIN, QUOTED, ESCAPED = Quoting(False), Quoting(True), Quoting(True, escaped=True)
SPACED_QUOTING = Quoting(True, spaced=True)
AS_TEXT = 'quotes (") are read as text, which makes more rows whole; --quoting names what they are'


@pytest.fixture
def dialect(write):
    """A function: the dialect of a table with that content and its notes, which begin with its path."""

    def find(content, name="t.csv", **options):
        path = write(name, content)
        found = find_dialect(path, DataOptions(**options))
        assert all(note.startswith(f"{path}: ") for note in found.notes)
        return found, [note.removeprefix(f"{path}: ") for note in found.notes]

    return find


def refusal(dialect, content, name="t.csv", **options):
    with pytest.raises(InputError) as raised:
        dialect(content, name, **options)
    return str(raised.value)


# Delimiters


@pytest.mark.parametrize(
    ("name", "mark", "word"),
    [("t.csv", ";", "semicolon"), ("t.csv", "\t", "tab"), ("t.csv", "|", "bar"), ("t.tsv", ",", "comma")],
)
def test_another_delimiter_than_the_usual_is_told(dialect, name, mark, word):
    found, notes = dialect(f"text{mark}label\nso far{mark}a\nand on{mark}b\n", name)
    assert found.delimiter == mark and found.names == ("text", "label") and found.header
    assert notes == [f"cells are divided by a {word} ({mark!r}); --delimiter names another"]


@pytest.mark.parametrize(("name", "mark"), [("t.csv", ","), ("t.tsv", "\t"), ("t.TSV", "\t")])
def test_the_usual_delimiter_is_not_told(dialect, name, mark):
    assert dialect(f"text{mark}label\na;|b{mark}c\n", name)[1] == []


def test_the_delimiter_that_makes_all_rows_whole(dialect):
    assert dialect("text,more;label\na, b, c;x\nd;y\n")[0].delimiter == ";"
    assert dialect("text,a;label\nx,b;1\ny,c;2\n")[0].delimiter == ","  # both do, and one is usual
    assert dialect("text,label\nx,y\nz\nu,v\nw,x\n")[0].delimiter == ","  # one row is not, most are


def test_a_line_break_is_one_of_the_file_and_not_of_unicode(dialect):
    found, notes = dialect("text,label\n" + "one\u2028two\x85\x0cthree,a\n" * 3)
    assert found.names == ("text", "label") and found.delimiter == "," and notes == []


@pytest.mark.parametrize("line", ["sep=;", "SEP=;", '"sep=;"', "\ufeffsep=;"])
def test_the_line_that_tells_excel_the_delimiter(dialect, line):
    found, notes = dialect(f"{line}\r\ntext;label\r\nso, far;a\r\n")
    assert found.delimiter == ";" and found.names == ("text", "label") and notes == []


def test_two_unusual_delimiters_that_fit_are_a_question(dialect):
    content = "text;a|label\nx;b|1\ny;c|2\n"
    assert refusal(dialect, content).endswith(
        "t.csv: all rows are whole divided by ';' and by '|': name the right one with --delimiter"
    )
    assert dialect(content, delimiter="bar")[0].names == ("text;a", "label")


@pytest.mark.parametrize(
    "content", ["text\nHello, world\nhow; are, you\n", 'text\n"Hello, world"\nfine\n', "text\nfine\n"]
)
def test_a_table_of_one_column(dialect, content):
    found, notes = dialect(content)
    assert found.delimiter == ONE_CELL and found.names == ("text",)
    assert notes == ["no delimiter found: one column"]


def test_names_of_rows_do_not_make_the_header_ragged(dialect):
    """Divided by semicolons as R writes it, the header has a cell less; by bars all rows have two, cut at quotes."""
    found, _ = dialect('"a|b";"c"\n"1";"x|y";"u"\n"2";"z|w";"v"\n')
    assert found.delimiter == ";" and found.names == (None, "a|b", "c")


@pytest.mark.parametrize("rows", ["fine\nnothing here\nstill none\n", "c, d\ne, f, g\nh, i, j, k\nl\n"])
def test_a_delimiter_that_leaves_most_rows_ragged_is_none(dialect, rows):
    """The name of the one column may hold it, which is a question."""
    assert dialect(f"what is to be said of them, so far\n{rows}")[0].delimiter == ONE_CELL
    content = f"text, or so\n{rows}"
    assert refusal(dialect, content).endswith(
        "t.csv: comes out as one column, named 'text, or so': --delimiter comma divides it and names the rows that do "
        "not fit, --delimiter none takes it for one column"
    )
    assert "--delimiter comma divides it" in refusal(dialect, content, delimiter="semicolon")
    found, notes = dialect(content, delimiter="none")
    assert found.names == ("text, or so",) and notes == []
    assert dialect(content, delimiter="comma")[0].names == ("text", " or so")


def test_a_delimiter_may_be_named(dialect):
    found, notes = dialect("text~label\na~b\n", delimiter="~")
    assert found.delimiter == "~" and found.names == ("text", "label") and notes == []


# Quotes


def test_quotes_that_hold_cells_together(dialect):
    found, notes = dialect('text,label\n"one, two",a\n"three\nlines",b\n"said ""so""",c\n')
    assert found.quoting == QUOTED and notes == []


def test_quotes_are_text_where_that_makes_more_rows_whole(dialect):
    found, notes = dialect('text\tlabel\n"Never,\ta\nhe said\tb\n5" or 6"\tc\n', "t.tsv")
    assert found.quoting == PLAIN and notes == [AS_TEXT]


def test_quotes_are_text_where_both_make_all_rows_whole_but_few_cells_begin_with_one(dialect):
    """A quotation that begins in one row and ends in another."""
    rows = "".join(f"row {number}\ta\n" for number in range(8))
    found, notes = dialect(f'text\tlabel\n{rows}"open\ta\n{rows}closed"\tb\n', "t.tsv")
    assert found.quoting == PLAIN and notes == [AS_TEXT]


def test_quotes_around_many_cells_hold_them_together_though_all_lines_are_whole(dialect):
    content = 'id,text\n1,"x\n2,y"\n3,"z\n4,q"\n'
    assert dialect(content)[0].quoting == QUOTED
    found, notes = dialect(content, quoting="none")
    assert found.quoting == PLAIN and notes == []  # as asked
    few = content + "".join(f"{number},w\n" for number in range(5, 15))
    assert dialect(few)[0].quoting == PLAIN


def test_a_quoted_cell_of_many_lines_is_not_taken_for_rows(dialect):
    verse = "\n".join(f"line {number}" for number in range(8))
    assert dialect(f'text,label\n"{verse}",a\n"{verse}",b\n')[0].quoting == QUOTED


def test_rows_that_a_quote_swallows_are_lost(dialect):
    """With quotes all rows are whole as well, but a cell holds lines that would each be one."""
    rows = "".join(f"row {number}\ta\n" for number in range(5))
    around = '"as it should be"\tc\n' * 9
    found, _ = dialect(f'text\tlabel\n"open\ta\n{rows}closed"\tb\n{around}', "t.tsv")
    assert found.quoting == PLAIN


def test_a_backslash_before_a_quote(dialect):
    found, notes = dialect('text,label\n"say \\"hi\\", he said",a\n"plain, so",b\n')
    assert found.quoting == ESCAPED and notes == []


@pytest.mark.parametrize("opened", ["5", '"5'])
def test_a_quote_after_many_rows_is_seen_too(dialect, monkeypatch, opened):
    monkeypatch.setattr(dialects, "_CHECKED_ROWS", 10)
    rows = "".join(f"row {number}\ta\n" for number in range(40))
    found, _ = dialect(f"text\tlabel\n{rows}{opened} inch\ta\n{rows}", f"{len(opened)}.tsv")
    assert found.quoting == (PLAIN if '"' in opened else QUOTED)


def test_a_delimiter_of_the_first_rows_alone_is_none(dialect, monkeypatch):
    monkeypatch.setattr(dialects, "_CHECKED_ROWS", 1)
    assert dialect("text;more,label\nx;a,b\ny;c,d\ny;c,d\ny;c,d\nz,e\n")[0].delimiter == ","
    assert dialect("text,label\n" + "x\ny\n" * 9, delimiter="comma")[0].delimiter == ","  # as it is named


# Long cells; tests/fuzz reads many more of them

LINES = "\n".join(f"line {number}, so far" for number in range(20))  # each would be a row of two cells


@pytest.mark.parametrize("mark", [",", ";", "\t"])
def test_the_delimiter_may_stand_after_the_first_line_where_no_header_does(dialect, mark):
    text = "so\nfar, and; on\ttoo\n"
    found, _ = dialect("".join(f'"{text}"{mark}{label}\n' for label in "abab"))
    assert found.delimiter == mark and found.quoting == QUOTED and found.names == ("1", "2")


@pytest.mark.parametrize("last", ["so on, and on", "end"], ids=["lines", "rows"])  # with "end" all lines are rows
def test_lines_of_a_cell_that_would_each_be_a_row(dialect, last):
    text = f"{LINES}\n{last}"
    assert dialect("text,label\n" + "".join(f'"{text}",{label}\n' for label in "abcd"))[0].quoting == QUOTED
    few = f'text,label\n"{text}",a\n'
    assert dialect(few, "few.csv")[0].quoting == (PLAIN if last == "end" else QUOTED)


def test_a_delimiter_within_quotes_that_hold_most_lines_is_none(dialect):
    """Divided by commas, with quotes as text, each line is a row of two cells."""
    assert dialect("".join(f'"{LINES}";{label}\n' for label in "abcd"))[0].delimiter == ";"


def test_quotes_that_hold_most_lines_and_lose_more_are_a_question(dialect):
    rows = "".join(f'"{LINES}",{label}\n' for label in "abcd")
    broken = LINES.replace("19, so", '19 "so" ')
    assert refusal(dialect, f'text,label\n{rows}"{broken}",e\n').endswith(
        "t.csv: 6 rows (20 lines in none of them) where quotes hold cells together, 101 rows (4 lines in none of them) "
        "where they are text: name the right way with --quoting"
    )


def test_long_cells_of_one_column(dialect):
    found, _ = dialect("".join(f'"{LINES}\n\n{number}"\n' for number in range(5)))
    assert found.quoting == QUOTED and found.names == ("1",)


# Names of columns


def test_a_first_row_that_looks_like_the_others_is_no_header(dialect):
    found, notes = dialect("5,really good\n3,not so good\n5,good again\n")
    assert not found.header and found.names == ("1", "2")
    assert notes == [
        "no header (its first row looks like the others); columns are called 1 to 2; --header takes it for one"
    ]


@pytest.mark.parametrize(
    "content",
    [
        "pos,first\nneg,second\npos,third\nneg,fourth\npos,fifth\n",  # a value that comes again
        "a long sentence that nobody would call a column,a\nanother,b\n",
        f"{'x' * 65},a\nanother,b\n",
        "a long sentence that nobody would call a column,N/A\nanother,5\n",
    ],
    ids=["label", "sentence", "long word", "missing number"],
)
def test_first_rows_that_are_no_header(dialect, content):
    assert not dialect(content)[0].header


@pytest.mark.parametrize(
    "content",
    [
        "stars,review\n5,good\n3,bad\n",
        "2019,2020\nx,y\n",  # numbers above none
        "text,5\na,7\n",  # a usual name
        "a,b\n",  # nothing to compare it with
        "star,star sign\nx,star\ny,star\n",  # each in another column
        '"How likely are you to come again, all in all?",why\n5,good\n3,bad\n',  # a question above numbers
    ],
)
def test_first_rows_that_are_a_header(dialect, content):
    assert dialect(content)[0].header


def test_a_second_row_with_the_names_of_columns_is_a_question(dialect):
    content = "Reviews of March,\ntext,label\ngood,a\nbad,b\n"
    assert refusal(dialect, content).endswith(
        "t.csv: row 2, 'text, label', has names of columns; remove what stands above it, "
        "or say with --header or --no-header what the first row is"
    )
    for above in ("Reviews of March,\nby Ann,\n", "Reviews of March\n\n", "# exported\n"):  # which has no delimiter
        assert "has names of columns; remove what stands above it" in refusal(dialect, above + "text,label\ngood,a\n")
    assert dialect(content, header=True)[0].names == ("Reviews of March", "2")
    assert "the first row has only empty cells; remove what" in refusal(dialect, ",\ntext,label\ngood,a\n")


def test_a_header_may_be_asked_for_or_not(dialect):
    found, notes = dialect("5,good\n3,bad\n", header=True)
    assert found.header and found.names == ("5", "good") and notes == []
    found, notes = dialect("text,label\na,b\n", header=False)
    assert not found.header and found.names == ("1", "2")
    assert notes == ["no header (as asked); columns are called 1 to 2; --header takes it for one"]


def test_a_column_without_a_name_that_counts_the_rows_is_left_out(dialect):
    found, notes = dialect(",text,label\n0,a,x\n1,b,y\n2,c,x\n")
    assert found.names == (None, "text", "label")
    assert notes == ["column 1 has no name and counts the rows: left out"]


def test_names_of_rows_as_r_writes_them(dialect):
    found, notes = dialect('"text","label"\n"1","a","x"\n"2","b","y"\n')
    assert found.names == (None, "text", "label") and found.header
    assert notes == ["column 1 has no name and counts the rows: left out"]
    assert dialect('"text","label"\n"anna","a","x"\n"bo","b","y"\n')[0].names == ("1", "text", "label")


def test_a_delimiter_at_the_end_of_each_row_makes_no_column(dialect):
    assert dialect("id,text,label\n7,a,x,\n9,b,y,\n")[0].names == ("id", "text", "label", None)


def test_names_of_rows_differ(dialect):
    """Where the first cells do not, texts hold a delimiter: the rows are too long, not the header too short."""
    assert dialect("label,text\nx,well, so far\ny,on, and on\nx,up, and up\n")[0].names == ("label", "text")
    texts = "'so well that I want it again, yes',a\n'so bad that I cannot say how much, no',b\n"
    assert dialect(f"text,label\n{texts}")[0].names == ("text", "label")


def test_one_broken_quote_does_not_halve_the_texts(dialect):
    """Read as text, the quotes make rows that are one cell longer than the header, as names of rows would."""
    rows = "".join(f'"well {number}, so far",a\n' for number in range(9))
    found, _ = dialect(f'text,label\n{rows}"on, "and" on",b\n{rows}')
    assert found.quoting == QUOTED and found.names == ("text", "label")
    found, _ = dialect(f'{rows}"on, "and" on",b\n{rows}')
    assert found.quoting == QUOTED and found.names == ("1", "2")


def test_other_columns_without_a_name(dialect):
    assert dialect("text,,label\na,note,x\nb,,y\n")[0].names == ("text", "2", "label")
    found, notes = dialect("text,label,\na,x,\nb,y,\n")  # a delimiter at the end of each line
    assert found.names == ("text", "label", None) and notes == []


def test_two_columns_of_one_name_are_refused(dialect):
    assert refusal(dialect, "text,label,text\na,b,c\n").endswith(
        "t.csv: two columns are named 'text'; rename one of them"
    )


# Cells


def test_cells_and_the_last_line_of_each_row():
    lines = ["a,b\n", "\n", '"c\n', 'd",e\n']
    assert list(divide(lines, ",", QUOTED)) == [(1, ["a", "b"]), (4, ["c\nd", "e"])]
    assert list(divide(lines, ",", PLAIN)) == [(1, ["a", "b"]), (3, ['"c']), (4, ['d"', "e"])]
    assert list(divide(['"a \\"b\\"",c\n'], ",", ESCAPED)) == [(1, ['a "b"', "c"])]


def test_a_broken_row_costs_its_line():
    (_, first), (line, problem), (_, last) = divide(["a,b\n", '"c"d,e\n', "f,g\n"], ",", QUOTED)
    assert (first, line, last) == (["a", "b"], 2, ["f", "g"]) and "expected after" in str(problem)


def test_a_changed_file_is_looked_at_again(write):
    path = write("t.csv", "text,label\na,b\n")
    assert find_dialect(path, NO_OPTIONS).delimiter == ","
    write("t.csv", "text;label\na;bbb\n")
    assert find_dialect(path, NO_OPTIONS).delimiter == ";"


# Spaces after the delimiter

SPACED = "spaces between a delimiter and a cell are left out"


@pytest.mark.parametrize(
    ("content", "options"),
    [
        ('text, label\n"so, far", "a"\n"and on", "b"\n', {}),
        ('"label", "text"\n"a", "so, far"\n"b", "and on"\n', {}),
        ('text,label\n"so far", "a"\n"and on", "b"\n', {}),  # all rows are whole with the quotes as text, too
        ("text, label\nso far, a\nand on, b\n", {}),
        ("text; label\nso, far; a\nand on; b\n", {"delimiter": "semicolon"}),
    ],
)
def test_spaces_after_the_delimiter_are_left_out_where_they_stand_everywhere(dialect, content, options):
    found, notes = dialect(content, **options)
    assert found.quoting == SPACED_QUOTING and sorted(found.names) == ["label", "text"] and SPACED in notes


@pytest.mark.parametrize(
    "content",
    [
        "text,label\nso far, a\nand on,b\n",  # in some rows
        'text,label\nso far,a\n"she said ""a, b""",b\n',
        'text,label\n"he said, ""a""",a\nso far,b\n',
        "text\n so far\n and on\n",
    ],
)
def test_other_spaces_are_text(dialect, content):
    found, notes = dialect(content)
    assert not found.quoting.spaced and SPACED not in notes


@pytest.mark.parametrize(
    "content", ['text,label\n"so far", "a"\n"and on", "b"\n', "text, label\nso far, a\nand on, b\n"]
)
def test_quotes_that_are_text_keep_the_spaces_before_them(dialect, content):
    found, notes = dialect(content, quoting="none")
    assert found.quoting == PLAIN and SPACED not in notes
    assert found.delimiter == "," and len(found.names) == 2  # and the cells are divided as they were
