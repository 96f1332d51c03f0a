"""The package as users get it: the wheel, the sdist, and what happens where an extra is not installed."""

import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

from torch_linformer import __version__

ROOT = Path(__file__).resolve().parents[1]


def run_python(*arguments: str, cwd: Path, path: Path | None = None) -> subprocess.CompletedProcess[str]:
    """This Python in a process of its own, which imports from `path` before anything installed."""
    environment = {**os.environ, "PYTHONPATH": str(path or "")}
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, env=environment, capture_output=True, text=True, timeout=300
    )


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The folder with the sdist and with the wheel that was built out of it."""
    folder = tmp_path_factory.mktemp("dist")
    done = run_python("-m", "build", "--no-isolation", "--outdir", str(folder), str(ROOT), cwd=folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def installed(built, tmp_path_factory):
    """A folder with the wheel installed in it, and nothing else."""
    folder = tmp_path_factory.mktemp("site")
    (wheel,) = built.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target"]
    done = run_python(*install, str(folder), str(wheel), cwd=folder)
    assert done.returncode == 0, done.stderr
    return folder


def test_wheel_holds_the_package_and_no_more(built):
    (wheel,) = built.glob("*.whl")
    assert wheel.name == f"torch_linformer-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        (metadata_name,) = (name for name in names if name.endswith(".dist-info/METADATA"))
        metadata = archive.read(metadata_name).decode().splitlines()
        (entry_points,) = (archive.read(name).decode() for name in names if name.endswith("entry_points.txt"))

    assert {name.split("/")[0] for name in names} == {"torch_linformer", f"torch_linformer-{__version__}.dist-info"}
    assert "torch_linformer/py.typed" in names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    files = (path.relative_to(ROOT / "src") for path in (ROOT / "src").rglob("*") if path.is_file())
    sources = {file.as_posix() for file in files if "__pycache__" not in file.parts}  # templates and scripts too
    assert sources <= set(names)

    assert "License-Expression: MIT" in metadata
    assert "Requires-Python: >=3.11" in metadata
    needed = [line for line in metadata if line.startswith("Requires-Dist:") and "extra ==" not in line]
    assert needed == ["Requires-Dist: torch>=2.6"]
    assert "linformer = torch_linformer.cli:main" in entry_points


def test_version_stands_in_the_changelog_and_the_citation():
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert f"\n## [{__version__}]" in changelog
    assert f"\nversion: {__version__}\n" in citation


def test_sdist_holds_what_it_takes_to_work_on_the_project(built):
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    files = [
        "CHANGELOG.md",
        "CITATION.cff",
        "CODE_OF_CONDUCT.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
        "constraints.txt",
    ]
    files += [
        "docs/log.md",
        "examples/peft_lora.py",
        "pyproject.toml",
        "src/torch_linformer/py.typed",
        "tests/test_packaging.py",
    ]
    assert set(files) <= names
    left_in = {name.split("/")[0] for name in names} & {".git", ".venv", "build", "dist", "runs", "site"}
    assert not left_in


def test_installed_command_runs_away_from_the_checkout(installed, tmp_path):
    done = run_python("-m", "torch_linformer.cli", "--help", cwd=tmp_path, path=installed)
    assert done.returncode == 0, done.stderr
    for command in ("train", "evaluate", "predict", "info"):
        assert command in done.stdout


# Runs the rest of a program as on a machine where `missing` is not installed.
WITHOUT = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Blocker())
"""
HF_EXTRA = ["safetensors", "tokenizers", "transformers"]
TRAIN_EXTRA = [*HF_EXTRA, "accelerate", "datasets", "jinja2", "matplotlib", "rich", "sklearn", "typer"]


def run_without(
    missing: list[str], code: str, cwd: Path, path: Path = ROOT / "src"
) -> subprocess.CompletedProcess[str]:
    return run_python("-c", WITHOUT.format(missing=missing) + textwrap.dedent(code), cwd=cwd, path=path)


@pytest.mark.parametrize("missing", [["transformers"], HF_EXTRA], ids=["transformers", "everything"])
def test_model_without_the_hf_extra_gives_the_install_line(missing, tmp_path):
    code = """
        import torch_linformer
        try:
            torch_linformer.LinformerModel
        except ImportError as error:
            print(error)
    """
    done = run_without(missing, code, tmp_path)
    assert 'pip install "torch-linformer[hf]"' in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("missing", [["typer"], TRAIN_EXTRA], ids=["typer", "everything"])
def test_command_without_its_extra_gives_the_install_line(missing, tmp_path):
    code = """
        from torch_linformer.cli import main
        sys.argv = ["linformer", "info"]
        main()
    """
    done = run_without(missing, code, tmp_path)
    assert done.returncode != 0
    assert 'pip install "torch-linformer[train]"' in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_installed_modules_work_with_torch_alone_away_from_the_checkout(installed, tmp_path):
    code = """
        import torch
        import torch_linformer
        from torch_linformer.nn import LinformerAttention
        print(torch_linformer.__file__, torch_linformer.__version__)
        attention = LinformerAttention(embed_dim=6, num_heads=2, max_len=11, k=5)
        sequence = torch.zeros(3, 7, 6)
        print(tuple(attention(sequence, sequence, sequence)[0].shape))
    """
    done = run_without(TRAIN_EXTRA, code, tmp_path, installed)
    place = installed / "torch_linformer" / "__init__.py"
    assert done.stdout.splitlines() == [f"{place} {__version__}", "(3, 7, 6)"], done.stderr
