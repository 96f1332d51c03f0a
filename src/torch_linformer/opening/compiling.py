"""Whether torch.compile can compile here: what it needs beside torch, looked for before it is waited for."""

import os
import shutil
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

from torch_linformer.errors import InputError


def why_not_compile(device: str) -> str | None:
    """What is missing for torch.compile on a device, in a few words; None where nothing is known to be missing.

    On a CPU it writes C++ and needs a compiler and Python's headers, on a GPU Triton, which needs a C compiler.
    """
    if device == "cuda":
        if find_spec("triton") is None:
            return "torch.compile needs Triton on a GPU, which is not installed"
        found = any(map(shutil.which, [os.environ["CC"]] if os.environ.get("CC") else ["gcc", "clang"]))
        return None if found else "Triton needs a C compiler, and there is neither CC nor gcc nor clang"
    if device != "cpu":
        return f"it computes on cpu and cuda, not on {device}"
    compiler = os.environ.get("CXX") or ("clang++" if sys.platform == "darwin" else "g++")  # as torch chooses
    if shutil.which(compiler) is None:
        return f"torch.compile needs a C++ compiler on a CPU, and there is no {compiler}; install it or set CXX"
    if not (Path(sysconfig.get_path("include")) / "Python.h").exists():
        return "torch.compile needs Python's headers on a CPU (on Debian the package python3-dev)"
    return None


def require_compiler(device: str) -> None:
    """Refuse ``--compile`` where it cannot be honored, in one line."""
    reason = why_not_compile(device)
    if reason is not None:
        raise InputError(f"--compile: {reason}")
