"""Whatever is wrong with what the user gave: one line that says so, status 2, and nothing half-written."""

import json
import os
import shutil
import subprocess
import sys

import pyarrow
import pytest
import torch
from pyarrow import parquet

from torch_linformer.cli.app import run
from torch_linformer.cli.explaining import explain
from torch_linformer.models import LinformerForQuestionAnswering
from torch_linformer.opening.load import load_config, load_tokenizer

ROWS = [(f"wet mud {i}", "rain") for i in range(15)] + [(f"sea sand {i}", "sun") for i in range(15)]


@pytest.fixture(autouse=True)
def workplace(tmp_path, monkeypatch, write_csv):
    """The current folder: new, with a good file in it."""
    monkeypatch.chdir(tmp_path)
    write_csv("good.csv", ROWS)
    return tmp_path


def of_training(refused, data="good.csv", **options):
    each = [(name, one) for name, value in options.items() for one in (value if isinstance(value, list) else [value])]
    spelled = [f"--{name.replace('_', '-')}={value}" for name, value in each]
    return refused("train", "--data", data, "--max-length", "32", "--device", "cpu", *spelled)


# Data


@pytest.mark.parametrize("path", ["nowhere.csv", "no/such/folder", "/nowhere", "nowhere.txt"])
def test_a_missing_file_or_folder(refused, path):
    assert of_training(refused, path) == f"{path}: no such file or folder"


def test_a_name_that_is_neither_here_nor_on_the_hub(refused):
    message = of_training(refused, "no_such_dataset")
    assert message.startswith("no_such_dataset: no such file or folder, nor within reach as a Hugging Face data set")


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_missing_part(refused, part):
    assert of_training(refused, **{part: "gone.csv"}) == "gone.csv: no such file or folder"
    assert "1.5 is no part of the data: give a fraction above 0 and below 1, or a path" in of_training(
        refused, **{part: "1.5"}
    )


@pytest.mark.parametrize(("name", "content"), [("a.xlsx", b"PK\3\4"), ("a.dat", b"\0\1\2\3"), ("a.csv", b"a\0b")])
def test_an_unknown_format(refused, workplace, name, content):
    (workplace / name).write_bytes(content)
    message = of_training(refused, name)
    said = (
        "sheets are not read; save" if name.endswith("xlsx") else "not text, nor another known format; known are .csv"
    )
    assert message.startswith(f"{name}: {said}")


def test_a_table_without_a_header_can_be_told(refused):
    assert refused("train", "--data", "good.csv", "--no-header", "--text-column", "text") == (
        "good.csv: no column 'text', which --text-column names; columns: '1', '2'"
    )


def test_a_missing_column_lists_the_columns(refused):
    listed = "columns: 'text', 'label'"
    assert (
        of_training(refused, text_column="body") == f"good.csv: no column 'body', which --text-column names; {listed}"
    )
    assert listed in of_training(refused, label_column="body")


def test_an_ambiguous_column_lists_the_columns(refused, write_csv):
    write_csv("two.csv", [(*row, "x") for row in ROWS], header=("text", "label", "category"))
    assert of_training(refused, "two.csv") == (
        "two.csv: 'label', 'category' could each be the label column; name it with --label-column; "
        "columns: 'text', 'label', 'category'"
    )
    write_csv("none.csv", [(*row, "x") for row in ROWS], header=("a", "b", "c"))
    message = of_training(refused, "none.csv")
    assert "'b', 'c' could each be the label column; name it with --label-column; columns: 'a', 'b', 'c'" in message
    write_csv("texts.csv", [(row[0], row[0], "x") for row in ROWS], header=("a", "b", "c"))
    message = of_training(refused, "texts.csv")
    assert "'a', 'b' could each be the text column; name it with --text-column; columns: 'a', 'b', 'c'" in message


@pytest.mark.parametrize(("name", "content"), [("a.csv", ""), ("a.csv", "text,label\n"), ("a.jsonl", "\n\n")])
def test_an_empty_data_set(refused, workplace, name, content):
    (workplace / name).write_text(content)
    assert of_training(refused, name) == f"{name}: holds no rows"


def test_documents_without_any_text(refused, write_csv):
    write_csv("blank.csv", [(" ", "a"), ("", "b")])
    message = of_training(refused, "blank.csv", text_column="text")
    assert message == "blank.csv: no row of the 2 has any text in column 'text'"


def test_an_empty_folder(refused, workplace):
    (workplace / "texts").mkdir()
    assert of_training(refused, "texts") == "texts: holds no rows"


def test_one_label_only(refused, write_csv):
    write_csv("one.csv", ROWS[:15])
    assert of_training(refused, "one.csv").startswith("every document has the label 'rain': a classifier needs two")


@pytest.mark.parametrize("part", ["validation", "test"])
def test_a_label_unseen_in_training(refused, write_csv, part):
    write_csv("other.csv", [*ROWS[:3], ("boom", "thunder")])
    assert of_training(refused, **{part: "other.csv"}) == (
        "other.csv: 1 document with label 'thunder', which no training document has (rain, sun)"
    )


def test_too_few_documents_to_split(refused, write_csv):
    write_csv("few.csv", [ROWS[0], ROWS[-1]])
    assert of_training(refused, "few.csv") == (
        "cannot split 2 documents, no two of which have the same label: give several of each, or a file for each part"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"data": "texts.csv"}, "texts.csv: no query column found; name it with --query-column; columns: 'a'"),
        ({"data": "pairs.csv", "text_column": "query"}, "--text-column is for another task; this one reads a document"),
        ({"data": "pairs.csv", "overflow": "windows"}, "--overflow windows is not for --task embed, which makes one"),
        ({"data": "pairs.csv", "documents": "gone.csv"}, "gone.csv: no such file or folder"),
        ({"data": "pairs.csv", "documents": "pairs.csv", "label_column": "a"}, "--label-column is for one table of"),
        ({"data": "good.csv", "task": "classify", "documents": "good.csv"}, "--documents goes with --task embed, not"),
        (
            {"data": "once.csv"},
            "cannot split 10 documents, no two of which have the same label: give several of each, or a file for each",
        ),
    ],
    ids=str,
)
def test_a_search_without_its_tables(refused, write_csv, options, message):
    write_csv("pairs.csv", [(f"q {i}", f"wet mud {i}") for i in range(20)], header=("query", "document"))
    write_csv("texts.csv", [(text,) for text, _ in ROWS], header=("a",))
    write_csv("once.csv", [(f"wet mud {i}", f"label {i}") for i in range(10)])
    assert of_training(refused, **{"task": "embed", **options}).startswith(message)


def test_a_malformed_json_line(refused, workplace):
    lines = [json.dumps({"text": text, "label": label}) for text, label in ROWS]
    (workplace / "a.jsonl").write_text("\n".join([*lines, '{"text": "cut of']))
    assert of_training(refused, "a.jsonl").startswith(f"a.jsonl, line {len(ROWS) + 1}: not valid JSON (")
    (workplace / "a.jsonl").write_text("\n".join([*lines, "[1, 2]"]))
    assert of_training(refused, "a.jsonl").startswith(f"a.jsonl, line {len(ROWS) + 1}: expected a JSON object")


def test_a_ragged_csv_row(refused, workplace):
    lines = [",".join(row) for row in ROWS]
    (workplace / "a.csv").write_text("\n".join(["text,label", *lines, "wet, mud, everywhere,rain"]))
    assert of_training(refused, "a.csv").startswith(
        "a.csv, row 31 (line 32): expected 2 cells as in the header, found 4"
    )
    (workplace / "a.csv").write_text("\n".join(["text,label", *lines, '"a, b",rain', '"never closed,rain']))
    assert of_training(refused, "a.csv").startswith(
        "a.csv, row 32 (line 33): unexpected end of data; check the quotes there"
    )


def test_a_damaged_parquet_file(refused, workplace):
    parquet.write_table(pyarrow.table({"text": ["a"] * 9, "label": list("abcabcabc")}), "a.parquet")
    data = (workplace / "a.parquet").read_bytes()
    (workplace / "a.parquet").write_bytes(data[: len(data) // 2])
    assert of_training(refused, "a.parquet").startswith("a.parquet: not a readable Parquet file (")


def test_a_parquet_file_that_unfolds_to_more_than_the_memory(refused):
    texts = pyarrow.DictionaryArray.from_arrays(pyarrow.array([0] * 10**6, pyarrow.int32()), ["mud " * 250_000])
    parquet.write_table(pyarrow.table({"text": texts, "label": ["x", "y"] * 500_000}), "a.parquet", compression="zstd")
    message = of_training(refused, "a.parquet")
    assert message.startswith("a.parquet: its 1,000,000 rows unfold to more than ")


@pytest.mark.parametrize("cell", ["", " ", "NaN", "nan"])
@pytest.mark.parametrize("task", ["classify", "regress"])
def test_a_missing_label(refused, write_csv, cell, task):
    rows = [(text, i % 2) for i, (text, _) in enumerate(ROWS)]
    write_csv("a.csv", [*rows, ("no label here", cell)])
    message = of_training(refused, "a.csv", task=task)
    says = f"column 'label' holds {cell!r}, which stands for no label; write it otherwise, or remove the row"
    says = says if cell.strip() else "no label in column 'label'; fill it in or remove the row"
    assert message == f"a.csv, row 31: {says}"


def test_numbers_as_labels(refused, write_csv):
    write_csv("a.csv", [(text, i / 7) for i, (text, _) in enumerate(ROWS)])
    assert of_training(refused, "a.csv").startswith("a.csv: 30 different numbers as the labels of 30 documents: --task")


# Options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": "0"}, "--k must lie between 1 and --max-length 32, got 0"),
        ({"k": "33"}, "--k must lie between 1 and --max-length 32, got 33"),
        (
            {"size": "base", "model": ["sharing=layerwise", "projection=linear"], "k": ",".join(["8"] * 12)},
            "--model sharing=layerwise has one projection",
        ),
        ({"model": "sharing=kv"}, "--model: sharing='kv' has no effect on slots made by projection='mean': leave it"),
        (
            {"task": "clm", "model": "sharing=kv"},
            "--model: sharing='kv' has no effect on causal attention, whose slots are running means: leave it",
        ),
        ({"model": "attention=full", "window": "16"}, "--window has no effect with --model attention=full: leave"),
        ({"model": "k=4"}, "--model k=4: give --k instead"),
        (
            {"model": "projecton=linear"},
            "--model projecton=linear: no field of a new model; did you mean 'projection'?",
        ),
        ({"model": "chunk_size"}, "--model chunk_size: must be NAME=VALUE"),
        ({"model": ["gated=true", "gated=false"]}, "--model gated=false: stands there twice"),
        ({"model": "hidden_size=wide"}, "--model: Validation error for field 'hidden_size'"),
        ({"model": "projection=linear", "k": "0", "window": "4"}, "--model projection=linear has no effect with --k 0"),
        ({"size": "base", "k": "8,4"}, "--k must be one number or one for each of the 12 layers"),
        ({"model": ["projection=conv", "sharing=all"]}, "--model: sharing must be one of none, kv_per_head, headwise,"),
        (
            {"model": ["projection=random", "slot_mass=fixed"]},
            "--model: slot_mass='fixed' has no effect on slots",
        ),
        (
            {"model": ["exact_first=30", "exact_last=3"]},
            "--model: exact_first + exact_last = 33 tokens, but",
        ),
        ({"device": "tpu"}, "--device must be one of auto, cpu, cuda, mps, got 'tpu'"),
        ({"precision": "fp16"}, "--precision fp16 needs a CUDA device, not cpu; use bf16 or fp32"),
        (
            {"max_length": "100000000000000"},
            "--max-length 100000000000000: numbering the tokens of one text takes 800 TB",
        ),
        ({"max_length": "2"}, "--max-length must be at least 4, got 2"),
        ({"batch_size": "-1"}, "--batch-size must be a number above 0, got -1"),
        ({"learning_rate": "nan"}, "--learning-rate must be a number above 0, got nan"),
        ({"seed": "-1"}, "--seed must be at least 0"),
        ({"tokenizer": "bpe:12"}, "tokenizer 'bpe:12': write bpe:SIZE with a whole number from 260"),
        ({"tokenizer": "nowhere"}, "tokenizer 'nowhere': neither bytes, nor bpe:SIZE, nor a file or folder"),
        ({"config": "nowhere.toml"}, "--config nowhere.toml: No such file or directory"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_that_cannot_be(refused, options, message):
    assert of_training(refused, **options).startswith(message)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["train", "--epoch", "3"], "--epoch"),
        (["train", "--max-length", "long"], "--max-length"),
        (["train", "--epochs", "many"], "--epochs"),
        (["train", "--data"], "--data"),
        (["train", "good.csv"], "good.csv"),
        (["trian"], "trian"),
        (["predict", "model"], "FILE..."),
        (["predict", "model", "good.csv", "--batch-size", "0"], "--batch-size"),
        (["evaluate", "model"], "--data"),
        (["info"], "MODEL"),
    ],
    ids=" ".join,
)
def test_a_command_line_that_cannot_be_read(refused, arguments, said):
    message = refused(*arguments)
    assert said in message and message.endswith("(add --help for what there is)")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
@pytest.mark.parametrize("command", ["train", "predict", "evaluate"])
def test_a_device_that_does_not_exist(refused, classifier_run, command):
    arguments = {
        "train": ["--data", "good.csv"],
        "predict": [classifier_run.folder, "good.csv"],
        "evaluate": [classifier_run.folder, "--data", "good.csv"],
    }
    message = refused(command, *arguments[command], "--device", "cuda")
    assert message.startswith("--device cuda: this machine has no such device; it has: ")


@pytest.mark.parametrize("command", ["predict", "evaluate"])
def test_a_precision_that_does_not_exist(refused, classifier_run, command):
    arguments = {"predict": ["good.csv"], "evaluate": ["--data", "good.csv"]}
    message = refused(command, classifier_run.folder, *arguments[command], "--precision", "fp8")
    assert message == "--precision must be one of auto, fp32, bf16, fp16, got 'fp8'"


# Folders and models


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "runs/one", "good.csv"], "runs/one: no such folder, and no model of that name could be fetched"),
        (["embed", "/no/model", "good.csv", "--output", "o.npy"], "/no/model: no such folder, and no model of that na"),
        (["predict", "runs", "gone.csv"], "gone.csv: no such file or folder"),
        (["evaluate", "runs", "--data", "gone.csv"], "gone.csv: no such file or folder"),
        (["train", "--data", "gone.csv"], "gone.csv: no such file or folder"),
        (["train", "--data", "good.csv", "--test", "runs/t"], "runs/t: no such file or folder"),
        (["train", "--data", "good.csv", "--from", "./gone"], "./gone: no such folder, and no model of that name"),
        (["adapt", "runs/gone", "--data", "good.csv"], "runs/gone: no such folder, and no model of that name"),
        (["adapt", "runs", "--data", "gone.jsonl"], "gone.jsonl: no such file or folder"),
    ],
)
def test_what_is_not_there_is_found_before_libraries_are_imported(workplace, arguments, message):
    """Torch takes seconds to import, and others more."""
    (workplace / "runs").mkdir()
    (workplace / "good.csv").touch()
    code = "import sys; from torch_linformer.cli.app import run\ntry: run()\nfinally: print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, cwd=workplace)
    assert done.stderr.startswith(f"linformer: {message}") and done.stderr.count("\n") == 1
    assert not {"torch", "transformers", "datasets"} & set(done.stdout.split())


def test_an_output_folder_with_something_else(refused, workplace, classifier_run):
    (workplace / "taken").mkdir()
    (workplace / "taken" / "thesis.doc").touch()
    assert of_training(refused, output="taken") == "--output taken: is not empty and holds no run; name another folder"
    assert of_training(refused, output="good.csv") == "--output good.csv: is a file; name a folder"
    shutil.copytree(classifier_run.folder, "run")
    assert of_training(refused, output="run").startswith("--output run: holds another run (--data ")


@pytest.mark.parametrize("output", ["good.csv/run", "/proc/run"])
@pytest.mark.parametrize("command", ["train", "adapt"])
def test_an_output_folder_that_cannot_be_made_is_found_before_the_data_is_read(refused, command, output):
    arguments = ["adapt", "nowhere"] if command == "adapt" else ["train"]
    message = refused(*arguments, "--data", "nowhere", "--output", output)
    assert message.startswith(f"--output {output}: cannot be written to (")
    assert message.endswith("); name another folder")


def test_what_is_made_of_a_model_finds_an_impossible_output_first_too(refused, classifier_run):
    said = "--output good.csv/out: cannot be written to, because of "
    model = classifier_run.folder
    for arguments in (
        ["spectrum", "nowhere", "--data", "x"],
        ["export", "nowhere", "--format", "torch"],
        ["import", "nowhere", "--from", "lucidrains"],
        ["evaluate", model, "--data", "x"],
    ):
        assert refused(*arguments, "--output", "good.csv/out").startswith(said)


def test_a_run_refused_for_its_data_can_be_corrected(refused, workplace, write_csv):
    write_csv("a.csv", [*ROWS, ("no label here", "")])
    assert "no label in column" in of_training(refused, "a.csv", output="run")  # which leaves no folder "run"
    assert not (workplace / "run").exists()


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: (folder / "config.json").unlink(), "is no model folder: it has no config.json"),
        (lambda folder: (folder / "config.json").write_text("{"), "config.json cannot be read: "),
        (lambda folder: os.truncate(folder / "model.safetensors", 5_000), "the weights cannot be read: "),
        (lambda folder: (folder / "model.safetensors").unlink(), "the weights cannot be read: "),
        (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer"),
        (lambda folder: shutil.rmtree(folder), "no such folder, and no model of that name could be fetched"),
    ],
    ids=["no config", "config", "weights", "no weights", "no tokenizer", "no folder"],
)
def test_a_corrupt_model_folder(refused, model_copy, damage, said):
    damage(model_copy)
    for arguments in (["info"], ["predict", "good.csv"], ["evaluate", "--data", "good.csv"]):
        message = refused(arguments[0], model_copy, *arguments[1:])
        assert message.startswith(f"{model_copy}: ") and said in message


def test_a_model_that_lacks_tensors(refused, model_copy):
    path = model_copy / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "num_hidden_layers": 3}))
    assert refused("info", model_copy).startswith(f"{model_copy}: the weights lack linformer.encoder.layers.")


def test_a_model_of_another_task(refused, masked_run):
    message = refused("predict", masked_run.folder, "good.csv")
    assert message == "LinformerForMaskedLM predicts nothing of a document: train a model on another --task"


def test_a_model_for_another_command(refused, masked_run, clm_run):
    message = refused("predict", clm_run.folder, "good.csv")
    assert message == "LinformerForCausalLM predicts nothing of a document: linformer generate goes on with a text"
    message = refused("generate", masked_run.folder, "--prompt", "a")
    assert message == (
        f"{masked_run.folder}: a LinformerForMaskedLM does not continue a text; train a model with --task clm"
    )
    assert refused("generate", "nowhere").startswith("nowhere: no such folder, and no model of that name")
    message = of_training(refused, task="clm", **{"from": masked_run.folder})
    assert message.startswith(f"--from {masked_run.folder}: its tokens see those after them; --task clm begins with")


def test_data_of_prediction_and_evaluation(refused, classifier_run, write_csv):
    model = classifier_run.folder
    assert refused("predict", model, "gone.csv") == "gone.csv: no such file or folder"
    assert refused("evaluate", model, "--data", "gone.csv") == "gone.csv: no such file or folder"
    assert "no column 'body'" in refused("predict", model, "good.csv", "--text-column", "body")
    write_csv("other.csv", [("boom", "thunder")])
    assert "1 document with label 'thunder', which" in refused("evaluate", model, "--data", "other.csv")
    assert not (model / "evaluation.json").exists()


# Other tasks


def rows_of(name, *rows):
    with open(name, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)
    return name


@pytest.mark.parametrize(
    ("task", "rows", "options", "message"),
    [
        ("regress", [{"text": "a", "score": "high"}], {}, "column 'score' holds 'high', no number; --task regress"),
        ("multilabel", [{"text": "a", "labels": {"x": 1}}], {}, "no labels; expected a list of them"),
        ("multilabel", [{"text": "a", "x": 1}], {"label_column": "x,y"}, "no column 'y', which --label-column names"),
        ("multilabel", [{"text": "a", "x": 2}], {"label_column": "x,text"}, "column 'x' holds 2; a column for one"),
        ("multilabel", [{"text": "a", "labels": []}] * 20, {}, "no document has a label: a classifier needs one label"),
        ("token-classify", [{"tokens": ["a", "b"], "tags": ["O"]}], {}, "2 words and 1 tags; give each word one tag"),
        ("token-classify", [{"tokens": ["a"], "x": 1, "y": 2}], {}, "'x', 'y' could each be the label column"),
        ("qa", [{"context": "a", "answers": "a"}], {}, "no question column found; name it with --question-column"),
        (
            "qa",
            [{"context": "a b", "question": "?", "answers": {"text": ["b"], "answer_start": [0]}}],
            {},
            "the answer 'b' does not stand at character 0 of the text",
        ),
        ("qa", [{"context": "a b", "question": "?"}], {}, "no label column found; name it with --label-column"),
        ("seq2seq", [{"article": "a"}], {}, "no target column found; name it with --target-column"),
        ("seq2seq", [{"text": "a", "summary": ""}], {}, "no target in column 'summary'; fill it in or remove the row"),
        ("seq2seq", [{"text": "a"}], {"source_column": "x"}, "no column 'x', which --source-column names"),
    ],
)
def test_rows_that_a_task_cannot_learn(refused, task, rows, options, message):
    assert message in of_training(refused, rows_of("rows.jsonl", *rows), task=task, **options)


def test_columns_of_words_and_json_that_are_none(refused, workplace):
    (workplace / "train.conll").write_text("Ann B-PER\nmet\n")
    assert "train.conll, line 2: expected a token and its tag, found 'met'" in of_training(
        refused, "train.conll", task="token-classify"
    )
    (workplace / "train.json").write_text('{"data": [{"paragraphs": [{"qas": []}]}]}')
    assert "expected an object with 'context', as in SQuAD" in of_training(refused, "train.json", task="qa")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"overflow": "sideways"}, "--overflow must be one of cut, windows, got 'sideways'"),
        ({"stride": "-1"}, "--stride must be at least 0, got -1"),
        (
            {"overflow": "windows", "stride": "30", "lexical": "none", "from": "none"},
            "--stride 30 leaves no new tokens to a window of 30; take fewer",
        ),
        ({"whole_words": "x"}, "Option '--whole-words' does not take a value"),
        ({"question_column": "text"}, "--question-column goes with --task qa, not classify"),
        ({"task": "seq2seq", "label_column": "text"}, "--label-column goes with --task classify, multilabel, "),
        ({"task": "seq2seq", "data": "stdlib"}, "stdlib: holds only texts; give a table with a source and a target"),
        ({"task": "mlm", "overflow": "windows"}, "--overflow windows is not for --task mlm, which reads all"),
        ({"task": "mlm", "class_weights": "balanced"}, "--class-weights goes with --task classify, not mlm"),
        ({"task": "clm", "model": "projection=max"}, "--model: projection='max' has no effect on causal attention"),
        (
            {"task": "clm", "k": "0", "window": "0"},
            "--k 0 leaves only the window, and --window 0 removes it: give one of them a number",
        ),
        ({"window": "-1"}, "--window must be at least 0, got -1"),
        ({"from": "nowhere"}, "nowhere: no such folder, and no model of that name could be fetched"),
        ({"from": "nowhere", "size": "small"}, "--size is for a new model; --from nowhere has its own"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_options_of_tasks_that_cannot_be(refused, options, message):
    assert of_training(refused, **options).startswith(message)


def test_to_begin_with_what_is_no_linformer(refused, workplace, classifier_run):
    reasons = {"gpt2": "is a decoder", "deberta-v2": "scores depend on the distance", "bart": "is an encoder-decoder"}
    for kind, reason in reasons.items():
        (workplace / kind).mkdir()
        (workplace / kind / "config.json").write_text(f'{{"model_type": "{kind}"}}')
        message = of_training(refused, **{"from": kind})
        assert kind in message and reason in message and "\n" not in message
    assert of_training(refused, **{"from": "good.csv"}).startswith("good.csv: is no model folder")
    options = {"from": classifier_run.folder, "max_length": "4"}
    wrong = "--max-length 4: max_len must be at least k = 6, got 4; shorter texts are not padded to it"
    assert of_training(refused, **options) == wrong


def test_questions_and_models_that_do_not_fit(refused, classifier_run, workplace):
    for option in ("--question", "--question-column"):
        message = refused("predict", classifier_run.folder, "good.csv", option, "text")
        assert message == "questions are for models trained with --task qa; this one answers without"
    torch.manual_seed(0)
    model = LinformerForQuestionAnswering(load_config(str(classifier_run.folder)))
    folder = workplace / "qa"
    model.save_pretrained(folder)
    load_tokenizer(str(classifier_run.folder)).save_pretrained(folder)
    (workplace / "letter.txt").write_text("wet mud")
    message = refused("predict", folder, "letter.txt")
    assert message == "letter.txt: a text without a question; ask one of every document with --question"
    assert refused("predict", folder, "good.csv").startswith("good.csv: no question column found; name it with --que")


# What is no error


@pytest.mark.usefixtures("measured_once")
def test_bytes_that_are_not_utf8_empty_documents_and_short_ones(workplace, capfd):
    """K is 30; a document of 3 tokens is no error, nor is one cut at 32. What was detected or skipped is told."""
    lines = [f"{text},{label}".encode() for text, label in ROWS]
    lines += ["für,sun".encode("cp1252"), "schön,rain".encode("cp1252"), b" ,sun", b"x,sun", b"mud " * 200 + b",rain"]
    (workplace / "mixed.csv").write_bytes(b"\n".join([b"text,label", *lines]))
    arguments = "train --data mixed.csv --k 30 --max-length 32 --max-steps 1 --tokenizer bytes --device cpu --test 0.3"
    with pytest.raises(SystemExit) as exit_:
        run([*arguments.split(), "--precision", "fp32"])
    shown, error = capfd.readouterr()
    assert (exit_.value.code, error) == (0, "")
    assert "skipped 1 document without text\n" in shown
    assert "mixed.csv: read as cp1252, as detected ('für,sun'); --encoding names another\n" in shown


# How it is said


@pytest.mark.parametrize(
    "fail",
    [lambda: torch.empty(2**60), lambda: bytearray(2**60)],
    ids=["torch", "Python"],
)
def test_not_enough_memory(fail):
    with pytest.raises((RuntimeError, MemoryError)) as raised:
        fail()
    assert explain(raised.value).startswith("not enough memory: lower --batch-size or --max-length")


def test_debug_shows_where(capsys):
    with pytest.raises(SystemExit) as exit_:
        run(["train", "--data", "gone.csv", "--debug"])
    error = capsys.readouterr().err
    assert exit_.value.code == 2
    assert error.startswith("Traceback") and error.endswith("\nlinformer: gone.csv: no such file or folder\n")


def test_in_a_process_of_its_own(start_command, workplace):
    process = start_command(
        "train", "--data", "gone.csv", cwd=workplace, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.communicate() == ("", "linformer: gone.csv: no such file or folder\n")
    assert process.returncode == 2
