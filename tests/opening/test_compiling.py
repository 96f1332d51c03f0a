"""What torch.compile needs, looked for before it is waited for."""

import copy

import pytest
import torch

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening import devices as compiling


def test_a_cpu_needs_a_compiler_and_headers(monkeypatch, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(torch, "__file__", "/somewhere/torch/__init__.py")
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    assert compiling.why_not_compile("cpu") is None
    compiling.require_compiler("cpu")
    monkeypatch.setattr(torch, "__file__", "/some where/torch/__init__.py")
    assert compiling.why_not_compile("cpu").endswith("torch's own path has a space (/some where/torch)")
    (tmp_path / "Python.h").unlink()
    assert "Python's headers" in compiling.why_not_compile("cpu")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "my++")
    with pytest.raises(InputError, match=r"^--compile: .* there is no my\+\+; install it or set CXX$"):
        compiling.require_compiler("cpu")


def test_a_gpu_needs_triton_and_a_compiler(monkeypatch):
    monkeypatch.setattr(compiling, "find_spec", lambda name: None)
    assert "needs Triton" in compiling.why_not_compile("cuda")
    monkeypatch.setattr(compiling, "find_spec", lambda name: name)
    monkeypatch.setattr(compiling.shutil, "which", lambda name: None)
    assert "needs a C compiler" in compiling.why_not_compile("cuda")
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    assert compiling.why_not_compile("cuda") is None


def test_other_devices_are_not_compiled_for():
    assert compiling.why_not_compile("mps") == "it computes on cpu and cuda, not on mps"


def build(**fields):
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LinformerConfig(**sizes, intermediate_size=8, max_position_embeddings=9, k=3, **fields)
    return LinformerForSequenceClassification(config).eval()


def test_a_compiled_model_computes_and_saves_what_it_did(graph_counter):
    model = build()
    plain = copy.deepcopy(model)
    assert compiling.compile_backbone(model, "cuda") == "--compile: the first batches wait for the compiler"
    with torch.inference_mode():
        for shape in ((2, 9), (3, 5), (4, 7)):
            ids = torch.randint(11, shape)
            torch.testing.assert_close(model(ids).logits, plain(ids).logits)
    assert graph_counter.frame_count == 1, "one graph for every batch and length"
    assert list(model.state_dict()) == list(plain.state_dict())


def test_on_a_cpu_the_sentence_tells_what_it_cost(graph_counter):
    assert "69 s to compile, and then twice as long" in compiling.compile_backbone(build(), "cpu")


@pytest.mark.parametrize(
    ("fields", "training", "message"),
    [
        ({"chunk_size": 4}, False, "--compile does not go with --chunk-size 4: a compiled model reads a text at once"),
        ({"activation_memory": "checkpoint"}, True, "--compile does not go with --activation-memory checkpoint"),
    ],
)
def test_what_cannot_be_compiled_is_refused(graph_counter, fields, training, message):
    with pytest.raises(InputError, match=message):
        compiling.compile_backbone(build(**fields), "cpu", training=training)


def test_what_only_training_cannot_do_is_compiled_for_inference(graph_counter):
    compiling.compile_backbone(build(activation_memory="checkpoint"), "cpu")


def test_several_processes_are_refused(graph_counter, monkeypatch):
    monkeypatch.setattr(compiling.processes, "count", lambda: 2)
    with pytest.raises(InputError, match="--compile is for a single process: leave it out under torchrun"):
        compiling.compile_backbone(build(), "cpu")
