"""Names of files that would control the terminal they are printed on."""

import json
import shutil

import pytest

from torch_linformer.cli.app import run

NAME, SHOWN = "\x1b]0;mine\x07\x9b2J", "\\x1b]0;mine\\x07\\x9b2J"


@pytest.fixture
def workplace(tmp_path):
    return tmp_path


def test_an_error_shows_escapes(refused, workplace):
    assert refused("info", workplace / NAME).startswith(f"{workplace}/{SHOWN}: ")


@pytest.mark.parametrize("command", [["predict"], ["embed", "--output", "out.npy"]])
def test_notes_and_lines_show_escapes(command, classifier_run, tmp_path, monkeypatch, capfd):
    """What is parsed of the lines is the name as it is."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(classifier_run.folder, NAME)
    (tmp_path / f"{NAME}.jsonl").write_text('{"text": "wet mud"}\n')
    (tmp_path / f"{NAME}.txt").write_bytes("schöner grüner Käse für Größen".encode("latin-1"))
    capfd.readouterr()
    with pytest.raises(SystemExit) as exit_:
        run([*command, NAME, f"{NAME}.jsonl", f"{NAME}.txt", "--encoding=latin-1", "--text-column=text"])
    shown, error = capfd.readouterr()
    assert exit_.value.code == 0, error
    assert not set(shown + error) & {"\x1b", "\x07", "\x9b"}
    if command == ["predict"]:
        documents = [json.loads(line)["document"] for line in shown.splitlines()]
        assert documents == [f"{NAME}.jsonl, line 1", f"{NAME}.txt"]
