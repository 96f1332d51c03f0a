import json
import os
import shutil

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from torch_linformer.data.reading import documents as documents_module
from torch_linformer.data.reading import readers
from torch_linformer.data.reading.corpus import stdlib_documents
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents, quiet
from torch_linformer.data.reading.records import PAIRED, SEVERAL, TEXT
from torch_linformer.errors import InputError

PIECES = (
    "each piece of about 1,000 characters, cut between paragraphs or lines, is a document; for others give a folder of "
    "files, or JSON lines"
)
TABLE = "review,stars\nfirst,5\n,1\nsecond,1\n"


def write(path, content):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


def test_a_table(tmp_path):
    path = write(tmp_path / "my.reviews.csv", TABLE)
    documents = load_documents(path)
    assert documents.dataset[:] == {"text": ["first", "second"], "label": ["5", "1"]}
    assert documents.notes == [
        "texts from column 'review' (by its name), labels from column 'stars' (the only candidate)",
        "skipped 1 document without text",
    ]


def test_documents_lie_on_disk_and_are_read_once(tmp_path, datasets_cache, capfd):
    path = write(tmp_path / "t.csv", TABLE)
    first, again = load_documents(path), load_documents(path)
    assert first.dataset.cache_files and first.dataset.cache_files == again.dataset.cache_files
    assert os.fspath(datasets_cache) in first.dataset.cache_files[0]["filename"]
    assert first.notes == again.notes and again.notes[1] == "skipped 1 document without text"
    assert first.dataset._fingerprint == again.dataset._fingerprint
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("file", sorted(path.name for path in documents_module.READING.rglob("*.py")))
def test_documents_are_read_again_after_a_change_to_any_code_that_reads_them(tmp_path, monkeypatch, file):
    path = write(tmp_path / "t.csv", TABLE)
    before = load_documents(path).dataset.cache_files
    code = shutil.copytree(documents_module.READING, tmp_path / "code")
    monkeypatch.setattr(documents_module, "READING", code)
    assert load_documents(path).dataset.cache_files == before  # wherever the same code lies
    with (code / file).open("a", encoding="utf-8") as stream:
        stream.write("# another line\n")
    assert load_documents(path).dataset.cache_files != before


def test_a_changed_file_is_read_again(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\nold,a\n")
    assert load_documents(path).dataset["text"][0] == "old"
    write(tmp_path / "t.csv", "text,label\nnew,a\n")
    os.utime(path, ns=(0, 1_000_000))  # the same size, another time
    assert load_documents(path).dataset["text"][0] == "new"


def test_other_columns_of_the_same_file(tmp_path):
    path = write(tmp_path / "t.jsonl", json.dumps({"text": "a", "body": "b", "label": 1, "target": 2}))
    one = load_documents(path, options=DataOptions(text_column="text", label_column="label"))
    two = load_documents(path, options=DataOptions(text_column="body", label_column="target"))
    assert (one.dataset[0], two.dataset[0]) == ({"text": "a", "label": "1"}, {"text": "b", "label": "2"})


def test_labels_that_are_not_needed(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\nx,\n")
    documents = load_documents(path, TEXT)
    assert documents.dataset.column_names == ["text"]
    with pytest.raises(InputError, match=r"t\.csv, row 1: no label in column 'label'"):
        load_documents(path)


def test_a_folder(tmp_path):
    write(tmp_path / "a.b" / "neg" / "1.txt", "bäd")
    write(tmp_path / "a.b" / "neg" / "2.txt", " \n")
    write(tmp_path / "a.b" / "pos" / "1.txt", "good")
    documents = load_documents(str(tmp_path / "a.b"))
    assert documents.dataset[:] == {"text": ["bäd", "good"], "label": ["neg", "pos"]}
    assert documents.columns == {} and documents.parts == ()
    notes = [f"files of {tmp_path / 'a.b'}, labeled with the names of their folders", "skipped 1 document without text"]
    assert documents.notes == notes == load_documents(str(tmp_path / "a.b")).notes  # the latter from the cache


def test_files_without_labels(tmp_path):
    write(tmp_path / "flat" / "1.txt", "one")
    book = write(tmp_path / "flat" / "book.txt", "two")
    assert load_documents(str(tmp_path / "flat"), TEXT).dataset["text"][:] == ["one", "two"]
    assert load_documents(book, TEXT).notes == [f"{book}: {PIECES}"]
    for source in (str(tmp_path / "flat"), book):
        with pytest.raises(InputError, match="no labels; put the files of each label into a folder named after"):
            load_documents(source)


def test_parquet(tmp_path):
    path = tmp_path / "t.parquet"
    pq.write_table(pa.table({"label": [1, 0], "extra": [0.5, 0.6], "text": ["a", None]}), path)
    documents = load_documents(str(path))
    assert (
        documents.dataset[:] == {"text": ["a"], "label": ["1"]} and "skipped 1 document without text" in documents.notes
    )


def test_the_standard_library():
    documents = load_documents("stdlib")
    corpus, description = stdlib_documents()
    assert documents.notes == [description]
    assert documents.dataset["label"][:] == [document.values["label"] for document in corpus]
    assert documents.dataset["text"][7] == corpus[7].values["text"]
    assert load_documents("stdlib", TEXT).dataset.column_names == ["text"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("e.csv", "", "e.csv: holds no rows"),
        ("e.csv", "text,label\n", "e.csv: holds no rows"),
        ("e.csv", "text,label\n ,a\n,b\n", "e.csv: no row of the 2 has any text in column 'text'"),
        ("t.csv", "text,label\nx,a\ny, \n", "t.csv, row 2: no label in column 'label'; fill it in"),
        ("t.csv", "text,label\nx,a\ny\n", "t.csv, row 2 (line 3): expected 2 cells"),
        ("t.csv", "text,content,label\nx,y,a\n", "t.csv: 'text', 'content' could each be the text column"),
        ("t.jsonl", '{"text": "x", "label": 1}\n{"text": 3}', "t.jsonl, line 2: column 'text' holds 3, not text"),
        ("t.jsonl", '{"text": "x", "label": 0.5}', "t.jsonl, line 1: column 'label' holds 0.5, no label"),
        ("t.pdf", "%PDF", "t.pdf: not text, nor another known format; known are .csv"),
    ],
)
def test_what_cannot_be_used(tmp_path, name, content, message):
    with pytest.raises(InputError) as raised:
        load_documents(write(tmp_path / name, content))
    assert message in str(raised.value) and "\n" not in str(raised.value)


def test_errors_after_the_sample_are_input_errors_too(tmp_path):
    lines = [json.dumps({"text": "x", "label": 1})] * 150
    path = write(tmp_path / "t.jsonl", "\n".join([*lines, "broken"]))
    for _ in range(2):  # nothing half written is found in the cache
        with pytest.raises(InputError, match=r"t\.jsonl, line 151: not valid JSON"):
            load_documents(path)


def test_many_documents_keep_their_order(tmp_path):
    rows = [{"text": f"{number}", "label": "ab"[number % 2]} for number in range(1_000)]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, rows)))
    assert load_documents(path).dataset.to_list() == rows


def test_quiet_leaves_the_settings_as_they_were():
    before = datasets.utils.are_progress_bars_disabled(), datasets.logging.get_verbosity()
    with pytest.raises(KeyError), quiet():
        assert datasets.utils.are_progress_bars_disabled()
        raise KeyError
    assert (datasets.utils.are_progress_bars_disabled(), datasets.logging.get_verbosity()) == before


def test_shards(tmp_path):
    for name in ("1.csv", "2.csv"):
        write(tmp_path / "shards" / name, f"text,label\nof {name},a\n")
    documents = load_documents(str(tmp_path / "shards"))
    assert documents.dataset["text"][:] == ["of 1.csv", "of 2.csv"]
    assert documents.notes == ["texts from column 'text' (by its name), labels from column 'label' (by its name)"]
    assert documents.columns == {"text": "text", "label": "label"}


def test_texts_with_labels_are_read_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "_PIECE", 13)
    write(tmp_path / "labeled" / "a" / "book.txt", "one line\nanother line\nthe end")
    write(tmp_path / "labeled" / "b" / "book.txt", "short")
    assert len(load_documents(str(tmp_path / "labeled")).dataset) == 2
    assert load_documents(str(tmp_path / "labeled"), TEXT).dataset["text"][:] == [
        "one line\nanother line\n",
        "the end",
        "short",
    ]


# Rows that cannot be read


@pytest.fixture
def damaged(tmp_path):
    """A table with three good rows, and bad ones of each kind among them."""
    lines = [
        '{"text": "a", "label": 1}',
        "broken",
        '{"text": "b", "label": null}',
        '{"text": "c", "label": 1}',
        '{"text": 3, "label": 1}',
        '{"text": "d", "label": 2}',
        "3",
    ]
    return write(tmp_path / "t.jsonl", "\n".join(lines))


def test_bad_rows_are_left_out_up_to_as_many(damaged):
    documents = load_documents(damaged, max_errors=4)
    assert documents.dataset["text"][:] == ["a", "c", "d"]
    problems = (
        f"{damaged}, line 2: not valid JSON (",
        f"{damaged}, line 3: no label in column 'label'",
        "holds 3, not",
    )
    assert documents.notes[-1].startswith("left out 4 rows that cannot be read: ")
    assert all(problem in documents.notes[-1] for problem in problems) and "line 7" not in documents.notes[-1]
    assert documents.notes == load_documents(damaged, max_errors=9).notes  # the latter from the cache
    with pytest.raises(InputError) as raised:
        load_documents(damaged, max_errors=3)
    message = str(raised.value)
    assert message.startswith(f"{damaged}: 4 of 7 rows cannot be read: {damaged}, line 2: not valid JSON (")
    assert message.endswith("; and 1 more; --max-errors 4 leaves them out") and "\n" not in message


def test_one_bad_row_is_told_by_itself(tmp_path):
    path = write(tmp_path / "t.csv", "text,label\na,x\nb,\n")
    with pytest.raises(InputError) as raised:
        load_documents(path)
    assert str(raised.value) == f"{path}, row 2: no label in column 'label'; fill it in or remove the row"


def test_a_file_without_a_row_that_can_be_read(tmp_path):
    path = write(tmp_path / "t.jsonl", "broken\nbroken\n")
    with pytest.raises(InputError, match=r"t\.jsonl, line 1: not valid JSON"):
        load_documents(path, max_errors=2)


def test_bad_rows_at_the_beginning_do_not_hide_the_columns(tmp_path):
    path = write(tmp_path / "t.jsonl", "broken\n" * 150 + '{"text": "a", "label": 1}\n')
    assert load_documents(path, max_errors=150).dataset[:] == {"text": ["a"], "label": ["1"]}


def test_replaced_characters_are_counted(tmp_path):
    path = write(tmp_path / "t.jsonl", '{"text": "\\ud83d!"}\n{"text": "fine"}\n')
    documents = load_documents(path, TEXT)
    assert documents.dataset["text"][0] == "\ufffd!"
    assert documents.notes[-1] == "1 document with half a character, a lone surrogate; U+FFFD stands in for it"


# Columns


def test_groups_are_kept_beside_the_documents(tmp_path):
    path = write(tmp_path / "t.csv", "text,label,author\na,x,Ann\nb,y,7\n")
    grouped = load_documents(path, options=DataOptions(group_column="author"))
    assert grouped.dataset["group"][:] == ["Ann", "7"]
    assert "group" not in load_documents(path).dataset.column_names


def test_a_group_is_one_however_it_is_written_and_a_missing_one_is_none(tmp_path):
    groups = ["7", 7, 7.0, " 7"]
    lines = [{"text": f"{number}", "label": "a", "author": group} for number, group in enumerate(groups)]
    path = write(tmp_path / "t.jsonl", "\n".join(map(json.dumps, [*lines, {"text": "", "label": "a"}])))
    by_author = DataOptions(group_column="author")
    assert set(load_documents(path, options=by_author).dataset["group"][:]) == {"7"}
    for missing in ({}, {"author": None}, {"author": " "}):
        path = write(tmp_path / "m.jsonl", "\n".join(map(json.dumps, [*lines, {"text": "b", "label": "a", **missing}])))
        with pytest.raises(InputError, match=r"line 5: no group in column 'author'; fill it in or remove the row$"):
            load_documents(path, options=by_author)


def test_several_label_columns_of_which_one_is_never_set(tmp_path):
    path = write(tmp_path / "t.csv", "text,rude,loud,late\na,1,0,0\nb,1,1,0\n")
    documents = load_documents(path, SEVERAL, options=DataOptions(label_column="rude,loud,late"))
    assert documents.dataset["label"][:] == [["rude"], ["rude", "loud"]]
    assert documents.names == ("rude", "loud", "late")
    assert load_documents(path, SEVERAL, options=DataOptions(label_column="rude")).names == ()


def test_columns_that_the_model_was_trained_with(tmp_path):
    path = write(tmp_path / "t.csv", "text,body,kind,label\na,b,c,d\n")
    trained = DataOptions(trained=(("text", "body"), ("label", "kind")))
    documents = load_documents(path, options=trained)
    assert documents.dataset[:] == {"text": ["b"], "label": ["c"]}
    assert documents.columns == {"text": "body", "label": "kind"}


def test_a_task_of_two_texts_needs_a_table(tmp_path):
    path = write(tmp_path / "t.txt", "a text")
    with pytest.raises(InputError, match=r"t\.txt: holds only texts; give a table with a source and a target column$"):
        load_documents(path, PAIRED)
