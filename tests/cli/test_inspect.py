"""`linformer inspect`: a page of a text, a file or standard input, and one line for whatever is wrong with them."""

import io
import shutil
from types import SimpleNamespace

import pytest
import torch

from torch_linformer.analysis import inspect_text, page
from torch_linformer.cli.app import run
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.models import LinformerForCausalLM
from torch_linformer.opening.load import load_config, load_model, load_tokenizer


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """The current folder."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def inspect(classifier_run, capfd):
    """A function: run the command on the trained classifier, and return what it printed."""

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run(["inspect", str(classifier_run.folder), *arguments, "--device", "cpu"])
        shown, error = capfd.readouterr()
        assert exit_.value.code == 0, error
        return shown

    return call


def test_a_text(inspect, workplace):
    shown = inspect("wet mud and ice")
    assert shown.startswith("inspect.html: ") and " tokens of the text that was given, " in shown
    assert [path.name for path in workplace.iterdir()] == ["inspect.html"]
    written = (workplace / "inspect.html").read_text()
    assert "<title>How the model run reads a document</title>" in written


def test_a_file_and_standard_input(inspect, workplace, monkeypatch):
    (workplace / "a letter.txt").write_text("wet mud")
    assert " of a letter.txt, " in inspect("a letter.txt", "--output", "pages/letter.html", "--layers", "0")
    assert "of a letter.txt" in (workplace / "pages" / "letter.html").read_text()
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(b"wet mud")))
    assert " of standard input, " in inspect("-")
    (workplace / "one.jsonl").write_text('{"text": "wet mud"}\n')
    assert " of one.jsonl, " in inspect("one.jsonl")


def test_the_tokens_are_those_of_predict(inspect, classifier_run, workplace):
    text = "wet <sep> mud naïve " * 9
    assert inspect(text, "--cut").startswith("inspect.html: the first 24 of ")
    encoder = DocumentEncoder(load_tokenizer(str(classifier_run.folder)), 24)
    (ids,) = encoder([text])["input_ids"]
    model, tokenizer = load_model(str(classifier_run.folder)), load_tokenizer(str(classifier_run.folder))
    assert inspect_text(model, tokenizer, text, cut=True).tokens == tokenizer.convert_ids_to_tokens(ids)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty: give one with at least one word"),
        ("nowhere.txt", "nowhere.txt: no such file; a text of one word like this goes through standard input, as -"),
        ("no/where", "no/where: no such file; a text of one word like this goes through standard input, as -"),
        ("empty.txt", "empty.txt: no document with any text; give one"),
        ("two.csv", "two.csv: holds more than one document; give one"),
        ("nul.txt", "nul.txt: not text, nor another known format; known are "),
        ("mud " * 40, "the text has 82 tokens, the model reads 24: shorten it, or read its beginning with cut (--cut)"),
    ],
)
def test_texts_that_cannot_be_read(refused, classifier_run, workplace, text, message):
    (workplace / "empty.txt").write_text(" \n")
    (workplace / "two.csv").write_text("text,label\nwet,rain\nsea,sun\n")
    (workplace / "nul.txt").write_bytes(b"wet\0mud")
    assert refused("inspect", classifier_run.folder, text).startswith(message)


def test_layers_that_are_not_there(refused, classifier_run):
    said = refused("inspect", classifier_run.folder, "wet mud", "--layers", "0,7")
    assert said == "layers must lie between 0 and 0, got 7"
    said = refused("inspect", classifier_run.folder, "wet mud", "--layers", "first")
    assert said == "--layers first: write numbers with commas between them, such as 0,5"


def test_models_without_such_attention(refused, classifier_run, workplace):
    (workplace / "bert").mkdir()
    (workplace / "bert" / "config.json").write_text('{"model_type": "bert"}')
    said = refused("inspect", "bert", "wet mud")
    assert said == "bert: holds a bert model, not a linear one; linformer adapt makes one of an encoder"
    torch.manual_seed(0)
    config = load_config(str(classifier_run.folder))
    config.causal, config.projection, config.window = True, "linear", 4
    LinformerForCausalLM(config).save_pretrained(workplace / "causal")
    load_tokenizer(str(classifier_run.folder)).save_pretrained(workplace / "causal")
    assert refused("inspect", "causal", "wet mud").startswith("a causal model has no E and F to show: ")


def test_without_the_plotting_library(refused, classifier_run, monkeypatch):
    found = page.importlib.util.find_spec
    monkeypatch.setattr(page.importlib.util, "find_spec", lambda name: None if name == "bokeh" else found(name))
    said = refused("inspect", classifier_run.folder, "wet mud")
    assert said == 'bokeh not installed: pip install "torch-linformer[inspect]"'


def test_what_stood_there_stays_where_something_is_wrong(refused, model_copy, workplace):
    (workplace / "inspect.html").write_text("before")
    shutil.rmtree(model_copy)
    assert "no such folder" in refused("inspect", model_copy, "wet mud")
    assert (workplace / "inspect.html").read_text() == "before"
