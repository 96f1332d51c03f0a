import os

import datasets
import pyarrow
import pytest
from datasets import ClassLabel, Dataset, DatasetInfo, Features, Sequence, SplitDict, SplitInfo, Value

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.documents import load_documents
from torch_linformer.data.reading.records import TAGGED
from torch_linformer.data.reading.sources import find_source
from torch_linformer.errors import InputError


@pytest.mark.parametrize("source", ["reviews", "owner/reviews", "owner/reviews:english"])
def test_what_is_neither_here_nor_on_the_hub(source):
    message = f"{source}: no such file or folder, nor within reach as a Hugging Face data set ("
    with pytest.raises(InputError) as raised:
        find_source(source, "train")
    assert str(raised.value).startswith(message) and "\n" not in str(raised.value)


@pytest.mark.parametrize("source", ["./reviews", "/no/such/folder", "a/b/c", "t.csv", "data/t.JSONL", "a.txt"])
def test_what_can_only_be_a_file_is_not_looked_for_on_the_hub(source):
    with pytest.raises(InputError, match=r": no such file or folder$"):
        find_source(source, "train")


def test_pipes_cannot_be_read_twice(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: neither a file nor a folder, and read more than once; save it"):
        find_source(str(tmp_path / "pipe"), "train")


def test_links_to_nowhere_are_an_error(tmp_path):
    (tmp_path / "pos").mkdir()
    (tmp_path / "pos" / "gone.txt").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"pos/gone\.txt: no such file or folder$"):
        find_source(str(tmp_path), "train")


@pytest.fixture
def hub_dataset(datasets_cache):
    """owner/movies as an earlier download leaves it in the cache, where offline mode finds it."""
    features = Features({"content": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    rows = Dataset.from_dict({"content": ["bad", "", "good"], "label": [0, 0, 1]}, features=features)
    return downloaded(datasets_cache, "movies", rows)


def downloaded(datasets_cache, name, rows):
    """The rows as a data set owner/name of the hub, in the cache."""
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
    return f"owner/{name}"


def test_a_data_set_of_the_hub(hub_dataset):
    documents = load_documents(f"{hub_dataset}:english", part="test")
    assert documents.dataset[:] == {"text": ["bad", "good"], "label": ["neg", "pos"]}
    assert documents.name == "movies" and documents.notes == [
        "texts from column 'content' (by its name), labels from column 'label' (by its name)",
        "skipped 1 document without text",
    ]
    with pytest.raises(InputError, match=r"owner/movies:english: .* \(Unknown split \"train\""):
        load_documents(f"{hub_dataset}:english")


def test_tags_of_the_hub_are_numbers_with_names(datasets_cache):
    features = Features({"tokens": Sequence(Value("string")), "ner_tags": Sequence(ClassLabel(names=["O", "B-PER"]))})
    rows = Dataset.from_dict({"tokens": [["Ann", "met"], ["Bo"]], "ner_tags": [[1, 0], [1]]}, features=features)
    name = downloaded(datasets_cache, "names", rows)
    documents = load_documents(f"{name}:english", TAGGED, part="test")
    assert documents.dataset["label"][:] == [["B-PER", "O"], ["B-PER"]]
    assert documents.dataset["text"][:] == ["Ann met", "Bo"]


def test_a_class_number_of_the_hub_without_a_name_is_a_bad_row(datasets_cache):
    features = Features({"text": Value("string"), "label": ClassLabel(names=["neg", "pos"])})
    table = pyarrow.table({"text": ["bad", "none"], "label": [0, 2]}, schema=features.arrow_schema)
    name = downloaded(datasets_cache, "numbers", Dataset(table))
    message = r"^owner/numbers:english, row 2: column 'label' holds 2, the number of no class; there are 2, from 0 on$"
    with pytest.raises(InputError, match=message):
        load_documents(f"{name}:english", part="test")
    assert load_documents(f"{name}:english", part="test", max_errors=1).dataset["label"][:] == ["neg"]


def test_other_options_are_another_version(tmp_path):
    (tmp_path / "t.csv").write_text("text,label\na,b\n")
    path = str(tmp_path / "t.csv")
    assert find_source(path).version == find_source(path, options=DataOptions()).version
    assert find_source(path).version != find_source(path, options=DataOptions(encoding="cp1252")).version
