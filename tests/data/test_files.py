"""Files as people have them, read and trained on: `files/expected.toml` says what comes out of each."""

import json
import tomllib
from pathlib import Path

import pytest

from torch_linformer.errors import InputError
from torch_linformer.inference.answer_files import PredictSettings, answer_files
from torch_linformer.training.splits import load_splits
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings

FILES = Path(__file__).parent / "files"
EXPECTED = tomllib.loads((FILES / "expected.toml").read_text(encoding="utf-8"))
QUICK = {"max_steps": 1, "max_length": 16, "tokenizer": "bytes", "baseline": False, "probe": False, "lexical": "none"}


def settings_of(expected, **others):
    options = {"validation": "0.2", **expected.get("options", {}), **others}
    if "validation" in expected.get("parts", {}):
        del options["validation"]
    return TrainSettings(data=str(FILES / expected["file"]), task=expected.get("task", "classify"), **options)


def test_every_file_is_expected_to_be_read():
    parts = {name.parts[0] for name in (path.relative_to(FILES) for path in FILES.rglob("*") if path.is_file())}
    used = {expected["file"] for expected in EXPECTED.values()}
    assert parts - used == {"expected.toml", "letters"}


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if "error" not in expected])
def test_what_is_read(name):
    expected = EXPECTED[name]
    splits = load_splits(settings_of(expected))
    parts = {"train": splits.train, "validation": splits.validation, "test": splits.test}
    assert sum(map(len, parts.values())) == expected["rows"]
    for part, rows in expected.get("parts", {}).items():
        assert len(parts[part]) == rows
    documents = [document for part in parts.values() for document in part]
    if "first" in expected:
        assert any(expected["first"].items() <= document.items() for document in documents)
    if "labels" in expected:
        assert splits.names == expected["labels"]
    said = "\n".join(splits.notes)
    for note in expected.get("notes", ()):
        assert note in said
    for warning in expected.get("warnings", ()):
        assert warning in "\n".join(splits.warnings)


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if "error" in expected])
def test_what_is_refused(name):
    with pytest.raises(InputError) as raised:
        load_splits(settings_of(EXPECTED[name]))
    message = str(raised.value)
    assert message == f"{FILES}/{EXPECTED[name]['error'].replace('FOLDER', str(FILES))}"


@pytest.mark.parametrize("name", [name for name, expected in EXPECTED.items() if expected.get("predict")])
def test_what_the_trained_model_reads_again(name, tmp_path):
    """A model reads the columns that it was trained with, in files that are written as that one was."""
    expected = EXPECTED[name]
    run = train(settings_of(expected, output=str(tmp_path / "run"), **quick_of(expected)))
    output, said = tmp_path / "answers.jsonl", []
    answer_files(PredictSettings(model=str(run), files=(str(FILES / expected["file"]),)), output, say=said.append)
    answers = [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert len(answers) == expected["rows"]
    assert "as the model was trained" in "\n".join(said)


def quick_of(expected):
    of_documents = expected.get("task", "classify") == "classify"
    return QUICK if of_documents else {name: value for name, value in QUICK.items() if name != "lexical"}


def test_groups_are_kept_together():
    splits = load_splits(settings_of(EXPECTED["group_column"]))
    authors = [{int(text.split()[-1]) % 6 for text in part["text"]} for part in (splits.train, splits.test)]
    assert not authors[0] & authors[1]


def test_questions_of_a_passage_are_kept_together():
    splits = load_splits(settings_of(EXPECTED["questions_of_passages"]))
    assert not {*splits.train["text"]} & {*splits.test["text"]}


def test_addresses_are_not_opened():
    with pytest.raises(InputError, match=r"^https://example\.org/t\.csv: addresses are not opened; download the file"):
        load_splits(TrainSettings(data="https://example.org/t.csv"))
