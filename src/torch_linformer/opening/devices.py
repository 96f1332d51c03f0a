"""The device that a model runs on, the dtype of its weights and the precision that it computes in."""

from collections.abc import Sequence

import torch

from torch_linformer.errors import InputError

DEVICES = ("cuda", "mps", "cpu")  # "auto" takes the first that is available
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
# Of every model that is opened, whatever its file has: in half precision small steps of a training are lost, and CPUs
# lack some operations. The precision decides what is computed in less.
WEIGHTS = torch.float32


def resolve_device(name: str, among: Sequence[str] = DEVICES) -> str:
    """The device of that name, if it is one of `among` and on this machine; ``auto`` takes a GPU if there is one."""
    present = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}
    available = [device for device in among if present[device]]
    if name == "auto":
        return available[0]
    if name not in available:
        raise InputError(f"--device {name}: this machine has no such device; it has: {', '.join(available)}")
    return name


def resolve_precision(name: str, device: str) -> str:
    """``fp32``, ``bf16`` or ``fp16``; ``auto`` is bf16 where the device is faster in it."""
    if name not in PRECISIONS:
        raise InputError(f"--precision must be one of {', '.join(PRECISIONS)}, got {name!r}")
    if name == "fp16" and device != "cuda":
        raise InputError(f"--precision fp16 needs a CUDA device, not {device}; use bf16 or fp32")
    if name != "auto":
        return name
    if device == "cuda":
        return "bf16" if torch.cuda.is_bf16_supported(including_emulation=False) else "fp32"
    return "bf16" if device == "cpu" and _cpu_is_faster_in_bf16() else "fp32"


def autocast(device: str, precision: str) -> torch.autocast:
    """A context in which a model computes in ``precision``."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device, dtype, enabled=precision != "fp32")


def _cpu_is_faster_in_bf16() -> bool:
    """Whether the CPU multiplies bf16 matrices faster than float32: by matrix tiles, or AMD's AVX-512.

    Measured on an EPYC Zen 5 and on a Xeon without tiles (docs/log.md).
    """
    capabilities = torch.cpu.get_capabilities() if hasattr(torch.cpu, "get_capabilities") else {}
    by_vectors = capabilities.get("avx512_bf16") and "AMD" in capabilities.get("cpu_name", "")
    return bool(capabilities.get("amx_bf16") or by_vectors)
