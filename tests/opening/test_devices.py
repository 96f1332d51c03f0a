"""The device of a model and its precision; and what torch.compile needs, looked for before it is waited for."""

import copy

import pytest
import torch

from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening import devices
from torch_linformer.opening.devices import autocast, compile_backbone, resolve_device, resolve_precision
from torch_linformer.opening.load import load_model


def test_auto_takes_a_gpu_if_there_is_one():
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert resolve_device("auto") == next((name for name, there in gpus.items() if there), "cpu")
    assert resolve_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["tpu", "cuda:99", "", "cuda"])
def test_a_device_that_is_not_there(name, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(InputError, match=rf"^--device {name}: this machine has no such device; it has: .*cpu"):
        resolve_device(name)


@pytest.mark.parametrize(
    ("name", "device", "capabilities", "precision"),
    [
        ("fp32", "cpu", {"amx_bf16": True}, "fp32"),
        ("bf16", "cpu", {}, "bf16"),
        ("fp16", "cuda", {}, "fp16"),
        ("auto", "mps", {}, "fp32"),
        ("auto", "cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
        ("auto", "cpu", {"cpu_name": "Intel Xeon", "avx512_bf16": True}, "fp32"),
        ("auto", "cpu", {"cpu_name": "AMD EPYC 9R45", "avx512_bf16": True}, "bf16"),
        ("auto", "cpu", {"cpu_name": "AMD EPYC 7R32", "avx2": True}, "fp32"),
        ("auto", "cpu", {}, "fp32"),
    ],
)
def test_auto_is_the_faster_precision_of_a_cpu(name, device, capabilities, precision, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_precision(name, device) == precision


@pytest.mark.parametrize(
    ("name", "device", "message"),
    [
        ("fp16", "cpu", "--precision fp16 needs a CUDA device, not cpu; use bf16 or fp32"),
        ("fp16", "mps", "--precision fp16 needs a CUDA device, not mps; use bf16 or fp32"),
        ("fp8", "cpu", "--precision must be one of auto, fp32, bf16, fp16, got 'fp8'"),
    ],
)
def test_a_precision_that_there_is_not(name, device, message):
    with pytest.raises(InputError, match=f"^{message}$"):
        resolve_precision(name, device)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_computes_in_the_precision(precision, dtype):
    with autocast("cpu", precision):
        assert torch.nn.Linear(3, 5)(torch.ones(2, 3)).dtype == dtype


def test_a_cpu_needs_a_compiler_and_headers(monkeypatch, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(torch, "__file__", "/somewhere/torch/__init__.py")
    monkeypatch.setattr(devices.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(devices.shutil, "which", lambda name: name)
    assert devices.why_not_compile("cpu") is None
    devices.require_compiler("cpu")
    monkeypatch.setattr(torch, "__file__", "/some where/torch/__init__.py")
    assert devices.why_not_compile("cpu").endswith("torch's own path has a space (/some where/torch)")
    (tmp_path / "Python.h").unlink()
    assert "Python's headers" in devices.why_not_compile("cpu")
    monkeypatch.setattr(devices.shutil, "which", lambda name: None)
    monkeypatch.setenv("CXX", "my++")
    with pytest.raises(InputError, match=r"^--compile: .* there is no my\+\+; install it or set CXX$"):
        devices.require_compiler("cpu")


@pytest.mark.parametrize(
    ("device", "triton", "compiler", "reason"),
    [
        ("cuda", None, "cc", "torch.compile needs Triton on a GPU, which is not installed"),
        ("cuda", "triton", None, "Triton needs a C compiler, and there is neither CC nor gcc nor clang"),
        ("cuda", "triton", "cc", None),
        ("mps", "triton", "cc", "it computes on cpu and cuda, not on mps"),
    ],
)
def test_what_other_devices_need(monkeypatch, device, triton, compiler, reason):
    monkeypatch.setattr(devices, "find_spec", lambda name: triton)
    monkeypatch.setattr(devices.shutil, "which", lambda name: compiler)
    assert devices.why_not_compile(device) == reason


def build(**fields):
    sizes = {"vocab_size": 11, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = LinformerConfig(**sizes, intermediate_size=8, max_position_embeddings=9, k=3, **fields)
    return LinformerForSequenceClassification(config).eval()


@pytest.mark.parametrize(
    ("encoder", "shapes", "graphs"),
    [
        (False, [(2, 9), (3, 5), (4, 7)], 1),  # one graph for every batch and length
        (True, [(2, 40), (4, 96), (3, 12)], 2),  # and of an encoder one for batches of short rows
    ],
)
def test_a_compiled_model_computes_and_saves_what_it_did(linear_folder, graph_counter, encoder, shapes, graphs):
    folder = linear_folder("Bert", "ForSequenceClassification", num_hidden_layers=1) if encoder else None
    model = load_model(str(folder)) if encoder else build()
    plain = copy.deepcopy(model)
    assert compile_backbone(model, "cuda") == "--compile: the first batches wait for the compiler"
    with torch.inference_mode():
        for rows, length in shapes:
            mask = torch.ones(rows, length)
            mask[0, length // 2 :] = 0  # which leaves some long rows short
            inputs = {"input_ids": torch.randint(4, 11, (rows, length)), "attention_mask": mask}
            torch.testing.assert_close(model(**inputs).logits, plain(**inputs).logits, rtol=0, atol=1e-4)
    assert graph_counter.frame_count == graphs
    assert list(model.state_dict()) == list(plain.state_dict())


def test_on_a_cpu_the_sentence_tells_what_it_cost(graph_counter):
    assert "69 s to compile, and then twice as long" in compile_backbone(build(), "cpu")


@pytest.mark.parametrize(
    ("fields", "training", "processes", "message"),
    [
        ({"chunk_size": 4}, False, 1, "--compile does not go with chunk_size=4: a compiled model reads a text at"),
        ({"activation_memory": "checkpoint"}, True, 1, "--compile does not go with activation_memory=checkpoint"),
        ({"activation_memory": "checkpoint"}, False, 1, None),  # only training cannot do it
        ({}, False, 2, "--compile is for a single process: leave it out under torchrun"),
    ],
)
def test_what_cannot_be_compiled_is_refused(graph_counter, monkeypatch, fields, training, processes, message):
    monkeypatch.setattr(devices.processes, "count", lambda: processes)
    if message is None:
        compile_backbone(build(**fields), "cpu", training=training)
    else:
        with pytest.raises(InputError, match=message):
            compile_backbone(build(**fields), "cpu", training=training)
