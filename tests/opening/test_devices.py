import pytest
import torch

from torch_linformer.errors import InputError
from torch_linformer.opening.devices import PRECISIONS, autocast, resolve_device, resolve_precision


def test_auto_takes_a_gpu_if_there_is_one():
    gpus = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    assert resolve_device("auto") == next((name for name, there in gpus.items() if there), "cpu")
    assert resolve_device("cpu") == "cpu"


@pytest.mark.parametrize("name", ["tpu", "cuda:99", ""])
def test_a_device_that_does_not_exist(name):
    with pytest.raises(InputError, match=rf"^--device {name}: this machine has no such device; it has: .*cpu"):
        resolve_device(name)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_a_gpu_that_is_not_there():
    with pytest.raises(InputError, match=r"^--device cuda: this machine has no such device; it has: "):
        resolve_device("cuda")


def test_precision():
    assert resolve_precision("fp32", "cpu") == "fp32" and resolve_precision("bf16", "cpu") == "bf16"
    assert resolve_precision("fp16", "cuda") == "fp16"
    assert resolve_precision("auto", "mps") == "fp32"


@pytest.mark.parametrize(
    ("capabilities", "precision"),
    [
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True, "amx_bf16": True}, "bf16"),
        ({"cpu_name": "Intel Xeon", "avx512_bf16": True}, "fp32"),
        ({"cpu_name": "AMD EPYC 9R45", "avx512_bf16": True}, "bf16"),
        ({"cpu_name": "AMD EPYC 7R32", "avx2": True}, "fp32"),
        ({}, "fp32"),
    ],
)
def test_auto_is_the_faster_precision_of_a_cpu(capabilities, precision, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities)
    assert resolve_precision("auto", "cpu") == precision


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_fp16_needs_a_cuda_device(device):
    with pytest.raises(InputError, match=f"^--precision fp16 needs a CUDA device, not {device}; use bf16 or"):
        resolve_precision("fp16", device)


def test_a_precision_that_does_not_exist():
    with pytest.raises(InputError, match=r"^--precision must be one of auto, fp32, bf16, fp16, got 'fp8'$"):
        resolve_precision("fp8", "cpu")
    assert "fp8" not in PRECISIONS


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_computes_in_the_precision(precision, dtype):
    with autocast("cpu", precision):
        assert torch.nn.Linear(3, 5)(torch.ones(2, 3)).dtype == dtype
