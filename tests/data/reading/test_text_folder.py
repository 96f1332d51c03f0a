import pytest

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.plain_texts import TextFolder
from torch_linformer.data.reading.records import TEXT
from torch_linformer.errors import InputError

TABLE = "file,label\na.txt,x\ndeep/b.txt,y\n"


@pytest.fixture
def table(write):
    """A table that names two files beside it, and one more file outside of its folder."""
    write("outside.txt", "secret")
    write("data/a.txt", "first")
    write("data/deep/b.txt", "second")
    return write("data/t.csv", TABLE)


def test_files_that_a_column_names_are_read(table):
    documents = load_documents(str(table))
    assert documents.dataset[:] == {"text": ["first", "second"], "label": ["x", "y"]}
    assert documents.notes[0].endswith(f"; the texts are the files of that name in {table.parent}")
    assert documents.columns == {"text": "file", "label": "label"}


def test_a_folder_may_be_named(table, write):
    elsewhere = write("t.csv", TABLE)
    named = load_documents(str(elsewhere), options=DataOptions(text_folder=str(table.parent)))
    assert named.dataset["text"][:] == ["first", "second"]
    with pytest.raises(InputError, match=r"column 'file' holds names of files, such as 'a\.txt', and .* --text-folder"):
        load_documents(str(elsewhere))  # no file is there
    with pytest.raises(InputError, match=r"^--text-folder nowhere: no such folder$"):
        load_documents(str(elsewhere), options=DataOptions(text_folder="nowhere"))


@pytest.mark.parametrize("is_named", [True, False])
def test_a_file_that_is_missing_is_a_bad_row(table, is_named):
    table.write_text(TABLE + "c.txt,y\n")
    named = DataOptions(text_folder=str(table.parent) if is_named else None)
    message = rf"row 3: no file 'c\.txt' in {table.parent}; --text-folder names another folder$"
    with pytest.raises(InputError, match=message):
        load_documents(str(table), options=named)
    documents = load_documents(str(table), options=named, max_errors=1)
    assert documents.dataset["text"][:] == ["first", "second"] and "left out 1 row that" in documents.notes[-1]


@pytest.mark.parametrize("outside", ["../outside.txt", "/etc/hosts", "link.txt", "deep/../../outside.txt"])
def test_what_lies_outside_the_folder_is_not_read(table, outside):
    (table.parent / "link.txt").symlink_to(table.parent.parent / "outside.txt")
    folder = TextFolder(table.parent, NO_OPTIONS)
    assert not folder.holds(outside)
    with pytest.raises(InputError, match=r"^t, row 1: no file "):
        folder.read(outside, "t, row 1")
    table.write_text(f"file,label\n{outside},x\n")
    if outside.endswith(".txt"):
        with pytest.raises(InputError, match=r"holds no such files; --text-folder names the folder that does$"):
            load_documents(str(table))
    else:
        assert load_documents(str(table)).dataset["text"][:] == [outside]


@pytest.mark.parametrize("value", [None, 3, "", "nowhere.txt", "deep", "a\0b", "x" * 300, "漢" * 200])
def test_values_that_name_no_file(table, value):
    folder = TextFolder(table.parent, NO_OPTIONS)
    assert not folder.holds(value) and folder.state(value) is None


def test_short_texts_of_long_characters_are_texts(write):
    """A name of a file has 255 bytes at most, which are fewer characters."""
    path = write("t.csv", f"text\n{'漢字' * 60}\n")
    assert load_documents(str(path), TEXT).dataset["text"][:] == ["漢字" * 60]


def test_a_file_that_has_changed_is_read_again(table):
    assert load_documents(str(table)).dataset["text"][0] == "first"
    (table.parent / "a.txt").write_text("now another")
    assert load_documents(str(table)).dataset["text"][0] == "now another"


def test_files_are_read_in_the_encoding_that_is_named(table):
    (table.parent / "a.txt").write_bytes("Ĉiuĵaŭde".encode("iso8859-3"))
    named = DataOptions(encoding="iso8859-3")
    assert load_documents(str(table), options=named).dataset["text"][0] == "Ĉiuĵaŭde"
