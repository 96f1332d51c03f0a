"""`linformer spectrum`: a folder with everything, the numbers of the model in it, and K that `train` takes."""

import json
import random
import re

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    FNetConfig,
    FNetModel,
    RobertaConfig,
    RobertaModel,
)
from transformers.utils import logging

from torch_linformer.analysis import measure_spectrum
from torch_linformer.analysis.spectrum import BOUND
from torch_linformer.cli.app import run
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.training.sizes import SIZES as MODEL_SIZES

SIZES = {
    "vocab_size": 300,
    "hidden_size": 30,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 41,
    "max_position_embeddings": 64,
}


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch):
    """The current folder: new, with 12 texts of 1 to 89 words in it."""
    monkeypatch.chdir(tmp_path)
    draw = random.Random(0)
    words = ["wet", "grey", "mud", "warm", "sand", "the", "of"]
    texts = [" ".join(draw.choices(words, k=1 + 8 * number)) for number in range(12)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return tmp_path


@pytest.fixture(scope="module")
def save(tmp_path_factory, classifier_run):
    """A function: a folder with a model and a tokenizer."""
    logging.disable_progress_bar()

    def save_model(model, tokenizer=True):
        folder = tmp_path_factory.mktemp("model") / "model"
        model.save_pretrained(folder)
        if tokenizer:
            AutoTokenizer.from_pretrained(classifier_run.folder).save_pretrained(folder)
        return folder

    return save_model


@pytest.fixture(scope="module")
def bert(save):
    torch.manual_seed(0)
    return save(BertForMaskedLM(BertConfig(**SIZES, initializer_range=0.3)))


@pytest.fixture
def call(capfd, monkeypatch):
    """A function: run a command to its end, and return what it shows."""
    monkeypatch.setenv("COLUMNS", "200")

    def command(*arguments):
        capfd.readouterr()
        arguments = [str(each) for each in arguments]
        monkeypatch.setattr("sys.argv", ["linformer", *arguments])
        with pytest.raises(SystemExit) as exit_:
            run(arguments)
        shown = capfd.readouterr()
        assert exit_.value.code == 0, shown.err
        return shown.out

    return command


def test_a_folder_with_everything(bert, call, workplace):
    shown = call("spectrum", bert, "--data", "texts.jsonl", "--length", "16,32", "--documents", 4, "--index", 7)
    assert "4 documents of 16 tokens; " in shown and "K that keeps the energy, 32 tokens" in shown
    folder = workplace / "runs" / "spectrum-model"
    files = {path.name for path in folder.iterdir()}
    assert files == {"spectrum.json", "spectrum-16.png", "spectrum-32.png", "report.html"}
    assert (folder / "spectrum-16.png").read_bytes().startswith(b"\x89PNG")
    record = json.loads((folder / "spectrum.json").read_text())
    assert record["command"] == f"linformer spectrum {bert} --data texts.jsonl --length 16,32 --documents 4 --index 7"
    assert record["machine"]["torch"] == torch.__version__ and record["machine"]["processor"]
    assert [each["length"] for each in record["spectra"]] == [16, 32]
    page = (folder / "report.html").read_text()
    assert "<script" not in page and page.count("<svg") == 4 and "16 tokens" in page
    assert "slots and window" in page and "K by the rank of P, 32 tokens" in page
    (k,) = set(record["spectra"][1]["suggested_k"]["loss"]["layers"])
    errors = record["spectra"][1]["low_rank_error"]
    without, *losses = (
        float(torch.tensor(errors[name])[..., column].mean())
        for name, column in [("window_and_exact", 0), *(("slots_window_and_exact", column) for column in range(3))]
    )
    assert k == next(each for each, loss in zip((0, 8, 16, 32), (without, *losses), strict=True) if loss <= BOUND)
    assert ("no slots are needed" in shown) == (k == 0)
    assert "to train with the K that is enough:  linformer train --k @" in shown
    assert "--model projection=dynamic" in shown
    for level in ("90", "95", "99"):
        assert ", ".join(map(str, record["spectra"][1]["suggested_k"][level]["layers"])) in page


def test_numbers_are_those_of_the_model_on_the_documents(bert, call, workplace):
    call("spectrum", bert, "--data", "texts.jsonl", "--length", 24, "--documents", 3, "--output", "found", "--seed", 1)
    (record,) = json.loads((workplace / "found" / "spectrum.json").read_text())["spectra"]
    tokenizer, model = AutoTokenizer.from_pretrained(bert), BertModel.from_pretrained(bert).eval()
    texts = [json.loads(line)["text"] for line in (workplace / "texts.jsonl").read_text().splitlines()]
    cut = [torch.tensor(tokenizer(text, truncation=True, max_length=24)["input_ids"]) for text in texts]
    long_enough = [ids for ids in cut if len(ids) == 24]
    assert 3 < len(long_enough) < len(cut)
    # Which three of them, only the seed knows: one by one they are looked for.
    single = torch.stack([measure_spectrum(model, [each]).singular_values for each in long_enough])
    found = torch.tensor(record["singular_values"]).double()
    triples = torch.combinations(torch.arange(len(single)), 3)
    assert any(torch.allclose(single[triple].mean(dim=0), found, rtol=1e-4, atol=1e-6) for triple in triples)
    assert record["documents"] == 3 and 0 <= record["shorter_documents"] <= len(cut) - len(long_enough)


def test_fewer_documents_than_asked_for_are_counted(bert, call):
    shown = call("spectrum", bert, "--data", "texts.jsonl", "--length", 48, "--documents", 50)
    assert re.search(r"\d documents of the 50 asked for of 48 tokens; \d shorter ones passed over", shown)


def test_a_model_with_slots_of_its_own(save, call, workplace):
    torch.manual_seed(0)
    config = LinformerConfig(**SIZES, k=4, projection="dynamic", exact_first=1, initializer_range=0.3)
    model = save(LinformerModel(config))
    call("spectrum", model, "--data", "texts.jsonl", "--length", 24, "--documents", 2, "--output", "found")
    (record,) = json.loads((workplace / "found" / "spectrum.json").read_text())["spectra"]
    losses = torch.tensor(record["low_rank_error"]["own_slots"])
    assert losses.shape == (2, 3, 2) and (losses[..., 0] == losses[..., 1]).all() and losses.min() > 0.01
    assert "what its own slots, window, first and last tokens lose" in (workplace / "found" / "report.html").read_text()


def test_train_takes_the_suggested_k(bert, call, workplace, train_quickly, measured_once, monkeypatch):
    call("spectrum", bert, "--data", "texts.jsonl", "--length", 24, "--documents", 2, "--output", "found")
    (record,) = json.loads((workplace / "found" / "spectrum.json").read_text())["spectra"]
    two_layers = MODEL_SIZES["tiny"].__class__(16, 2, 2, 24, 3e-3, 0.1, "learned")
    monkeypatch.setitem(MODEL_SIZES, "tiny", two_layers)
    train_quickly(workplace / "run", k="@found/spectrum.json:90", max_length=24, max_steps=2)
    config = json.loads((workplace / "run" / "config.json").read_text())
    assert config["k"] == record["suggested_k"]["90"]["layers"]
    settings = json.loads((workplace / "run" / "run.json").read_text())
    assert settings["k"] == ",".join(map(str, config["k"]))


def test_longer_documents_by_the_randomised_method(bert, call, workplace):
    options = ["--length", 32, "--documents", 2, "--exact-up-to", 16, "--rank", 6, "--output", "found"]
    shown = call("spectrum", bert, "--data", "texts.jsonl", *options)
    (record,) = json.loads((workplace / "found" / "spectrum.json").read_text())["spectra"]
    assert record["method"] == "randomised" and record["values_per_head"] == 6
    assert None in record["suggested_k"]["99"]["layers"] and ">6" in shown
    assert "K by energy may be too large, never too small" in (workplace / "found" / "report.html").read_text()


# Bad input


def test_what_is_wrong_with_the_model(refused, save, workplace):
    fnet = FNetModel(FNetConfig(**{name: size for name, size in SIZES.items() if name != "num_attention_heads"}))
    (workplace / "empty").mkdir()
    bare = save(BertModel(BertConfig(**SIZES)), tokenizer=False)
    for folder, message in {
        save(fnet): "a fnet model has no attention weights that can be read",
        save(
            LinformerModel(LinformerConfig(**SIZES, k=8))
        ): "its attention is N × K already; a spectrum needs ordinary",
        "nowhere/at/all": "no such folder, and no model of that name could be fetched",
        "empty": "is no model folder: it has no config.json",
        bare: "has no tokenizer; save the model's own into the folder",
    }.items():
        said = refused("spectrum", folder, "--data", "texts.jsonl", "--length", 16)
        assert said.startswith(f"{folder}: {message}"), said
    (bare / "model.safetensors").write_bytes(b"no tensors")
    said = refused("spectrum", bare, "--data", "texts.jsonl", "--length", 9)
    assert said.startswith(f"{bare}: the weights cannot be read: ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--length", "65"], "--length 65: MODEL reads at most 64 tokens; take a shorter length"),
        (["--length", "64"], "--length 64: none of the 2 documents has that many tokens; take a shorter length"),
        (["--length", "0"], "--length 0: '0' is no positive whole number; write --length 512,1024"),
        (["--length", "a,b"], "--length a,b: 'a' is no positive whole number; write --length 512,1024"),
        (["--length", ""], "--length: give at least one, such as --length 512"),
        (["--length", "16,32", "--index", "17"], "--index 17: at --length 16 only 16 singular values are computed"),
        (
            ["--length", "32", "--exact-up-to", "16", "--rank", "8", "--index", "9"],
            "--index 9: at --length 32 only 8 singular values are computed",
        ),
        (
            ["--length", "9", "--text-column", "body"],
            "short.jsonl: no column 'body', which --text-column names; columns: 'text'",
        ),
        (["--output", "taken"], "--output taken: is not empty; name another folder"),
    ],
)
def test_what_is_wrong_with_the_options(options, message, refused, bert, workplace):
    (workplace / "short.jsonl").write_text('{"text": "wet mud"}\n{"text": "grey"}\n')
    (workplace / "taken").mkdir()
    (workplace / "taken" / "notes.txt").write_text("mine")
    said = refused("spectrum", bert, "--data", "short.jsonl", *options)
    assert said == message.replace("MODEL", str(bert))


def test_what_is_wrong_with_the_documents_and_their_length(refused, bert, save, workplace):
    assert refused("spectrum", bert, "--data", "gone.csv", "--length", 9) == "gone.csv: no such file or folder"
    (workplace / "blank.txt").write_text("  \n")
    said = refused("spectrum", bert, "--data", "blank.txt", "--length", 9)
    assert said.startswith("blank.txt: no row of the 1 has any text")
    folder = save(RobertaModel(RobertaConfig(**SIZES, pad_token_id=1)))  # counts positions after those of padding
    said = refused("spectrum", folder, "--data", "texts.jsonl", "--length", 63)
    assert said == f"--length 63: {folder} reads at most 62 tokens; take a shorter length"
