import dataclasses

import pytest

from torch_linformer.errors import InputError, flag
from torch_linformer.opening.folder import identity
from torch_linformer.training import train_settings
from torch_linformer.training.run_options import read_config
from torch_linformer.training.sizes import SIZES, size_of_width
from torch_linformer.training.train_settings import TrainSettings

FULL = {"attention": "full"}
LAYERS = SIZES["base"].layers


@pytest.mark.parametrize(("max_length", "slots"), [(2048, 256), (1024, 256), (1000, 250), (64, 16), (4, 1)])
def test_default_slots_are_a_quarter_of_the_length_up_to_256(max_length, slots):
    assert TrainSettings(max_length=max_length).slots == slots


def test_slots_are_one_number_or_one_a_layer():
    assert TrainSettings(k="7").slots == 7
    numbers = list(range(LAYERS, 0, -1))
    assert TrainSettings(k=",".join(map(str, numbers)), size="base").slots == numbers
    assert TrainSettings(k="7,8", model={"num_hidden_layers": 2}).slots == [7, 8]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": "0"}, "--k must lie between 1 and --max-length 64, got 0"),
        ({"k": "65"}, "--k must lie between 1 and --max-length 64, got 65"),
        ({"k": "-3"}, "--k must lie between 1 and --max-length 64, got -3"),
        ({"k": "many"}, "--k must be a number or comma-separated numbers, got 'many'"),
        ({"k": "8,4", "size": "base"}, f"--k must be one number or one for each of the {LAYERS} layers of"),
        ({"epochs": 2.0, "max_steps": 5}, "--epochs and --max-steps both say when to stop: give one of them"),
        ({"size": "huge"}, "--size must be one of tiny, small, base, large, got 'huge'"),
        (
            {"task": "translate"},
            "--task must be one of classify, multilabel, regress, embed, token-classify, qa, mlm, clm, seq2seq, got",
        ),
        ({"compile": True, "fsdp": True}, "--compile is for a single process: leave out --fsdp"),
        ({"compile": True, "context_parallel": 2}, "--compile is for a single process: leave out --context-parallel"),
        ({"compile": True, "task": "mlm"}, "--compile reads one document a row: give --no-packing too"),
        ({"compile": True, "task": "seq2seq"}, "--compile goes with --task classify, multilabel, regress, token-"),
        ({"label_names": "a"}, "--label-names must be two or more different names with commas between them, and no"),
        ({"label_names": "a,b,a"}, "--label-names must be two or more different names with commas between them"),
        ({"label_names": "a,,b"}, "--label-names must be two or more different names with commas between them"),
        ({"label_names": "a,1"}, "--label-names must be two or more different names with commas between them"),
        ({"label_names": "a,b", "task": "qa"}, "--label-names goes with --task classify, multilabel, token-classify"),
        ({"class_weights": "heavy"}, "--class-weights must be one of none, balanced, got 'heavy'"),
        ({"max_length": 3, "k": "1"}, "--max-length must be at least 4, got 3"),
        ({"batch_size": 0}, "--batch-size must be a number above 0, got 0"),
        ({"epochs": float("inf")}, "--epochs must be a number above 0, got inf"),
        ({"learning_rate": float("nan")}, "--learning-rate must be a number above 0, got nan"),
        ({"minutes": -1.0}, "--minutes must be a number above 0, got -1.0"),
        ({"max_steps": 0}, "--max-steps must be a number above 0, got 0"),
        ({"seed": -1}, "--seed must be at least 0 and below 2^32, got -1"),
        ({"whole_words": True}, "--whole-words goes with --task mlm, not classify"),
        ({"packing": False}, "--packing goes with --task mlm, clm, not classify"),
        ({"task": "qa", "context_parallel": 2}, "--context-parallel goes with --task classify, multilabel, regress, "),
        ({"fsdp": True, "precision": "fp16"}, "--fsdp does not go with --precision fp16"),
        ({"task": "mlm", "context_parallel": 2}, "--context-parallel reads one document a row: give --no-packing too"),
        (
            {"model": FULL, "context_parallel": 2},
            "--context-parallel has no effect with --model attention=full",
        ),
        ({"task": "clm", "overflow": "windows"}, "--overflow windows is not for --task clm, which reads all"),
        ({"task": "clm", "k": "0", "window": 0}, "--k 0 leaves only the window, and --window 0 removes it"),
        ({"task": "clm", "k": "-1"}, "--k must lie between 0 and --max-length 64, got -1"),
        ({"k": "0", "window": 8, "task": "seq2seq"}, "--k must lie between 1 and --max-length 64, got 0"),
        ({"task": "seq2seq", "overflow": "windows"}, "--overflow windows is not for --task seq2seq, which writes one"),
        ({"task": "seq2seq", "text_column": "a"}, "--text-column goes with --task classify, multilabel, regress, "),
        ({"task": "seq2seq", "max_target_length": 3}, "--max-target-length must be at least 4, got 3"),
        ({"max_target_length": 8}, "--max-target-length goes with --task seq2seq, not classify"),
        ({"task": "clm", "source_column": "a"}, "--source-column goes with --task seq2seq, not clm"),
        ({"window": -1}, "--window must be at least 0, got -1"),
        ({"from_model": "m", "model": {"gated": True}}, "--model is for a new model; --from m has its own"),
        ({"from_model": "m", "k": "2,3"}, "--k must be one number for an encoder of --from, got '2,3'"),
        ({"freeze": True, "task": "embed"}, "--freeze keeps the weights of another model: name one with --from"),
        ({"freeze_layers": 1}, "--freeze-layers keeps the weights of another model: name one with --from"),
        ({"freeze_layers": -1}, "--freeze-layers must be at least 0, got -1"),
        ({"report_to": "comet"}, "--report-to must be one of tensorboard, wandb, mlflow, got 'comet'"),
        (
            {"freeze_layers": 1, "from_model": "m", "task": "mlm"},
            "--freeze-layers goes with --task classify, multilabel, regress, embed, token-classify, qa, not mlm",
        ),
        (
            {"freeze": True, "from_model": "m", "task": "qa"},
            "--freeze goes with --task classify, multilabel, regress, ",
        ),
        ({"lexical": "always"}, "--lexical always is for --task embed: words of labels are weighed, and stay"),
        ({"overflow": "windows"}, "--overflow windows reads parts of documents one by one, and words are read of who"),
        ({"overflow": "windows", "lexical": "none", "from_model": "m"}, "--overflow windows has no effect here: an en"),
        ({"stride": 8}, "--stride 8 goes with --overflow windows: leave it out, or give that too"),
        ({"read_window": 64}, "--read-window 64 is for an encoder of --from: leave it out"),
        *(
            (
                {"from_model": "m", "task": task, name: value},
                f"{flag(name)} has no effect, as no weight of the encoder is trained: leave it out",
            )
            for task in ("multilabel", "embed")
            for name, value in {
                "epochs": 2.0,
                "max_steps": 3,
                "patience": 0,
                "learning_rate": 1e-3,
                "fsdp": True,
                "compile": True,
                "freeze_layers": 1,
                **({"minutes": 2.0, "batch_size": 4} if task == "multilabel" else {}),
            }.items()
            if (task, name) != ("embed", "compile")
        ),
        (
            {"model": FULL, "window": 16},
            "--window has no effect with --model attention=full: leave it out",
        ),
        (
            {"task": "clm", "model": FULL, "window": 0},
            "--window has no effect with --model attention=full",
        ),
        ({"seed": 2**32}, "--seed must be at least 0 and below 2^32, got 4294967296"),
    ],
)
def test_what_cannot_be_is_refused(options, message):
    with pytest.raises(InputError) as raised:
        TrainSettings(**{"max_length": 64, **options})
    assert str(raised.value).startswith(message)


def test_the_window_and_the_slots_of_a_causal_model():
    new = TrainSettings(task="clm", max_length=2048)
    assert (new.local_window, new.slots) == (64, 64)
    assert TrainSettings(task="clm", max_length=64).slots == 16
    assert TrainSettings(task="clm", k="0").slots == 0 and TrainSettings(task="clm", window=0).local_window is None
    assert TrainSettings().local_window is None and TrainSettings(window=8).local_window == 8
    assert TrainSettings(window=8, k="0").slots == 0


def test_full_attention_has_no_slots_and_no_window():
    full = TrainSettings(model=FULL, task="clm", k="many", max_length=64)  # what is not used is not checked
    assert full.local_window is None and full.slots == 16
    assert not full.applies("window")


@pytest.mark.parametrize(("width", "name"), [(8, "tiny"), (128, "tiny"), (383, "tiny"), (768, "base"), (4096, "large")])
def test_the_size_of_a_model_by_its_width(width, name):
    assert size_of_width(width) is SIZES[name]


def test_every_option_has_a_help_text_and_a_flag():
    for item in dataclasses.fields(TrainSettings):
        assert item.metadata["help"], item.name
    assert flag("max_length") == "--max-length"


VALUES = {
    "data": ('"my data.csv"', "my data.csv"),
    "text-column": ('"body"', "body"),
    "label_column": ('"kind"', "kind"),  # an underscore does as well
    "label-names": ('"O,B-PER"', "O,B-PER"),
    "source-column": ('"long"', "long"),
    "group-column": ('"author"', "author"),
    "encoding": ('"cp1252"', "cp1252"),
    "delimiter": ('"tab"', "tab"),
    "quoting": ('"none"', "none"),
    "header": ("false", False),
    "text-folder": ('"texts"', "texts"),
    "max-errors": ("9", 9),
    "target-column": ('"short"', "short"),
    "max-target-length": ("100", 100),
    "validation": ("0.25", "0.25"),
    "test": ('"test.csv"', "test.csv"),
    "question_column": ('"asked"', "asked"),
    "documents": ('"meetings.parquet"', "meetings.parquet"),
    "query_column": ('"asked"', "asked"),
    "document_column": ('"meeting"', "meeting"),
    "task": ('"mlm"', "mlm"),
    "from": ('"models/first"', "models/first"),
    "overflow": ('"windows"', "windows"),
    "lexical": ('"none"', "none"),
    "vectors": ("8", 8),
    "read-window": ("256", 256),
    "baseline": ("false", False),
    "probe": ("false", False),
    "patience": ("3", 3),
    "freeze": ("true", True),
    "freeze-layers": ("3", 3),
    "stride": ("5", 5),
    "packing": ("false", False),
    "whole-words": ("true", True),
    "tokenizer": ('"bytes"', "bytes"),
    "max-length": ("100", 100),
    "k": ("[" + ", ".join(["9"] * LAYERS) + "]", ",".join(["9"] * LAYERS)),
    "window": ("32", 32),
    "size": ('"base"', "base"),
    "model": ('{ projection = "conv", chunk_size = 512 }', {"projection": "conv", "chunk_size": 512}),
    "context-parallel": ("1", 1),
    "fsdp": ("true", True),
    "compile": ("false", False),
    "class-weights": ('"balanced"', "balanced"),
    "epochs": ("3", 3.0),
    "max-steps": ("50", 50),
    "minutes": ("0.5", 0.5),
    "batch-size": ("4", 4),
    "learning-rate": ("1e-3", 1e-3),
    "seed": ("7", 7),
    "precision": ('"fp32"', "fp32"),
    "device": ('"cpu"', "cpu"),
    "output": ('"out"', "out"),
    "report-to": ('"wandb"', "wandb"),
    "push-to-hub": ('"me/posts"', "me/posts"),
}


def test_a_file_gives_every_option(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("".join(f"{name} = {toml}\n" for name, (toml, _) in VALUES.items()))
    options = read_config(str(path), TrainSettings)
    names = {"from": "from_model"}
    assert options == {names.get(name, name.replace("-", "_")): value for name, (_, value) in VALUES.items()}
    assert set(options) == {item.name for item in dataclasses.fields(TrainSettings)}
    assert type(options["epochs"]) is float


def test_a_number_may_stand_for_text_and_a_file_may_resume(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text("k = 16\nlabel-column = 3\nresume = true\n")
    assert read_config(str(path), TrainSettings) == {"k": "16", "label_column": "3", "resume": True}


@pytest.mark.parametrize(
    ("toml", "message"),
    [
        ("epoch = 3", "unknown option 'epoch'; did you mean 'epochs'?"),
        ("max_lenght = 3", "unknown option 'max_lenght'; did you mean 'max-length'?"),
        ("max-length = 3\nmax_length = 4", "max-length stands there twice; remove one of them"),
        ("[train]\nepochs = 3", "unknown option 'train'; there are data, encoding, "),
        ('epochs = "many"', "epochs must be a number, got 'many'"),
        ("batch-size = 2.5", "batch-size must be a whole number, got 2.5"),
        ('batch-size = "2"', "batch-size must be a whole number, got '2'"),
        ("epochs = true", "epochs must be a number or text, got True"),
        ("packing = 1", "packing must be true or false, got 1"),
        ("data = [1, 2]", "data must be a number or text, got [1, 2]"),
        ("model = 3", "model must be a table of fields and their values, got 3"),
        ("resume = 1", "resume must be true or false, got 1"),
        ("epochs = ", "not valid TOML: "),
        ("caf\xe9 = 1", "not valid TOML: "),
    ],
)
def test_a_file_that_is_wrong(tmp_path, toml, message):
    path = tmp_path / "run.toml"
    path.write_bytes(toml.encode("latin-1"))
    with pytest.raises(InputError) as raised:
        read_config(str(path), TrainSettings)
    assert str(raised.value).startswith(f"--config {path}: {message}")


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(InputError, match=r"--config .*none\.toml: No such file or directory"):
        read_config(str(tmp_path / "none.toml"), TrainSettings)
    with pytest.raises(InputError, match="Is a directory"):
        read_config(str(tmp_path), TrainSettings)


def test_a_tracker_that_is_not_installed_is_refused(monkeypatch):
    monkeypatch.setattr(train_settings, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^--report-to mlflow: the package is not installed: pip install mlflow$"):
        TrainSettings(report_to="mlflow")


def test_one_that_is_does_not_make_another_run_but_needs_steps(monkeypatch):
    monkeypatch.setattr(train_settings, "find_spec", lambda name: name)
    assert identity(TrainSettings(report_to="wandb", push_to_hub="posts")) == identity(TrainSettings())
    with pytest.raises(InputError, match=r"^--report-to has no effect, as no weight of the encoder is "):
        TrainSettings(report_to="wandb", from_model="m")
