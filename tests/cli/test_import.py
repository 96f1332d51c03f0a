"""`linformer import`: a whole folder that the other commands open, or one line that says why not."""

import argparse

import pytest
import torch
from transformers import AutoTokenizer

from torch_linformer.cli.app import run
from torch_linformer.models import LinformerModel
from torch_linformer.models.convert import from_fairseq
from torch_linformer.opening.load import load_model


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


def test_weights_without_a_tokenizer(call, lucidrains, tmp_path):
    output = tmp_path / "imported"
    assert call("import", lucidrains, "--from", "lucidrains", "--output", output, "--heads", 3)[0] == 0
    assert {path.name for path in output.iterdir()} == {"config.json", "model.safetensors", "modeling_linformer.py"}
    assert LinformerModel.from_pretrained(output).config.num_attention_heads == 3
    status, out, _ = call("info", output)
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert status == 0 and "class LinformerModel" in lines and "tokenizer none" in lines


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--from", "lucidrains"], "the weights do not tell the number of heads: give num_heads (--heads)"),
        (
            ["--from", "keras"],
            "--from must be one of lucidrains, linformer-pytorch, fairseq, got 'keras'; linformer adapt takes encoders",
        ),
        (["--from", "bert"], "got 'bert'; linformer adapt takes encoders of transformers"),
        (["--from", "lucidrains", "--activation", "relu"], "--activation has no effect with --from lucidrains"),
        (["--from", "linformer-pytorch", "--heads", "5"], "--heads has no effect with --from linformer-pytorch"),
        (
            ["--from", "fairseq", "--heads", "3"],
            "these are not the weights of a fairseq linformer_roberta model: missing ",
        ),
        (["--from", "linformer-pytorch"], "these are not the weights of a linformer-pytorch model: missing "),
    ],
)
def test_bad_input_is_one_line_and_no_folder(call, lucidrains, tmp_path, options, message):
    status, out, err = call("import", lucidrains, "--output", tmp_path / "imported", *options)
    assert (status, out) == (2, "") and err.startswith("linformer: ") and err.count("\n") == 1
    assert message in err
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_source_that_is_not_there(call, tmp_path):
    status, _, err = call("import", tmp_path / "nowhere", "--from", "lucidrains", "--output", tmp_path / "imported")
    assert (status, err) == (2, f"linformer: {tmp_path}/nowhere: no such file\n")


def test_a_pickle_that_would_run_code(call, tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "model.pt")
    status, _, err = call("import", tmp_path / "model.pt", "--from", "fairseq", "--output", tmp_path / "imported")
    assert status == 2 and "refused, because it holds torch.nn.modules.linear.Linear" in err and err.count("\n") == 1


def test_a_folder_that_is_taken_is_left_alone(call, lucidrains, tmp_path):
    status, _, err = call("import", lucidrains, "--from", "lucidrains", "--output", tmp_path)
    assert (status, err) == (2, f"linformer: --output {tmp_path}: is not empty; name another folder\n")
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_the_other_commands_say_what_a_bare_model_cannot_do(call, classifier_run, tmp_path, write_csv):
    output, data = tmp_path / "bare", write_csv(tmp_path / "data.csv", [("wet mud", "rain")])
    model = load_model(str(classifier_run.folder)).base_model
    model.config.pooling = "mean"
    model.save_pretrained(output)
    AutoTokenizer.from_pretrained(classifier_run.folder).save_pretrained(output)
    messages = {
        ("evaluate", output, "--data", data): "of 1 documents no two have the same label, so none can be found",
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
