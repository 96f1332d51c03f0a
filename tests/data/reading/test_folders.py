import json
import os
import socket

import pytest
from datasets import Dataset

from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.formats import FolderFile, folder_files, parts_of, shard_suffix
from torch_linformer.data.reading.records import TEXT
from torch_linformer.data.reading.sources import find_source
from torch_linformer.errors import InputError

TABLE = "text,label\n{},a\n"


def texts(outcome):
    return [row["text"] for row in outcome.rows]


# Parts


@pytest.mark.parametrize(
    "names",
    [
        {"train": ["train.csv"], "validation": ["dev.csv"], "test": ["test.csv"]},
        {"train": ["training.jsonl"], "validation": ["valid.jsonl"]},
        {"train": ["Train.csv.gz"], "test": ["EVAL.csv.gz"]},
        {
            "train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"],
            "test": ["test-00000-of-00001.parquet"],
        },
        {"train": ["train_1.csv", "train_2.csv"], "validation": ["val.0.csv"]},
        {"train": ["train/1.txt"], "test": ["test/1.txt"]},
        {"train": ["reviews_train.csv"], "test": ["reviews_test.csv"]},
        {"train": ["de_gsd-ud-train.conllu"], "validation": ["de_gsd-ud-dev.conllu"]},
        {"train": ["train.txt"], "validation": ["valid.txt"], "test": ["test.txt"]},
        {"train": ["wiki.train.tokens"], "test": ["wiki.test.tokens"]},
        {"train": ["eng.train"], "validation": ["eng.testa"], "test": ["eng.testb"]},
    ],
)
def test_parts_by_their_names(write, tmp_path, names):
    for name in [name for part in names.values() for name in part]:
        write(f"data/{name}", "")
    write("data/README.md", "about")
    root = tmp_path / "data"
    expected = {part: [root / name.split("/")[0] for name in entries] for part, entries in names.items()}
    assert parts_of(root) == expected


@pytest.mark.parametrize(
    "names",
    [
        *(["train.csv"], ["test.csv", "dev.csv"], ["trains.csv", "test.csv"], ["a.csv"]),
        ["train.txt", "test.txt", "boat.txt"],  # texts about other things
        ["train_test.csv", "test.csv"],
        ["train.py", "eval.py"],
        ["train_rides/1.txt", "test_rides/1.txt"],
    ],
)
def test_folders_without_parts(write, tmp_path, names):
    for name in names:
        write(f"data/{name}", "")
    assert parts_of(tmp_path / "data") == {}


def test_only_the_part_that_is_asked_for_is_read(write, tmp_path):
    for name in ("train-00000-of-00002.csv", "train-00001-of-00002.csv", "test.csv"):
        write(f"data/{name}", TABLE.format(f"of {name}"))
    write("data/README.md", "about")
    write("data/more.csv", TABLE.format("more"))
    source = str(tmp_path / "data")
    documents = load_documents(source)
    assert documents.dataset["text"][:] == ["of train-00000-of-00002.csv", "of train-00001-of-00002.csv"]
    assert f"left out what is no part of {source}: 'README.md', 'more.csv'" in documents.notes
    assert documents.parts == ("test",) and documents.notes[0] == (
        f"{source} holds the parts train (train-00000-of-00002.csv, train-00001-of-00002.csv), test (test.csv)"
    )
    assert load_documents(source, part="test").dataset["text"][:] == ["of test.csv"]
    with pytest.raises(InputError, match="data: no part 'validation' among its parts train, test; name the file or f"):
        load_documents(source, part="validation")


def test_parts_of_texts_in_folders_of_their_labels(write, tmp_path):
    for part in ("train", "test"):
        for label in ("neg", "pos"):
            write(f"data/{part}/{label}/1.txt", f"{part} {label}")
    documents = load_documents(str(tmp_path / "data"))
    assert documents.dataset[:] == {"text": ["train neg", "train pos"], "label": ["neg", "pos"]}
    assert find_source(str(tmp_path / "data")).parts == ("train", "test")


# Files of a folder


def test_files_and_the_folders_they_lie_in(write, tmp_path):
    for name in ("b/2.txt", "b/10.txt", "b/deep/er/x", "a.txt", ".git/config", "b/.hidden", "b/.cache/x"):
        write(f"data/{name}", "")
    root = tmp_path / "data"
    (root / "twin").symlink_to(root / "b")
    (root / "b" / "circle").symlink_to(root / "b")
    below = [FolderFile(root / f"b/{name}", "b") for name in ("10.txt", "2.txt", "deep/er/x")]
    assert list(folder_files(root)) == [
        FolderFile(root / "a.txt", None),
        *below,
        *(FolderFile(root / "twin" / file.path.relative_to(root / "b"), "twin") for file in below),
    ]


@pytest.mark.parametrize("name", ["Thumbs.db", "desktop.ini", "__MACOSX/1.txt", ".DS_Store"])
def test_files_of_systems_are_passed_over(write, tmp_path, name):
    expected = write("data/neg/1.txt", "bad")
    write(f"data/neg/{name}", "left behind")
    assert [file.path for file in folder_files(tmp_path / "data")] == [expected]


@pytest.mark.parametrize(
    ("names", "suffix"),
    [(["a.csv", "b.CSV"], ".csv"), (["a.csv.gz", "b.csv"], ".csv"), (["a.csv", "b.tsv"], None), (["a.txt"], None)],
)
def test_tables_of_one_kind(tmp_path, names, suffix):
    assert shard_suffix([tmp_path / name for name in names]) == suffix


def test_folders_are_labels(write, read, tmp_path):
    for name, content in {"neg/2.txt": "bad", "neg/10.txt": "worse", "pos/a.csv": "a,b\n1\n"}.items():
        write(f"data/{name}", content)
    outcome = read(tmp_path / "data", labeled=True)
    assert [(row["label"], row["text"]) for row in outcome.rows] == [
        ("neg", "worse"),
        ("neg", "bad"),
        ("pos", "a,b\n1\n"),  # beside files of another kind a table is a text
    ]
    assert outcome.problems == outcome.notes == []


def test_a_folder_of_tables_is_one_table(write, read, tmp_path):
    for name, numbers in (("b.jsonl", "3"), ("a.JSONL", "12")):
        write(f"data/{name}", "".join(json.dumps({"text": number}) + "\n" for number in numbers))
    outcome = read(tmp_path / "data")
    assert texts(outcome) == ["1", "2", "3"] and outcome.places[2] == f"{tmp_path / 'data' / 'b.jsonl'}, line 1"
    write("data/c.csv", "text\n4\n")  # tables of two kinds are tables too
    write("data/d.txt", "a text")
    assert texts(read(tmp_path / "data")) == ["1", "2", "3", "4", "a text"]


def test_tables_in_folders_of_labels(write, read, tmp_path):
    write("data/neg/1.csv", "text,stars\nbad,1\nworse,2\n")
    write("data/pos/1.csv", "text,stars\ngood,5\n")
    rows = read(tmp_path / "data", labeled=True).rows
    assert [(row["text"], row["label"]) for row in rows] == [("bad", "neg"), ("worse", "neg"), ("good", "pos")]


def test_a_label_column_counts_before_the_folder(write, read, tmp_path):
    write("data/english/1.csv", "text,Label\nbad,neg\n")
    write("data/german/1.csv", "text,Label\ngut,pos\n")
    rows = read(tmp_path / "data", labeled=True).rows
    assert rows == [{"text": "bad", "Label": "neg"}, {"text": "gut", "Label": "pos"}]


# Strays


def test_files_beside_the_folders_of_labels_are_left_out_and_named(write, tmp_path):
    for name in ("neg/1.txt", "pos/1.txt", "notes.txt", "z.txt", "a.txt", "b.txt"):
        write(f"data/{name}", name)
    root = tmp_path / "data"
    documents = load_documents(str(root))
    assert documents.dataset["text"][:] == ["neg/1.txt", "pos/1.txt"]
    names = ", ".join(str(root / name) for name in ("a.txt", "b.txt", "notes.txt"))
    assert documents.notes[0] == f"left out 4 files beside the folders of {root}: {names}, …"
    assert len(load_documents(str(root), TEXT).dataset) == 6  # without labels all are texts


def test_files_that_are_no_text_are_left_out_and_named(write, read, tmp_path):
    for name, content in {"neg/1.txt": "bad", "pos/1.txt": "good", "pos/2.pdf": "%PDF", "pos/x": b"\0"}.items():
        write(f"data/{name}", content)
    root = tmp_path / "data"
    outcome = read(root, labeled=True)
    assert texts(outcome) == ["bad", "good"] and outcome.problems == []
    assert outcome.notes == [f"left out 2 files of another kind than text: {root}/pos/2.pdf, {root}/pos/x"]
    assert len(read(root).problems) == 2  # where each file is to be answered


@pytest.mark.parametrize("labeled", [False, True])
def test_pipes_and_devices_are_left_out_and_named(write, read, tmp_path, labeled):
    """Who opens a pipe waits until somebody writes into it."""
    write("data/neg/1.txt", "bad")
    write("data/pos/2.txt", "good")
    os.mkfifo(tmp_path / "data" / "pos" / "1.txt")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(tmp_path / "data" / "neg" / "s"))
        outcome = read(tmp_path / "data", labeled=labeled)
    assert texts(outcome) == ["bad", "good"] and outcome.problems == []
    root = tmp_path / "data"
    assert outcome.notes == [f"left out 2 files that are pipes or devices: {root}/neg/s, {root}/pos/1.txt"]


def test_a_pipe_is_no_part_of_a_data_set(write, tmp_path):
    for name in ("train.csv", "test.csv"):
        write(f"data/{name}", TABLE.format("x"))
    os.mkfifo(tmp_path / "data" / "dev.csv")
    assert sorted(parts_of(tmp_path / "data")) == ["test", "train"]


def test_a_link_that_leads_nowhere_is_a_problem_and_no_pipe(write, read, tmp_path):
    write("data/a.txt", "text")
    (tmp_path / "data" / "b.txt").symlink_to("nowhere")
    outcome = read(tmp_path / "data")
    assert texts(outcome) == ["text"] and outcome.problems == [f"{tmp_path}/data/b.txt: no such file or folder"]


@pytest.mark.parametrize("about", ["README.md", "readme.txt", "LICENSE", "licence.md", "CITATION.cff", "Changelog.md"])
def test_what_is_about_tables_is_left_out_and_named(write, read, tmp_path, about):
    write("data/t.csv", TABLE.format("x"))
    path = write(f"data/{about}", "about")
    outcome = read(tmp_path / "data")
    assert texts(outcome) == ["x"] and outcome.notes[0] == f"left out 1 file about the data: {path}"


def test_a_folder_of_texts_keeps_its_readme(write, read, tmp_path):
    write("data/README.md", "about")
    write("data/a.txt", "text")
    assert texts(read(tmp_path / "data")) == ["about", "text"]


def test_a_data_set_saved_to_disk_is_told(tmp_path, datasets_cache):
    Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]}).save_to_disk(tmp_path / "data")
    with pytest.raises(InputError, match="data: a data set as save_to_disk of datasets writes it; write it with to_pa"):
        load_documents(str(tmp_path / "data"))
