"""The device a model runs on, the dtype of its weights, its precision, and whether torch.compile can compile there."""

import os
import shutil
import sys
import sysconfig
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

import torch
from transformers import PreTrainedModel

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig

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
    if device != "cpu" or not hasattr(torch.cpu, "get_capabilities"):
        return "fp32"
    # CPUs that multiply bf16 faster: by matrix tiles, or AMD's AVX-512. An EPYC Zen 5 and a Xeon without tiles were
    # measured (docs/log.md).
    capabilities = torch.cpu.get_capabilities()
    by_vectors = capabilities.get("avx512_bf16") and "AMD" in capabilities.get("cpu_name", "")
    return "bf16" if capabilities.get("amx_bf16") or by_vectors else "fp32"


def autocast(device: str, precision: str) -> torch.autocast:
    """A context in which a model computes in ``precision``."""
    dtype = torch.float16 if precision == "fp16" else torch.bfloat16
    return torch.autocast(device, dtype, enabled=precision != "fp32")


def why_not_compile(device: str) -> str | None:
    """What is missing for torch.compile on a device, in a few words; None where nothing is known to be missing.

    On a CPU it writes C++ and needs a compiler and Python's headers, on a GPU Triton, which needs a C compiler.
    """
    if device == "cuda":
        if find_spec("triton") is None:
            return "torch.compile needs Triton on a GPU, which is not installed"
        has_compiler = any(map(shutil.which, [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]))
        return None if has_compiler else "Triton needs a C compiler, and there is neither CC nor gcc nor clang"
    if device != "cpu":
        return f"it computes on cpu and cuda, not on {device}"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler on a CPU, and there is no {compiler}; install it or set CXX"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "torch.compile needs Python's headers on a CPU (on Debian the package python3-dev)"
    if " " in torch.__file__:
        return f"torch.compile cannot link on a CPU where torch's own path has a space ({Path(torch.__file__).parent})"
    return None


def require_compiler(device: str) -> None:
    """Refuse ``--compile`` where it cannot be honored, in one line."""
    reason = why_not_compile(device)
    if reason is not None:
        raise InputError(f"--compile: {reason}")


def compile_backbone(model: PreTrainedModel, device: str, *, training: bool = False) -> str:
    """Have torch.compile make kernels of all layers of a model when it is called next; head and loss stay as they are.

    One graph serves all batches and lengths; training, inference and a batch of one row have graphs of their own. The
    model is changed in place: its weights and their names are those that it had, so what is saved is too.

    Returns:
        A sentence for the screen: what the first batch waits for.

    Raises:
        InputError: in one line, where ``--compile`` cannot be honored.
    """
    require_compiler(device)
    if processes.count() > 1:
        raise InputError("--compile is for a single process: leave it out under torchrun")
    config: Any = model.config
    if config.is_encoder_decoder:
        raise InputError("--compile is for models that read; this one writes too, at another length with every token")
    if isinstance(config, LinformerConfig):  # encoders of transformers have neither of these
        memory = config.activation_memory
        if config.chunk_size is not None:
            raise InputError(
                f"--compile does not go with chunk_size={config.chunk_size}: a compiled model reads a text at once"
            )
        if training and memory != "none":
            raise InputError(
                f"--compile does not go with activation_memory={memory}, which computes layers again outside of any "
                "graph"
            )
    cast(Any, model.base_model).compile(dynamic=True)  # a wrapper would name its weights _orig_mod
    slower = "; on a CPU an encoder took 69 s to compile, and then twice as long as without (docs/performance.md)"
    return f"--compile: the first batches wait for the compiler{slower if device == 'cpu' else ''}"
