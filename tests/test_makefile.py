"""`make setup` and `make clients`, which install nothing here: whose environments they touch."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="there is no make here")


@pytest.fixture
def make(tmp_path):
    """A function that runs make in a copy of what the setup reads, and returns how it ended."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, tmp_path)
    python = tmp_path / "python"
    venv = f'[ "$2" = venv ] && exec {sys.executable} -m venv --without-pip "$3"'
    python.write_text(f'#!/bin/sh\n{venv}\nexec {sys.executable} "$@"\n', encoding="utf-8")
    python.chmod(0o755)

    def run(*arguments, install="-c pass"):
        command = ["make", *arguments, f"PYTHON={python}", f"PIP_INSTALL={install}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    return run


def environment_of_somebody(folder, kind):
    """An environment that make did not make; the file in it that is to stay."""
    place = folder.with_name("elsewhere") if kind == "a link" else folder
    place.mkdir()
    if kind == "a link":
        folder.symlink_to(place)
    kept = place / "bin" / "python"
    kept.parent.mkdir()
    kept.symlink_to(sys.executable)
    return kept


@pytest.mark.parametrize("kind", ["a folder", "a link"])
@pytest.mark.parametrize(
    ("goal", "name", "variable"),
    [("setup", ".venv", "VENV"), ("train", ".venv", "VENV"), ("clients", ".venv-clients", "CLIENTS")],
)
def test_an_environment_of_somebody_else_is_left_alone(make, tmp_path, goal, name, variable, kind):
    kept = environment_of_somebody(tmp_path / name, kind)
    before = sorted((tmp_path / name).rglob("*"))
    remedy = f"make {goal} {variable}={name}-dev"
    done = make(goal, install="-c \"open('.venv/installed', 'w')\"" if name == ".venv" else "-c pass")
    assert done.returncode == 2
    line, *of_make = done.stderr.splitlines()
    assert line == f"{name} was not made by this Makefile and stays as it is; name another: {remedy}"
    assert all(re.match(r"make(\[\d+\])?: ", other) for other in of_make)  # of a make within a make, too
    assert kept.is_symlink() and sorted((tmp_path / name).rglob("*")) == before
    if goal != "train":
        done = make(*remedy.split()[1:])
        assert done.returncode == 0, done.stderr
        assert (tmp_path / f"{name}-dev" / "pyvenv.cfg").is_file() and kept.is_symlink()


def test_an_installation_that_was_broken_off_is_made_anew(make, tmp_path):
    assert make("setup", install='-c "raise SystemExit(1)"').returncode == 2
    leftover = tmp_path / ".venv" / "leftover"
    leftover.touch()
    done = make("setup")
    assert done.returncode == 0, done.stderr
    assert not leftover.exists() and (tmp_path / ".venv" / ".installed").exists()
