"""Files and folders, data sets in parts, standard input, and the hub."""

import io
import json
import os
import socket

import datasets
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Sequence, SplitDict, SplitInfo, Value
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.formats import FolderFile, folder_files
from torch_linformer.data.reading.records import TAGGED, TEXT
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.sources import find_source, parts_of, read_rows, source_name, stream_rows
from torch_linformer.data.reading.streamed import documents_of
from torch_linformer.errors import InputError

TABLE = "text,label\n{},a\n"
FUZZ = {"deadline": None, "suppress_health_check": [HealthCheck.function_scoped_fixture]}


def texts(outcome):
    return [row["text"] for row in outcome.rows]


# Parts


@pytest.mark.parametrize(
    "names",
    [
        {"train": ["train.csv"], "validation": ["dev.csv"], "test": ["test.csv"]},
        {"train": ["training.jsonl"], "validation": ["valid.jsonl"]},
        {"train": ["Train.csv.gz"], "test": ["EVAL.csv.gz"]},
        {"train": ["train-00000-of-00002.parquet", "train-00001-of-00002.parquet"], "test": ["test-00000.parquet"]},
        {"train": ["train_1.csv", "train_2.csv"], "validation": ["val.0.csv"]},
        {"train": ["train/1.txt"], "test": ["test/1.txt"]},
        {"train": ["reviews_train.csv"], "test": ["reviews_test.csv"]},
        {"train": ["de_gsd-ud-train.conllu"], "validation": ["de_gsd-ud-dev.conllu"]},
        {"train": ["train.txt"], "validation": ["valid.txt"], "test": ["test.txt"]},
        {"train": ["wiki.train.tokens"], "test": ["wiki.test.tokens"]},
        {"train": ["eng.train"], "validation": ["eng.testa"], "test": ["eng.testb"]},
        *({"": [name]} for name in ("train.csv", "a.csv")),
        {"": ["test.csv", "dev.csv"]},
        {"": ["trains.csv", "test.csv"]},
        {"": ["train.txt", "test.txt", "boat.txt"]},  # texts about other things
        {"": ["train_test.csv", "test.csv"]},
        {"": ["train.py", "eval.py"]},
        {"": ["train_rides/1.txt", "test_rides/1.txt"]},
    ],
)
def test_parts_by_their_names(write, tmp_path, names):
    for name in [name for part in names.values() for name in part]:
        write(f"data/{name}", "")
    write("data/README.md", "about")
    root = tmp_path / "data"
    os.mkfifo(root / "dev.tsv")  # which is no part
    expected = {part: [root / name.split("/")[0] for name in files] for part, files in names.items() if part}
    assert parts_of(root) == expected


def test_only_the_part_that_is_asked_for_is_read(write, tmp_path):
    for name in ("train-00000-of-00002.csv", "train-00001-of-00002.csv", "test.csv"):
        write(f"data/{name}", TABLE.format(f"of {name}"))
    write("data/README.md", "about")
    write("data/more.csv", TABLE.format("more"))
    source = str(tmp_path / "data")
    documents = load_documents(source)
    assert documents.dataset["text"][:] == ["of train-00000-of-00002.csv", "of train-00001-of-00002.csv"]
    assert documents.notes[:2] == [
        f"{source} holds the parts train (train-00000-of-00002.csv, train-00001-of-00002.csv), test (test.csv)",
        f"left out what is no part of {source}: 'README.md', 'more.csv'",
    ]
    assert documents.parts == ("test",)
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


# Folders


def test_files_and_the_folders_they_lie_in(write, tmp_path):
    ours = ("b/2.txt", "b/10.txt", "b/deep/er/x", "a.txt")
    for name in (*ours, ".git/config", "b/.hidden", "b/.cache/x", "b/Thumbs.db", "desktop.ini", "__MACOSX/1.txt"):
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
    write("data/pos/1.csv", "text,Label\ngood,5\n")  # a column counts before the folder
    rows = read(tmp_path / "data", labeled=True).rows
    assert rows == [
        {"text": "bad", "stars": "1", "label": "neg"},
        {"text": "worse", "stars": "2", "label": "neg"},
        {"text": "good", "Label": "5"},
    ]


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
    write("data/pos/damaged.txt.gz", b"damaged")
    root = tmp_path / "data"
    outcome = read(root, labeled=True)
    assert texts(outcome) == ["bad", "good"]
    assert len(outcome.problems) == 1 and "damaged.txt.gz: not a readable .gz file" in outcome.problems[0]
    assert outcome.notes == [f"left out 2 files of another kind than text: {root}/pos/2.pdf, {root}/pos/x"]
    assert len(read(root).problems) == 3  # where each file is to be answered


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


@pytest.mark.parametrize("about", ["README.md", "readme.txt", "LICENSE", "licence.md", "CITATION.cff", "Changelog.md"])
def test_what_is_about_tables_is_left_out_and_named(write, read, tmp_path, about):
    write("data/t.csv", TABLE.format("x"))
    path = write(f"data/{about}", "about")
    outcome = read(tmp_path / "data")
    assert texts(outcome) == ["x"] and outcome.notes[0] == f"left out 1 file about the data: {path}"
    write("texts/a.txt", "text")
    write(f"texts/{about}", "about")
    assert len(read(tmp_path / "texts").rows) == 2  # among texts it is one


# Files that cannot be read


def test_a_damaged_file_of_a_folder_leaves_the_others(write, read, tmp_path):
    broken = write("data/b.parquet", "no parquet")
    write("data/a.csv", "text\na\n")
    write("data/c.csv", "text\nc\n")
    (tmp_path / "data" / "d.txt").symlink_to("nowhere")
    outcome = read(tmp_path / "data")
    assert texts(outcome) == ["a", "c"]
    parquet, link = outcome.problems
    assert parquet.startswith(f"{broken}: not a readable Parquet file (")
    assert link == f"{tmp_path}/data/d.txt: no such file or folder"


@pytest.mark.skipif(os.name != "posix", reason="permission bits are POSIX's")
def test_unreadable_files(tmp_path, write, read):
    path = write("folder/label/t.csv", "text\nx\n")
    path.chmod(0)
    user = os.geteuid()
    if user == 0:  # root may read anything, so be nobody for a moment
        for folder in [tmp_path, *tmp_path.parents[:3], path.parent, path.parent.parent]:
            folder.chmod(0o755)
        os.seteuid(65534)
    try:
        for source in (path, path.parent.parent):
            assert read(source).problems == [f"{path}: cannot be read (Permission denied)"]
    finally:
        os.seteuid(user)


def test_sources_that_cannot_be_read(tmp_path, datasets_cache):
    Dataset.from_dict({"text": ["a", "b"], "label": ["x", "y"]}).save_to_disk(tmp_path / "saved")
    with pytest.raises(InputError, match="saved: a data set as save_to_disk of datasets writes it; write it with"):
        load_documents(str(tmp_path / "saved"))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: neither a file nor a folder, and read more than once; save it"):
        find_source(str(tmp_path / "pipe"), "train")
    (tmp_path / "pos").mkdir()
    (tmp_path / "pos" / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"pos/gone\.txt: no such file or folder$"):
        find_source(str(tmp_path / "pos"), "train")
    for source in ("./reviews", "/no/such/folder", "a/b/c", "t.csv", "data/t.JSONL", "a.txt"):  # not asked of the hub
        with pytest.raises(InputError, match=r": no such file or folder$"):
            find_source(source, "train")


def test_reading_is_lazy(write):
    rows = read_rows([write("t.jsonl", '{"text": "fine"}\nbroken\n')], NO_OPTIONS, print)
    assert next(rows).values == {"text": "fine"}
    assert str(next(rows).values).startswith("not valid JSON")


def test_several_files_are_one_part(write):
    paths = [write("a.csv", "text\na\n"), write("b.jsonl", '{"text": "b"}\n'), write("c/d.txt", "c").parent]
    assert [row.values["text"] for row in read_rows(paths, NO_OPTIONS, lambda note: None)] == ["a", "b", "c"]


# Standard input


def stream(content, **options):
    return [(row.values, row.where) for row in stream_rows(io.BytesIO(content), DataOptions(**options))]


def test_stream_of_json_lines():
    first, problem, last = stream(b'\xef\xbb\xbf\n{"text": "a"}\n\n{"text": "\xff"}\n{"text": "\\ud800"}')
    assert first == ({"text": "a"}, "standard input, line 2") and isinstance(problem[0], InputError)
    assert last == ({"text": "\ufffd"}, "standard input, line 5")


@pytest.mark.parametrize("content", ["\n plain\ntext\n", "[1, 2]\n", "3\n", '{"open": \n', " \n\n"])
def test_stream_of_anything_else_is_one_document(content):
    (row,) = stream_rows(io.BytesIO(content.encode()), NO_OPTIONS)
    assert (row.values, row.where, row.kind) == ({"text": content}, "standard input", "text")


@pytest.mark.parametrize("encoding", ["cp1252", "utf-16", "utf-8"])
def test_stream_in_an_encoding_that_is_named(encoding):
    assert stream("Größe\n".encode(encoding), encoding=encoding) == [({"text": "Größe\n"}, "standard input")]
    rows = stream('{"text": "Größe"}\n'.encode(encoding), encoding=encoding)
    assert rows == [({"text": "Größe"}, "standard input, line 1")]


@pytest.mark.parametrize(
    ("content", "encoding", "message"),
    [
        (b'{"text": "a"}\nplain\n', None, "not valid JSON"),
        (b"\x89PNG\0\n", None, "standard input: not text, nor another known format"),
        (b"caf\xe9", None, r"holds bytes that are not UTF-8 ('caf\xe9'); save the file as"),
        (b'{"text": "caf\xc3"}', "ascii", "holds bytes that are not ascii"),
        (b"plain", "utf-16", "standard input: not utf-16 ("),
        (b"abc", "utf-16-be", "standard input: not utf-16-be ("),
    ],
)
def test_broken_streams(content, encoding, message):
    assert str(stream(content, encoding=encoding)[-1][0]).startswith(message)
    assert stream(b"") == []


def test_streams_are_read_as_they_come():
    source, sink = os.pipe()
    with open(source, "rb") as reader, open(sink, "wb") as writer:
        rows = stream_rows(reader, NO_OPTIONS)
        writer.write(b'{"text": "early"}\n')
        writer.flush()
        assert next(rows).values == {"text": "early"}


# The hub


@pytest.mark.parametrize("source", ["reviews", "owner/reviews", "owner/reviews:english"])
def test_what_is_neither_here_nor_on_the_hub(source):
    message = f"{source}: no such file or folder, nor within reach as a Hugging Face data set ("
    with pytest.raises(InputError) as raised:
        find_source(source, "train")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


def downloaded(datasets_cache, name, rows):
    """The rows as a data set owner/name of the hub, in the cache, where offline mode finds it."""
    features = rows.features
    folder = datasets_cache / f"owner___{name}" / "english" / "0.0.0" / "f00d"
    folder.mkdir(parents=True)
    writer = datasets.arrow_writer.ArrowWriter(path=str(folder / f"{name}-test.arrow"), features=features)
    writer.write_table(rows.data.table)
    writer.finalize()
    writer.close()
    DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name=name,
        config_name="english",
        version="0.0.0",
        splits=SplitDict({"test": SplitInfo("test", num_examples=len(rows), dataset_name=name)}),
    ).write_to_directory(str(folder))
    return f"owner/{name}:english"


CLASSES = ClassLabel(names=["neg", "pos"])


def test_a_run_is_called_by_the_name_of_its_data(tmp_path):
    (tmp_path / "a.b").mkdir()
    (tmp_path / "my.reviews.csv.gz").touch()
    for name, short in {"a.b": "a.b", "my.reviews.csv.gz": "my.reviews", "a.b/../a.b/": "a.b"}.items():
        assert source_name(f"{tmp_path}/{name}") == short
    assert [source_name(name) for name in ("stdlib", "owner/movies:english")] == ["stdlib", "movies"]


def test_a_data_set_of_the_hub(datasets_cache):
    features = Features({"content": Value("string"), "label": CLASSES})
    rows = Dataset.from_dict({"content": ["bad", "", "good"], "label": [0, 0, 1]}, features=features)
    source = downloaded(datasets_cache, "movies", rows)
    documents = load_documents(source, part="test")
    assert documents.dataset[:] == {"text": ["bad", "good"], "label": ["neg", "pos"]}
    assert documents.notes == [
        "texts from column 'content' (by its name), labels from column 'label' (by its name)",
        "skipped 1 document without text",
    ]
    with pytest.raises(InputError, match=r"owner/movies:english: .* \(Unknown split \"train\""):
        load_documents(source)


def test_classes_of_the_hub_are_numbers_with_names(datasets_cache):
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=["O", "B-PER"]))})
    rows = Dataset.from_dict({"tokens": [["Ann", "met"], ["Bo"]], "ner_tags": [[1, 0], [1]]}, features=features)
    documents = load_documents(downloaded(datasets_cache, "names", rows), TAGGED, part="test")
    assert documents.dataset["label"][:] == [["B-PER", "O"], ["B-PER"]]
    features = Features({"text": Value("string"), "label": CLASSES})
    table = pyarrow.table({"text": ["bad", "none"], "label": [0, 2]}, schema=features.arrow_schema)
    source = downloaded(datasets_cache, "numbers", Dataset(table))
    message = r"^owner/numbers:english, row 2: column 'label' holds 2, the number of no class; there are 2, from 0 on$"
    with pytest.raises(InputError, match=message):
        load_documents(source, part="test")
    assert load_documents(source, part="test", max_errors=1).dataset["label"][:] == ["neg"]


def test_other_options_are_another_version(write):
    path = str(write("t.csv", "text,label\na,b\n"))
    assert find_source(path).version == find_source(path, options=DataOptions()).version
    assert find_source(path).version != find_source(path, options=DataOptions(encoding="cp1252")).version


# Anything


@given(st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1), st.booleans())
@settings(max_examples=60, **FUZZ)
def test_any_text_survives_a_round_trip(write, read, texts, escaped):
    lines = (json.dumps({"text": text}, ensure_ascii=escaped) for text in texts)
    outcome = read(write("t.jsonl", "\n".join(lines)))
    assert [row["text"] for row in outcome.rows] == texts
    assert outcome.replaced == 0 and outcome.problems == []
    array = read(write("t.json", json.dumps([{"text": text} for text in texts], ensure_ascii=escaped)))
    assert array.rows == outcome.rows


@given(st.binary(max_size=200), st.sampled_from([None, "utf-8", "utf-16", "utf-16-le", "cp1252"]))
@settings(max_examples=100, **FUZZ)
def test_any_bytes_are_read_or_refused(write, content, encoding):
    for name in ("t.csv", "t.jsonl", "t.json", "t.txt", "t.parquet", "t.conll", "t.csv.gz"):
        report = ReadReport(on_bad=lambda where, problem: str(problem).encode())
        path = str(write(name, content))
        found = documents_of([path], TEXT, DataOptions(encoding=encoding), report)
        json.dumps([*found, report.notes], ensure_ascii=False).encode()  # raises if a surrogate is left
