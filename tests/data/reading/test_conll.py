import tracemalloc

import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TAGGED
from torch_linformer.data.reading.sources import read_rows
from torch_linformer.errors import InputError

TWO_COLUMNS = "expected a token and its tag, found {!r}; put a space or a tab between the two, and a blank line between"
UNIVERSAL = """\
# sent_id = 1
1-2\tvámonos\t_\t_\t_\t_\t_\t_\t_\t_
1\tvamos\tir\tVERB\t_\t_\t0\troot\t_\t_
2\tnos\tnosotros\tPRON\t_\t_\t1\tobj\t_\t_

# sent_id = 2
1\tal\ta\tADP\t_\t_\t2\tcase\t_\t_
1.1\tmissing\t_\t_\t_\t_\t_\t_\t_\t_
2\tmar\tmar\tNOUN\t_\t_\t0\troot\t_\t_
"""
ENTITIES = "EU NNP I-NP B-ORG\nrejects VBZ I-VP O\n\nPeter NNP I-NP B-PER\n"  # of CoNLL-2003


@pytest.fixture
def parsed(write, read):
    """A function: rows of a file of that content with the numbers of their lines; problems and notes likewise."""

    def parse(content, name="t.conll"):
        path = write(name, content)
        outcome = read(path)
        assert all(told.startswith(str(path)) for told in (*outcome.places, *outcome.problems, *outcome.notes))
        lines = [int(place.removeprefix(f"{path}, line ")) for place in outcome.places]
        problems, notes = (
            [told.removeprefix(str(path)).strip(",: ") for told in some] for some in (outcome.problems, outcome.notes)
        )
        return list(zip(lines, outcome.rows, strict=True)), problems, notes

    return parse


@pytest.fixture
def tokens(parsed):
    """A function: the tokens of each row of a file without problems."""

    def tokens_of(content):
        rows, problems, _ = parsed(content)
        assert problems == []
        return [values["tokens"] for _, values in rows]

    return tokens_of


# Sentences and documents


@pytest.mark.parametrize("name", ["t.conll", "t.iob", "t.iob2", "t.BIO", "t.txt", "t.tsv", "t"])
def test_sentences_end_at_blank_lines(parsed, name):
    rows, problems, notes = parsed("\n\nEU B-ORG\nrejects O\n \t\n\nPeter B-PER\nBlackburn  I-PER", name)
    assert rows == [
        (3, {"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}),
        (7, {"tokens": ["Peter", "Blackburn"], "tags": ["B-PER", "I-PER"]}),
    ]
    assert problems == notes == []


@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_a_file_with_document_lines_has_a_row_for_each_document(parsed, mark):
    content = "-DOCSTART- -X-\n\na O\n\nb B-X\n-DOCSTART-\n-DOCSTART-\tO\n\n\nc O\n\n"
    rows = parsed(mark + content)[0]
    assert rows == [(3, {"tokens": ["a", "b"], "tags": ["O", "B-X"]}), (10, {"tokens": ["c"], "tags": ["O"]})]


def test_what_stands_before_the_first_document_line_is_a_document(tokens):
    assert tokens("a O\n\nb O\n\n-DOCSTART- O\n\nc O\n") == [["a", "b"], ["c"]]


def test_nothing_but_structure_has_no_rows(tokens):
    for content in ("", "\n \n", "-DOCSTART- O\n\n-DOCSTART- O\n", "# newdoc\n"):
        assert tokens(content) == []


# Tokens


def test_columns_between_tabs_may_hold_spaces(parsed):
    assert parsed("10 000\tB-N\t\nand\tO\n")[0] == [(1, {"tokens": ["10 000", "and"], "tags": ["B-N", "O"]})]


def test_white_space_beyond_ascii_belongs_to_the_token(tokens):
    assert tokens("10\u00a0000 O\n\u3000 O\n") == [["10\u00a0000", "\u3000"]]


@pytest.mark.parametrize(
    "comment",
    [
        "# newdoc",
        "#newdoc",
        "# sent_id = 5",
        "#sent_id = 5",
        "# id 5b4d domain=train",
        "# text = Vitamin B-12",
        "# a = O",
        "#\thttp://de.wikipedia.org/wiki/Beispiel [2009-10-17]",  # of GermEval
    ],
)
def test_comments_before_a_sentence_are_no_tokens(parsed, comment):
    rows, problems, _ = parsed(f"{comment}\na O\n\n{comment}\n# newpar\nb O\n")
    assert rows == [(2, {"tokens": ["a"], "tags": ["O"]}), (6, {"tokens": ["b"], "tags": ["O"]})] and problems == []


def test_a_comment_of_several_cells_is_none_of_tokens(parsed):
    rows, problems, _ = parsed("#\thttp://example.org\t[2010]\n1\tAnna\tB-PER\tO\n2\tin\tO\tO\n3\tBonn\tB-LOC\tB-LOC\n")
    assert [values["tokens"] for _, values in rows] == [["Anna", "in", "Bonn"]] and problems == []


def test_a_number_sign_with_a_tag_is_a_token(tokens):
    assert tokens("# O\n# B-X\n# SYM\n#tag O\n\n#\tSYM\n") == [["#", "#", "#", "#tag"], ["#"]]
    assert tokens("# B\n") == [["#"]]
    assert tokens("-DOCSTART- O\na O\n\n# newpar\n# I-X\n") == [["a", "#"]]
    assert tokens("#winning NN\nagain RB\n\n#2 CD\n") == [["#winning", "again"], ["#2"]]


# Columns


def test_a_column_that_counts_the_tokens_holds_no_words(parsed):
    rows, _, notes = parsed("1 EU B-ORG\n2 rejects O\n\n1 Peter B-PER\n2 came O\n")
    assert rows[0] == (1, {"tokens": ["EU", "rejects"], "3": ["B-ORG", "O"], "tags": ["B-ORG", "O"]})
    assert notes == ["3 columns; words from column 2, tags from column 3; --label-column names another"]


def test_numbers_in_a_file_of_two_columns_are_words(tokens):
    assert tokens("1 O\n2 B-X\n") == [["1", "2"]]


def test_universal_dependencies(parsed):
    rows, problems, notes = parsed(UNIVERSAL, "t.conllu")
    assert [(line, values["tokens"], values["tags"]) for line, values in rows] == [
        (3, ["vamos", "nos"], ["VERB", "PRON"]),
        (7, ["al", "mar"], ["ADP", "NOUN"]),  # neither the range of words nor the word that is missing
    ]
    assert rows[0][1]["DEPREL"] == ["root", "obj"] and "ID" not in rows[0][1] and problems == []
    assert notes == ["10 columns; words from column FORM, tags from column UPOS; --label-column names another"]


def test_a_column_of_universal_dependencies_may_be_named(write):
    path = str(write("t.conllu", UNIVERSAL))
    found = load_documents(path, TAGGED, options=DataOptions(label_column="DEPREL"))
    assert found.dataset["label"][:] == [["root", "obj"], ["case", "root"]]


def test_entities_are_told_from_chunks(parsed):
    rows, _, notes = parsed(ENTITIES)
    assert rows[0][1]["tags"] == rows[0][1]["4"] == ["B-ORG", "O"] and rows[0][1]["2"] == ["NNP", "VBZ"]
    assert notes == ["4 columns; words from column 1, tags from column 4; --label-column names another"]


def test_chunks_are_the_tags_where_there_are_no_others(parsed):
    assert parsed("EU B-NP\nrejects B-VP\n")[0] == [(1, {"tokens": ["EU", "rejects"], "tags": ["B-NP", "B-VP"]})]


def test_two_columns_of_tags_are_a_question(write):
    path = str(write("t.conll", "EU B-ORG B-X\nrejects O O\n\nPeter B-PER O\n"))
    message = "'2', '3' could each be the label column; name it with --label-column; columns: 'tokens', '2', '3'"
    with pytest.raises(InputError, match=message):
        load_documents(path, TAGGED)
    documents = load_documents(path, TAGGED, options=DataOptions(label_column="3"))
    assert documents.dataset["label"][:] == [["B-X", "O"], ["O"]]
    assert documents.notes[0] == f"{path}: 3 columns; words from column 1; --label-column names another"


@pytest.mark.parametrize(
    ("text", "is_one"),
    [
        ("EU B-ORG\nrejects O\n", True),
        ("EU NNP B-ORG\nrejects VBZ O\n", True),
        ("# a comment\n\nEU U-ORG\nrejects O\n", True),
        ("EU O\nrejects O\n", False),  # nothing but O
        ("EU NNP\nrejects VBZ\n", False),
        ("one two\nthree four\n", False),
        ("EU B-ORG\n", False),  # one line
        ("EU B-ORG\nrejects\n", False),
        ("text\tlabel\nfine\tO\n", False),
        ("", False),
    ],
)
def test_a_text_that_holds_words_with_tags(write, read, text, is_one):
    (values,) = read(write("t.txt", text)).rows
    assert "tokens" in values if is_one else values == {"text": text}


@pytest.mark.parametrize("name", ["eng.train", "eng.testa", "t.dev", "t.test"])
def test_files_of_corpora_whose_suffix_is_their_part(write, read, name):
    assert read(write(name, "EU B-ORG\nrejects O\n")).rows == [{"tokens": ["EU", "rejects"], "tags": ["B-ORG", "O"]}]


# Lines that cannot be read


@pytest.mark.parametrize("line", ["word", "word\t", "\tO", "-DOC"])
def test_a_line_without_two_columns_is_bad(parsed, line):
    rows, problems, _ = parsed(f"a O\n\n{line}\n\nb O\n")
    assert problems == [f"line 3: {TWO_COLUMNS.format(line.strip())} sentences"]
    assert [values["tokens"] for _, values in rows] == [["a"], ["b"]]


def test_lines_of_another_width_are_bad(parsed):
    rows, problems, _ = parsed("a O\nb\nc O\n\nd O\n\ne O X\nf O\n")
    assert [values["tokens"] for _, values in rows] == [["d"]]  # a sentence is read whole or not at all
    assert problems == [
        f"line 2: {TWO_COLUMNS.format('b')} sentences",
        f"line 7: {TWO_COLUMNS.format('e O X').replace('a token and its tag', '2 columns')} sentences",
    ]


def test_bytes_of_another_encoding_make_a_bad_row(write, datasets_cache):
    path = str(write("t.conll", b"a O\n\ncaf" + b"\xe9 B-X\n\n" + "é O\n\né O\n".encode()))
    with pytest.raises(
        InputError, match=r"line 3: holds bytes that are not UTF-8 \('caf.xe9'\); save the file as UTF-8"
    ):
        load_documents(path, TAGGED)
    assert load_documents(path, TAGGED, max_errors=1).dataset["text"][:] == ["a", "é", "é"]


# Memory


def test_one_row_is_in_memory_at_a_time(write):
    path = write("t.conll", b"-DOCSTART- O\n\n" + (b"word O\n" * 100 + b"\n-DOCSTART- O\n") * 500)
    for _ in range(2):  # the second time without what is imported
        tracemalloc.start()
        assert sum(1 for _ in read_rows([path], NO_OPTIONS, print)) == 500
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 200_000 < path.stat().st_size


@pytest.mark.parametrize(
    ("header", "line"),
    [("token tag", "EU B-ORG"), ("Word\tPOS\tNER\n", "EU\tNNP\tB-ORG"), ("id word ner_tags", "1 EU B-ORG")],
)
def test_names_of_columns_are_no_words(parsed, header, line):
    _, problems, _ = parsed(f"{header}\n{line}\n\n{line}\n")
    assert problems == [f"its first line names the columns ({' '.join(header.split())}); remove the line"]


def test_tags_before_words_are_not_read_as_words(parsed):
    _, problems, _ = parsed("B-PER Ann\nO met\n\nB-PER Bo\n")
    assert problems == ["the first column holds tags; write the word first in each line, and then its tag"]
