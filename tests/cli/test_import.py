"""`linformer import`: a whole folder that the other commands open, or one line that says why not."""

import argparse
import json

import pytest
import torch
from transformers import (
    AutoTokenizer,
    BertConfig,
    BertForMaskedLM,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    PreTrainedTokenizerFast,
    XLMRobertaConfig,
    XLMRobertaForSequenceClassification,
)
from transformers.utils import logging

from torch_linformer.cli.app import run
from torch_linformer.models import LinformerForMaskedLM, LinformerForSequenceClassification, LinformerModel
from torch_linformer.models.convert import from_bert, from_fairseq

SIZES = {
    "vocab_size": 300,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 29,
}


@pytest.fixture(scope="module")
def bert(tmp_path_factory, classifier_run):
    """A folder with a small BERT and a tokenizer."""
    logging.disable_progress_bar()
    folder = tmp_path_factory.mktemp("bert") / "model"
    torch.manual_seed(0)
    BertForMaskedLM(BertConfig(**SIZES)).save_pretrained(folder)
    AutoTokenizer.from_pretrained(classifier_run.folder).save_pretrained(folder)
    return folder


@pytest.fixture
def lucidrains(tmp_path):
    """A state dict as lucidrains/linformer writes them, of one layer, 3 heads, 29 tokens and 7 slots."""
    shapes = {
        "0.norm.weight": [15],
        "0.norm.bias": [15],
        "0.fn.to_q.weight": [15, 15],
        "0.fn.to_k.weight": [15, 15],
        "0.fn.to_v.weight": [15, 15],
        "0.fn.proj_k": [29, 7],
        "0.fn.proj_v": [29, 7],
        "0.fn.to_out.weight": [15, 15],
        "0.fn.to_out.bias": [15],
        "1.norm.weight": [15],
        "1.norm.bias": [15],
        "1.fn.w1.weight": [60, 15],
        "1.fn.w1.bias": [60],
        "1.fn.w2.weight": [15, 60],
        "1.fn.w2.bias": [15],
    }
    torch.save({f"net.layers.0.{name}": torch.randn(shape) for name, shape in shapes.items()}, tmp_path / "model.pt")
    return tmp_path / "model.pt"


@pytest.fixture
def call(capfd):
    """A function: run the command, and return its status and what it wrote."""

    def run_it(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run([str(argument) for argument in arguments])
        return exit_.value.code, *capfd.readouterr()

    return run_it


def test_a_bert_and_its_tokenizer(call, bert, tmp_path):
    output = tmp_path / "imported"
    options = ["--max-length", 41, "--k", 7, "--projection", "linear"]
    status, out, err = call("import", bert, "--from", "bert", "--output", output, *options)
    assert (status, err) == (0, "")
    model = LinformerForMaskedLM.from_pretrained(output)
    assert out == f"{output}: LinformerForMaskedLM, {model.num_parameters():,} parameters\n"
    expected = from_bert(bert, max_len=41, k=7, projection="linear")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
    tokenizer = AutoTokenizer.from_pretrained(output)
    assert isinstance(tokenizer, PreTrainedTokenizerFast) and tokenizer.model_max_length == 41
    assert tokenizer("naïve mud").input_ids == AutoTokenizer.from_pretrained(bert)("naïve mud").input_ids
    assert {path.name for path in output.parent.iterdir()} == {"imported"}

    status, out, _ = call("info", output)
    assert status == 0
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "class LinformerForMaskedLM" in lines and f"tokenizer {len(tokenizer)} tokens" in lines


def test_weights_without_a_tokenizer(call, lucidrains, tmp_path):
    output = tmp_path / "imported"
    assert call("import", lucidrains, "--from", "lucidrains", "--output", output, "--heads", 3)[0] == 0
    assert {path.name for path in output.iterdir()} == {"config.json", "model.safetensors", "modeling_linformer.py"}
    assert LinformerModel.from_pretrained(output).config.num_attention_heads == 3
    status, out, _ = call("info", output)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0 and "class LinformerModel" in lines and "tokenizer none" in lines


@pytest.mark.parametrize(
    ("origin", "config", "classifier"),
    [
        ("bert", BertConfig(**SIZES), BertForSequenceClassification),
        ("xlm-roberta", XLMRobertaConfig(**SIZES), XLMRobertaForSequenceClassification),
        (
            "distilbert",
            DistilBertConfig(vocab_size=300, dim=15, n_layers=2, n_heads=3, hidden_dim=23, max_position_embeddings=29),
            DistilBertForSequenceClassification,
        ),
    ],
)
@pytest.mark.parametrize("names", [("mud", "sand", "sea"), ("value",)], ids=["labels", "a number"])
def test_a_classifier_predicts(call, bert, tmp_path, origin, config, classifier, names):
    config.id2label = dict(enumerate(names))
    classifier(config).save_pretrained(tmp_path / "theirs")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.save_pretrained(tmp_path / "theirs")
    output, text = tmp_path / "imported", tmp_path / "text.txt"
    assert call("import", tmp_path / "theirs", "--from", origin, "--output", output, "--max-length", 23)[0] == 0
    text.write_text("wet mud")
    status, out, _ = call("predict", output, text, "--precision", "fp32")
    assert status == 0
    (answer,) = map(json.loads, out.splitlines())
    model = LinformerForSequenceClassification.from_pretrained(output)
    (logits,) = model(**tokenizer("wet mud", return_tensors="pt")).logits
    if len(names) == 1:
        assert answer["value"] == pytest.approx(logits.item(), abs=1e-5)
    else:
        expected = dict(zip(names, logits.softmax(-1).tolist(), strict=True))
        assert answer["probabilities"] == pytest.approx(expected, abs=1e-5)


def test_a_model_of_choices_can_be_looked_at(call, tmp_path):
    BertForMultipleChoice(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    output = tmp_path / "imported"
    assert call("import", tmp_path / "bert", "--from", "bert", "--output", output)[0] == 0
    status, out, _ = call("info", output)
    assert status == 0 and "LinformerForMultipleChoice" in out


def test_what_is_left_out_is_on_the_screen(start_command, tmp_path):
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    arguments = ("import", tmp_path / "bert", "--from", "bert", "--output", tmp_path / "imported")
    process = start_command(*map(str, arguments), stdout=-1, stderr=-1)
    out, err = process.communicate()
    assert process.returncode == 0 and out.startswith(f"{tmp_path}/imported: LinformerModel, ")
    assert err == "left out, having no counterpart: pooler.dense.bias, pooler.dense.weight\n"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "lucidrains"], "the weights do not tell the number of heads: give num_heads (--heads)"),
        (
            ["--from", "keras"],
            "--from must be one of lucidrains, linformer-pytorch, fairseq, bert, roberta, xlm-roberta, distilbert, "
            "got 'keras'",
        ),
        (["--from", "lucidrains", "--heads", "3", "--k", "5"], "--k has no effect with --from lucidrains"),
        (
            ["--from", "linformer-pytorch", "--max-length", "5"],
            "--max-length has no effect with --from linformer-pytorch",
        ),
        (
            ["--from", "fairseq", "--heads", "3"],
            "these are not the weights of a fairseq linformer_roberta model: missing ",
        ),
        (["--from", "linformer-pytorch"], "these are not the weights of a linformer-pytorch model: missing "),
        (["--from", "bert"], "is no model folder: it has no config.json"),
    ],
)
def test_bad_input_is_one_line_and_no_folder(call, lucidrains, tmp_path, options, message):
    status, out, err = call("import", lucidrains, "--output", tmp_path / "imported", *options)
    assert (status, out) == (2, "") and err.startswith("linformer: ") and err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


@pytest.mark.parametrize("origin", ["lucidrains", "bert"])
def test_a_source_that_is_not_there(call, tmp_path, origin):
    status, _, err = call("import", tmp_path / "nowhere", "--from", origin, "--output", tmp_path / "imported")
    assert status == 2 and err.startswith(f"linformer: {tmp_path}/nowhere: no such f")


def test_a_pickle_that_would_run_code(call, tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    status, _, err = call("import", tmp_path / "model.pt", "--from", "fairseq", "--output", tmp_path / "imported")
    assert status == 2 and "refused, because it holds torch.nn.modules.linear.Linear" in err and err.count("\n") == 1


def test_a_folder_that_is_taken_is_left_alone(call, bert, tmp_path):
    (tmp_path / "file").touch()
    status, _, err = call("import", bert, "--from", "bert", "--output", tmp_path)
    assert (status, err) == (2, f"linformer: --output {tmp_path}: is not empty; name another folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_broken_tokenizer_leaves_no_folder(call, bert, tmp_path):
    for path in bert.iterdir():
        (tmp_path / "bert").mkdir(exist_ok=True)
        (tmp_path / "bert" / path.name).write_bytes(path.read_bytes())
    (tmp_path / "bert" / "tokenizer.json").write_text("{")
    status, _, err = call("import", tmp_path / "bert", "--from", "bert", "--output", tmp_path / "imported")
    assert status == 2 and "the tokenizer cannot be read" in err and err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


def test_a_tokenizer_that_does_not_belong_to_the_model_leaves_no_folder(call, bert, tmp_path):
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    tokenizer = AutoTokenizer.from_pretrained(bert)
    tokenizer.add_tokens([f"word{number}" for number in range(301 - len(tokenizer))])
    tokenizer.save_pretrained(tmp_path / "bert")
    status, _, err = call("import", tmp_path / "bert", "--from", "bert", "--output", tmp_path / "imported")
    assert status == 2 and err.count("\n") == 1
    assert f"{tmp_path}/bert: the tokenizer has 301 tokens and the model 300: they do not belong together; " in err
    assert [path.name for path in tmp_path.iterdir()] == ["bert"]


def test_the_other_commands_say_what_a_bare_model_cannot_do(call, lucidrains, bert, tmp_path, write_csv):
    output, data = tmp_path / "imported", write_csv(tmp_path / "data.csv", [("wet mud", "rain")])
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    AutoTokenizer.from_pretrained(bert).save_pretrained(tmp_path / "bert")
    assert call("import", tmp_path / "bert", "--from", "bert", "--output", output)[0] == 0
    messages = {
        (
            "evaluate",
            output,
            "--data",
            data,
        ): "of 1 documents no two have the same label, so none can be found",
        ("predict", output, data): "LinformerModel predicts nothing of a document: linformer embed writes the vectors",
    }
    for arguments, message in messages.items():
        status, _, err = call(*arguments)
        assert status == 2 and err.startswith(f"linformer: {message}") and err.count("\n") == 1


def test_fairseq_options_are_read_from_the_file(call, tmp_path):
    torch.manual_seed(0)
    linear = {"{}.weight": [15, 15], "{}.bias": [15]}
    norm = {"{}.weight": [15], "{}.bias": [15]}
    shapes = {"embed_tokens.weight": [37, 15], "embed_positions.weight": [31, 15]}
    parts = {"layernorm_embedding": norm, "layers.0.self_attn_layer_norm": norm, "layers.0.final_layer_norm": norm}
    parts |= {f"layers.0.self_attn.{name}_proj": linear for name in ("q", "k", "v", "out")}
    parts |= {"layers.0.fc1": linear, "layers.0.fc2": linear}
    shapes |= {"layers.0.self_attn.compress_k.weight": [7, 29]}
    shapes |= {name.format(part): shape for part, names in parts.items() for name, shape in names.items()}
    state = {f"encoder.sentence_encoder.{name}": torch.randn(shape) for name, shape in shapes.items()}
    checkpoint = {"model": state, "args": argparse.Namespace(encoder_attention_heads=3)}
    torch.save(checkpoint, tmp_path / "checkpoint.pt")
    output = tmp_path / "imported"
    assert call("import", tmp_path / "checkpoint.pt", "--from", "fairseq", "--output", output)[0] == 0
    model, expected = LinformerModel.from_pretrained(output), from_fairseq(checkpoint)
    assert model.config.num_attention_heads == 3
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), expected.parameters(), strict=True))
