"""Tables of text: what is read of which bytes, what is said of it, and what is asked instead."""

import pytest

from torch_linformer.data.reading import delimited
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.errors import InputError

AS_TEXT = 'quotes (") were read as plain text; if that is wrong, add --quoting quotes'
SPACED = "spaces between a delimiter and a cell are left out"
NO_HEADER = "no header (its first row looks like the others); columns are called 1 to 2; --header takes it for one"
INDEX = "column 1 has no name and counts the rows: left out"
AS_ASKED = NO_HEADER.replace("its first row looks like the others", "as asked")
ONE = "no delimiter found: one column"
LINES = "\n".join(f"line {number}, so far" for number in range(20))  # each would be a row of two cells
CLOSE = LINES.replace(", ", ",")
ROWS = "".join(f"row {number}\ta\n" for number in range(30))
QUOTED = "".join(f'"well {number}, so far",a\n' for number in range(9))


def divided(mark, word):
    return f"cells are divided by a {word} ({mark!r}); --delimiter names another"


# What a file holds, options; the names of the columns and the rows, or how many, and what is said.
READ = {
    "comma": ("text,label\na;|b,c\n", {}, "text~label / a;|b~c", []),
    "tab": ("text\tlabel\na;|b\tc\n", {"suffix": ".TSV"}, "text~label / a;|b~c", []),
    "semicolon": ("text;label\nso, far;a\n", {}, "text~label / so, far~a", [divided(";", "semicolon")]),
    "tab csv": ("text\tlabel\nso\ta\n", {}, "text~label / so~a", [divided("\t", "tab")]),
    "bar": ("text|label\nso|a\n", {}, "text~label / so~a", [divided("|", "bar")]),
    "comma tsv": ("text,label\nso,a\n", {"suffix": ".tsv"}, "text~label / so~a", [divided(",", "comma")]),
    "whole rows": ("text,more;label\na, b, c;x\nd;y\n", {}, "text,more~label x 2", [divided(";", "semicolon")]),
    "both fit, one is usual": ("text,a;label\nx,b;1\ny,c;2\n", {}, "text~a;label x 2", []),
    "breaks of Unicode": ("text,label\n" + "one\u2028two\x85\x0cthree,a\n" * 3, {}, "text~label x 3", []),
    "Excel": ("sep=;\r\ntext;label\r\nso, far;a\r\n", {}, "text~label / so, far~a", None),
    "Excel, quoted": ('\ufeff"SEP=;"\ntext;label\nso, far;a\n', {}, "text~label / so, far~a", None),
    "one column": ("text\nHello, world\nhow; are, you\n", {}, "text / Hello, world / how; are, you", [ONE]),
    "one column, quotes": ('text\n"Hello, world"\nfine\n', {}, "text / Hello, world / fine", [ONE]),
    "one column, named": ("a, or so\nfine\nd, e\n", {"delimiter": "none"}, "a, or so / fine / d, e", []),
    "named": ("text~label\na~b\n", {"delimiter": "~"}, "text~label / a~b", []),
    "blank lines, quotes, lines": (
        'text,label\n"first, one",a\n\n"second ""two""\nlines",b\n',
        {},
        'text~label / first, one~a / second "two"\nlines~b',
        [],
    ),
    "windows": ('\ufefftext,label\r\n"a, b",c\r\nd,e', {}, "text~label / a, b~c / d~e", []),
    "backslash": (
        'text,label\n"say \\"hi\\", he said",a\n"so, b",c\n',
        {},
        'text~label / say "hi", he said~a / so, b~c',
        [],
    ),
    "quotes as text": (
        'text\tlabel\n"Never,\ta\nhe said\tb\n5" 6"\tc\n',
        {"suffix": ".tsv"},
        'text~label / "Never,~a / he said~b / 5" 6"~c',
        [AS_TEXT],
    ),
    "a quotation over rows": (
        f'text\tlabel\n{ROWS}"open\ta\n{ROWS}closed"\tb\n',
        {"suffix": ".tsv"},
        "text~label x 62",
        [AS_TEXT],
    ),
    "as asked": ('id,text\n1,"x\n2,y"\n', {"quoting": "none"}, 'id~text / 1~"x / 2~y"', []),
    "lines of cells": (f'text,label\n"{LINES}\nso on, and on",a\n' * 1 + f'"{LINES}",b\n', {}, "text~label x 2", []),
    "lines that are rows": (
        "text,label\n" + "".join(f'"{LINES}\nend",{label}\n' for label in "abcd"),
        {},
        "text~label x 4",
        [],
    ),
    "a delimiter within quotes": ("".join(f'"{CLOSE}";{label}\n' for label in "abab"), {}, "1~2 x 4", None),
    "no header, lines": ("".join(f'"so\nfar, and; on\ttoo\n";{label}\n' for label in "abab"), {}, "1~2 x 4", None),
    "long cells of one column": ("".join(f'"{LINES}\n\n{number}"\n' for number in range(5)), {}, "1 x 5", None),
    "no header, numbers": ("5,really good\n3,not so good\n5,good again\n", {}, "1~2 x 3", [NO_HEADER]),
    "no header, label": ("pos,first\nneg,second\npos,third\nneg,fourth\npos,fifth\n", {}, "1~2 x 5", [NO_HEADER]),
    "no header, sentence": ("a long sentence that nobody would call so,a\nanother,b\n", {}, "1~2 x 2", [NO_HEADER]),
    "no header, long": (f"{'x' * 65},a\nanother,b\n", {}, "1~2 x 2", [NO_HEADER]),
    "no header, missing": ("a long sentence that nobody would call so,N/A\nanother,5\n", {}, "1~2 x 2", [NO_HEADER]),
    "no header, asked": ("text,label\na,b\n", {"header": False}, "1~2 / text~label / a~b", [AS_ASKED]),
    "header, asked": ("5,good\n3,bad\n", {"header": True}, "5~good / 3~bad", []),
    "header above numbers": ("stars,review\n5,good\n3,bad\n", {}, "stars~review / 5~good / 3~bad", []),
    "header of numbers": ("2019,2020\nx,y\n", {}, "2019~2020 / x~y", []),
    "header, usual name": ("text,5\na,7\n", {}, "text~5 / a~7", []),
    "header alone": ("a,b\n", {}, "", []),
    "header, other columns": ("star,star sign\nx,star\ny,star\n", {}, "star~star sign x 2", []),
    "header, a question": (
        '"How likely are you to come again, all in all?",why\n5,good\n3,bad\n',
        {},
        "How likely are you to come again, all in all?~why x 2",
        [],
    ),
    "index": (",text,label\n0,a,x\n1,b,y\n2,c,x\n", {}, "text~label / a~x / b~y / c~x", [INDEX]),
    "index of R": ('"text","label"\n"1","a","x"\n"2","b","y"\n', {}, "text~label / a~x / b~y", [INDEX]),
    "end of each row": ("id,text,label\n7,a,x,\n9,b,y,\n", {}, "id~text~label / 7~a~x / 9~b~y", []),
    "empty column": ("text,label,\na,x,\nb,y,\n", {}, "text~label / a~x / b~y", []),
    "no name": ("text,,label\na,note,x\nb,,y\n", {}, "text~2~label / a~note~x / b~~y", []),
    "one name twice below": ("text\na\ntext\n", {}, "text / a / text", [ONE]),
    "spaces, quotes": (
        'text, label\n"so, far", "a"\n"and on", "b"\n',
        {},
        "text~label / so, far~a / and on~b",
        [SPACED],
    ),
    "spaces, all whole": (
        'text,label\n"so far", "a"\n"and on", "b"\n',
        {},
        "text~label / so far~a / and on~b",
        [SPACED],
    ),
    "spaces": ("text, label\nso far, a\nand on, b\n", {}, "text~label / so far~a / and on~b", [SPACED]),
    "spaces, named": ("text; label\nso, far; a\n", {"delimiter": "semicolon"}, "text~label / so, far~a", [SPACED]),
    "spaces in some": ("text,label\nso far, a\nand on,b\n", {}, "text~label / so far~ a / and on~b", []),
    "spaces in quotes": (
        'text,label\nso far,a\n"she said ""a, b""",b\n',
        {},
        'text~label / so far~a / she said "a, b"~b',
        [],
    ),
    "spaces of one column": ("text\n so far\n and on\n", {}, "text /  so far /  and on", [ONE]),
    "spaces, quotes as text": ('text,label\n"so far", "a"\n', {"quoting": "none"}, 'text~label / "so far"~ "a"', []),
    "no rows": ("", {}, "", None),
    "blank": ("\n\n", {}, "", None),
    "Excel, no rows": ("sep=;\n", {}, "", None),
    "a book": (f"text\n{'word ' * 200000}\n", {}, "text x 1", [ONE]),
}

# What a file holds, options; the texts of the rows that can be read, and how the problems begin.
TWO = "expected 2 cells as in the header, found"
REFUSED = {
    "two delimiters": (
        "text;a|label\nx;b|1\ny;c|2\n",
        {},
        "",
        ["all rows are whole divided by ';' and by '|': name the right one with --delimiter"],
    ),
    "a name with a delimiter": (
        "text, or so\nfine\nnone\n",
        {},
        "",
        ["comes out as one column, named 'text, or so': --delimiter comma divides it and names the rows"],
    ),
    "another delimiter": (
        "text, or so\nfine\nnone\n",
        {"delimiter": "semicolon"},
        "",
        ["comes out as one column, named 'text, or so': --delimiter comma"],
    ),
    "quotes that hold many lines": (
        'id,text\n1,"x\n2,y"\n3,"z\n4,q"\n',
        {},
        "",
        ["all rows are as whole either way: 3 rows where quotes hold cells together, 5 where they are text: name"],
    ),
    "a row that quotes swallow": (
        'text\tlabel\n"open\ta\n' + ROWS[:48] + 'closed"\tb\n' + '"as it is"\tc\n' * 9,
        {"suffix": ".tsv"},
        "",
        ["all rows are as whole either way"],
    ),
    "header in the second row": (
        "Reviews of March,\ntext,label\ngood,a\nbad,b\n",
        {},
        "",
        ["row 2, 'text, label', has names of columns; remove what stands above it, or say with --header or"],
    ),
    "header below a title": (
        "Reviews of March\n\ntext,label\ngood,a\n",
        {},
        "",
        ["row 2, 'text,label', has names of columns"],
    ),
    "empty first row": (
        ",\ntext,label\ngood,a\n",
        {},
        "",
        ["the first row has only empty cells; remove what stands above"],
    ),
    "one name twice": ("text,label,text\na,b,c\n", {}, "", ["two columns are named 'text'; rename one of them"]),
    "names of rows": (
        '"text","label"\n"anna","a","x"\n"bo","b","y"\n',
        {},
        "",
        ["2 names of columns above rows of 3 cells: put quotes around cells that hold the delimiter, name the column"],
    ),
    "delimiter in all texts": (
        "label,text\nx,well, so\ny,on, and\n",
        {},
        "",
        ["2 names of columns above rows of 3 cells: put quotes"],
    ),
    "ragged": (
        'text,label\n"two\nlines",a\n\nyes, no,b\nshort\nfine,c\nso,d\n',
        {},
        "two\nlines / fine / so",
        [
            f"row 2 (line 5): {TWO} 3; put quotes around cells that hold the delimiter",
            f"row 3 (line 6): {TWO} 1; write empty cells too",
        ],
    ),
    "after the line for Excel": ("sep=;\ntext;label\na;x\nb\n", {}, "a", [f"row 2 (line 4): {TWO} 1"]),
    "a broken quote": (
        'text,label\n"a, b",x\n"c"d,y\n"e, f",z\n"g, h",z\n',
        {},
        "a, b / e, f / g, h",
        ["row 2 (line 3): ',' expected after '\"'; check the quotes there (one within a quoted cell is doubled)"],
    ),
    "a broken quote, as asked": (
        'text,label\n"a",x\n"c"d,y\n',
        {"quoting": "quotes"},
        "a",
        ["row 2 (line 3): ',' expected after '\"'; check the quotes there (one within a quoted cell is doubled), or"],
    ),
    "one broken quote in many": (
        f'text,label\n{QUOTED}"on, "and" on",b\n{QUOTED}',
        {},
        None,
        ["row 10 (line 11): ',' expected after"],
    ),
    "the same without a header": (
        f'{QUOTED}"on, "and" on",b\n{QUOTED}',
        {},
        None,
        ["row 10 (line 10): ',' expected after"],
    ),
    "long cells, one row too long": (
        "text,label\n" + f'"{LINES}",a\n' * 4 + f'"{LINES}",e,f\n' + f'"{LINES}",a\n' * 4,
        {},
        None,
        [f"row 5 (line 101): {TWO} 3"],
    ),
    "long cells, one broken": (
        "text,label\n" + f'"{LINES}",a\n' * 4 + f'"{LINES}",e\n'.replace("15, so", '15 "so" '),
        {},
        None,
        ["row 5 (line 97): ',' expected after"],
    ),
    "a header longer than the rows": (
        "text,label\nfine\nso far\n",
        {"delimiter": "comma"},
        "",
        [f"row 1 (line 2): {TWO} 1", f"row 2 (line 3): {TWO} 1"],
    ),
    "the header again": (
        "\ufefftext,label\na,x\n\ufefftext,label\nb,y\n",
        {},
        "a / b",
        ["row 2 (line 3): names the columns again; remove the line"],
    ),
    "in another order": (
        "text,label\na,x\nlabel,text\ny,b\n",
        {},
        "a / y",
        ["row 2 (line 3): names the columns again; remove the line, or divide the file there"],
    ),
}


def outcome_of(write, read, content, options):
    options = dict(options)
    path = write(f"t{options.pop('suffix', '.csv')}", content)
    return path, read(path, **options)


@pytest.mark.parametrize("name", READ)
def test_what_is_read(write, read, name):
    content, options, expected, notes = READ[name]
    path, outcome = outcome_of(write, read, content, options)
    assert outcome.problems == []
    names = "~".join(outcome.rows[0]) if outcome.rows else ""
    if " x " in expected:
        assert f"{names} x {len(outcome.rows)}" == expected
    else:
        assert " / ".join([names, *("~".join(row.values()) for row in outcome.rows)]) == expected
    assert outcome.places == [f"{path}, row {number + 1}" for number in range(len(outcome.rows))]
    assert notes is None or outcome.notes == [f"{path}: {note}" for note in notes]


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(write, read, name):
    content, options, texts, problems = REFUSED[name]
    path, outcome = outcome_of(write, read, content, options)
    assert texts is None or " / ".join(row["text"] for row in outcome.rows) == texts
    assert len(outcome.problems) >= len(problems) > 0
    for found, problem in zip(outcome.problems, problems, strict=False):
        assert found.removeprefix(f"{path}").lstrip(":, ").startswith(problem)


def test_a_question_is_answered_by_its_option(write, read):
    bars = write("b.csv", "text;a|label\nx;b|1\ny;c|2\n")
    assert read(bars, delimiter="bar").rows[0] == {"text;a": "x;b", "label": "1"}
    quotes = write("q.csv", 'id,text\n1,"x\n2,y"\n3,"z\n4,q"\n')
    assert [row["text"] for row in read(quotes, quoting="quotes").rows] == ["x\n2,y", "z\n4,q"]
    assert len(read(quotes, quoting="none").rows) == 4
    title = write("h.csv", "Reviews of March,\ntext,label\ngood,a\n")
    assert read(title, header=True).rows[0] == {"Reviews of March": "text", "2": "label"}


@pytest.mark.parametrize("opened", ["5", '"5'])
def test_all_rows_are_looked_at(write, read, monkeypatch, opened):
    monkeypatch.setattr(delimited, "_CHECKED_ROWS", 10)
    path = write(f"{len(opened)}.tsv", f"text\tlabel\n{ROWS}{opened} inch\ta\n{ROWS}")
    assert len(read(path).rows) == 61 and ([AS_TEXT in note for note in read(path).notes] == [True]) == ('"' in opened)
    path = write("t.csv", "text;more,label\nx;a,b\ny;c,d\ny;c,d\ny;c,d\nz,e\n" + "z,e\n" * 40)
    assert [*read(path).rows[0]] == ["text;more", "label"]


def test_a_changed_file_is_looked_at_again(write, read):
    assert read(write("t.csv", "text,label\na,b\n")).rows == [{"text": "a", "label": "b"}]
    assert read(write("t.csv", "text;label\na;bbb\n")).rows == [{"text": "a", "label": "bbb"}]


def test_a_table_of_a_folder_without_the_column_is_told(write):
    write("data/a.csv", "text,label\n" + "good,x\nbad,y\n" * 2)
    path = write("data/b.csv", "5,good\n3,bad\n5,fine\n")
    with pytest.raises(InputError) as raised:
        load_documents(str(path.parent))
    assert f"3 of 7 rows cannot be read: {path}, row 1: no column 'text'; columns: '1', '2'; " in str(raised.value)


def test_bytes_of_another_encoding_matter_where_they_are_read(write, datasets_cache):
    path = str(write("t.csv", b"text,label,note\nna\xc3\xafve,a,\ncaf\xe9 \xff,b,\nfine,c,\xff\n\xc3\xa9,d,\n"))
    with pytest.raises(InputError) as raised:
        load_documents(path)
    assert str(raised.value) == (
        f"{path}, row 2: holds bytes that are not UTF-8 ('caf\\xe9 \\xff'); "
        "save the file as UTF-8, or name its encoding with --encoding"
    )
    assert load_documents(path, max_errors=1).dataset["text"][:] == ["naïve", "fine", "é"]
    noted = DataOptions(label_column="note")
    with pytest.raises(InputError, match="row 3: holds bytes"):
        load_documents(path, options=noted, max_errors=0)
