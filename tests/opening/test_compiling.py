"""What torch.compile needs, looked for before it is waited for."""

import pytest

from torch_linformer.errors import InputError
from torch_linformer.opening import compiling


def test_a_cpu_needs_a_compiler_and_headers(monkeypatch, tmp_path):
    (tmp_path / "Python.h").touch()
    monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr(compiling.shutil, "which", lambda name: name)
    assert compiling.why_not_compile("cpu") is None
    compiling.require_compiler("cpu")
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
