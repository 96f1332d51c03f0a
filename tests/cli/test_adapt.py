"""`linformer adapt` with what it cannot use: one line, and nothing left behind."""

import json
import shutil
from pathlib import Path

import pytest
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertModel,
    DebertaV2Config,
    GPT2Config,
    LongformerConfig,
    ModernBertConfig,
    T5Config,
)

from torch_linformer.encoders import linearize

WORDS = ["wet", "grey", "mud", "warm", "sand", "sea", "ice", "cold", "white", "the", "of", "and"]


@pytest.fixture
def workplace(tmp_path, monkeypatch, write_csv, weather, classifier_run, save_source):
    """The current folder: new, with texts and an encoder in it."""
    monkeypatch.chdir(tmp_path)
    write_csv("texts.csv", weather(100, seed=0))
    save_source(Path("bert"), AutoTokenizer.from_pretrained(classifier_run.folder))
    return tmp_path


@pytest.fixture
def refused_adapt(refused):
    """A function: adapt, which must be refused; returns what the line says."""

    def call(source="bert", data="texts.csv", *options):
        return refused("adapt", source, "--data", data, "--device", "cpu", "--steps", "1", *options)

    return call


PAIRS = "scores depend on the distance to a key, for N × N pairs, and a slot has no distance"
DECODER = "is a decoder: its tokens see only what comes before them, and a slot mixes all positions"
OTHERS = {
    "a decoder": (GPT2Config(), f"other (gpt2) {DECODER}"),
    "bert as a decoder": (BertConfig(is_decoder=True), f"other (bert) {DECODER}"),
    "an encoder-decoder": (T5Config(), f"other (t5): {PAIRS}"),
    "relative positions": (DebertaV2Config(relative_attention=True), f"other (deberta-v2): {PAIRS}"),
    "linear by windows": (LongformerConfig(), "other (longformer): it is linear already, by windows and global tokens"),
}


@pytest.mark.parametrize("kind", OTHERS)
def test_a_model_of_another_kind(refused_adapt, workplace, kind):
    config, message = OTHERS[kind]
    config.save_pretrained("other")
    assert refused_adapt("other") == message


def test_what_is_linear_already(refused_adapt, classifier_run, workplace):
    folder = str(classifier_run.folder)
    remedy = "linformer train --from {} goes on with it"
    assert refused_adapt(folder) == f"{folder} (linformer) is linear already: {remedy.format(folder)}"
    linearize(BertModel.from_pretrained("bert"), k=4).save_pretrained("bert")
    assert refused_adapt() == f"bert (linear_encoder) is linear already: {remedy.format('bert')}"


def test_rotary_positions_without_a_tokenizer_are_no_reason(refused_adapt, workplace):
    """ModernBERT's configuration is accepted: what is missing is the rest of the folder."""
    ModernBertConfig().save_pretrained("other")
    assert "rotary" not in refused_adapt("other")


def test_no_model(refused_adapt, workplace):
    assert refused_adapt("nowhere") == "nowhere: no such folder, and no model of that name could be fetched"
    (workplace / "empty").mkdir()
    assert refused_adapt("empty") == "empty: is no model folder: it has no config.json"


def test_a_model_that_needs_code_of_its_own(refused_adapt, workplace):
    shutil.copytree("bert", "own")
    config = json.loads((workplace / "own" / "config.json").read_text())
    own = {**config, "model_type": "own-bert", "auto_map": {"AutoConfig": "modeling.OwnConfig"}}
    (workplace / "own" / "config.json").write_text(json.dumps(own))
    (workplace / "own" / "modeling.py").write_text("raise SystemExit('this code was run')")
    assert refused_adapt("own") == (
        "own: needs code from its folder (auto_map in config.json), which only linformer adapt runs, with "
        "--trust-remote-code"
    )
    (workplace / "own" / "modeling.py").write_text("import nowhere")
    assert refused_adapt("own", "texts.csv", "--trust-remote-code").startswith("own: config.json cannot be read: ")


def test_a_tokenizer_that_does_not_belong_to_the_model(refused_adapt, workplace):
    tokenizer = AutoTokenizer.from_pretrained("bert")
    tokenizer.add_tokens([f"word{number}" for number in range(9)])
    tokenizer.save_pretrained("bert")
    size = len(tokenizer)
    assert refused_adapt() == (
        f"bert: the tokenizer has {size:,} tokens and the model {size - 9:,}: they do not belong together; "
        "save the model's own tokenizer into the folder, or resize the model's token embeddings"
    )


def test_a_folder_without_tokenizer(refused_adapt, workplace):
    for path in (workplace / "bert").glob("tokenizer*"):
        path.unlink()
    assert refused_adapt() == "bert: has no tokenizer; save the model's own into the folder"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--k", "17", "--max-length", "16"], "BertModel (bert): k must be at most the 16 tokens read at once, got 17"),
        (["--k", "-1"], "--k must be at least 0, got -1"),
        (["--k", "0", "--window", "0"], "--k 0 leaves only the window, and --window 0 leaves nothing to attend to"),
        (["--exact-below", "-1"], "--exact-below must be at least 0, got -1"),
        (["--encoding", "nothing"], "--encoding nothing: there is no such encoding; try utf-8 or cp1252"),
        (
            ["--delimiter", "abc"],
            "--delimiter must be one character or comma, tab, semicolon, bar, none, got 'abc'",
        ),
        (
            ["--fsdp", "--precision", "fp16"],
            "--fsdp does not go with --precision fp16, whose scale differs by process: take bf16",
        ),
        (["--fsdp", "--compile"], "--compile is for a single process: leave out --fsdp"),
        (
            ["--fsdp"],
            "--fsdp shares the weights among processes, and there is 1: torchrun --nproc-per-node 2 -m "
            "torch_linformer.cli adapt --fsdp ...",
        ),
        (["--window", "-1"], "--window must be at least 0, got -1"),
        (["--max-length", "7"], "--max-length must be at least 8, got 7"),
        (["--minutes", "0"], "--minutes must be a number above 0, got 0.0"),
        (["--task", "tag"], "--task must be one of embed, mlm, classify, got 'tag'"),
        (["--task", "mlm"], "--task mlm: bert has no head for it; --task embed adapts only the encoder"),
        (
            ["--task", "mlm", "--label-column", "label"],
            "--label-column is for --task classify: nothing else has labels",
        ),
        (["--label-column", "label"], "--label-column is for a classifier, and this model has none"),
        (["--test", "1.5"], "1.5 is no part of the data: give a fraction above 0 and below 1, or a path"),
    ],
)
def test_options_out_of_range(refused_adapt, options, message):
    assert refused_adapt("bert", "texts.csv", *options) == message


def test_labels_of_another_model(refused_adapt, workplace):
    config = BertConfig.from_pretrained("bert", id2label={0: "rain", 1: "sun"}, label2id={"rain": 0, "sun": 1})
    BertForSequenceClassification(config).save_pretrained("bert")
    message = refused_adapt("bert", "texts.csv", "--label-column", "label")
    assert message.startswith("texts.csv: ") and "with label 'snow', which " in message


def test_no_texts_or_too_few(refused, refused_adapt, write_csv):
    assert refused("adapt", "bert") == "--data is missing: name texts such as those that the model is to read"
    assert refused_adapt("bert", "nowhere.csv").startswith("nowhere.csv: ")
    write_csv("few.csv", [(text, "") for text in WORDS])
    assert refused_adapt("bert", "few.csv") == "few.csv: leaves 5 texts for training; at least 20 are needed"
    write_csv("empty.csv", [("", "a"), (" ", "b")])
    assert refused_adapt("bert", "empty.csv").startswith("empty.csv: ")


def test_no_text_is_long_enough_for_slots(refused_adapt, write_csv, weather):
    write_csv("short.csv", weather(220, seed=0))
    message = refused_adapt("bert", "short.csv", "--max-length", "16")
    assert message.startswith("the longest text has 16 tokens, and texts of up to 776 get full attention")
    assert "nothing to adapt" in message and "--exact-below 0" in message


@pytest.mark.parametrize(
    ("modules", "pooling", "message"),
    [
        (["Transformer", "Pooling", "Dense"], {}, "bert: its modules are Transformer, Pooling, Dense; understood"),
        (["Transformer", "Pooling"], {"pooling_mode_weightedmean_tokens": True}, "bert: pools by pooling_mode_weight"),
        (
            ["Transformer", "Pooling"],
            {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True},
            "bert: pools by cls, mean; only mean, cls or max are understood",
        ),
        (["Transformer", "Pooling"], None, "bert: modules.json or a folder it names cannot be read ("),
    ],
)
def test_folders_of_sentence_transformers_of_another_kind(refused_adapt, workplace, modules, pooling, message):
    paths = ["", *(f"{number}_{name}" for number, name in enumerate(modules[1:], start=1))]
    parts = [
        {"path": path, "type": f"sentence_transformers.models.{name}"}
        for name, path in zip(modules, paths, strict=True)
    ]
    (workplace / "bert" / "modules.json").write_text(json.dumps(parts))
    if pooling is not None:
        (workplace / "bert" / "1_Pooling").mkdir()
        (workplace / "bert" / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    assert refused_adapt().startswith(message)


def test_a_folder_that_is_taken(refused_adapt, workplace):
    (workplace / "run").mkdir()
    (workplace / "run" / "notes.txt").touch()
    message = "--output run: is not empty and holds no run; name another folder"
    assert refused_adapt("bert", "texts.csv", "--output", "run") == message
