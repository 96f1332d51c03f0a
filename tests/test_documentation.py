"""The README, which has to stand by itself on PyPI, the examples in docstrings, and the page of commands."""

import doctest
import importlib
import importlib.util
import re
from pathlib import Path

import pytest
import torch
import typer

from torch_linformer.cli.app import app

ROOT = Path(__file__).resolve().parents[1]
SOURCES = ROOT / "src"
README = (ROOT / "README.md").read_text(encoding="utf-8")
WITH_EXAMPLES = [path for path in sorted(SOURCES.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", WITH_EXAMPLES, ids=lambda path: path.stem)
def test_examples_in_docstrings_give_what_they_show(path):
    module = importlib.import_module(".".join(path.relative_to(SOURCES).with_suffix("").parts))
    examples = [found for found in doctest.DocTestFinder().find(module, globs={}) if found.examples]
    assert examples
    for example in examples:
        shown = []
        doctest.DocTestRunner().run(example, out=shown.append)
        assert not shown, "".join(shown)


def test_readme_has_no_link_that_breaks_on_pypi():
    targets = re.findall(r"\]\(([^)]*)\)|(?:src|href)=\"([^\"]*)\"|^\[[^\]]+\]: (\S+)", README, re.MULTILINE)
    relative = [target for found in targets if not (target := "".join(found)).startswith("https://")]
    assert relative == []


def test_readme_names_files_that_exist():
    named = re.findall(r"`((?:docs|examples|benchmarks)/[^` ]*|[\w.]+\.md)`", README)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_readme_stays_a_door():
    assert README.count("\n") <= 130


def test_python_of_the_readme_runs():
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    assert blocks
    with torch.no_grad():  # half the time
        for block in blocks:
            exec(block, {})


def test_rows_measured_in_the_readme_are_those_of_the_results():
    """Every row of its table stands on docs/results.md, so that a figure is changed in one sitting."""
    table = re.search(r"^## Measured\n(.*?)^## ", README, re.MULTILINE | re.DOTALL)[1]
    rows = re.findall(r"^\| .*\|$", table, re.MULTILINE)
    assert len(rows) > 5
    results = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    assert [row for row in rows if row not in results] == []


def test_the_site_has_every_option_of_every_command():
    spec = importlib.util.spec_from_file_location("conf", ROOT / "docs" / "conf.py")
    conf = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(conf)
    source = ["# Commands\n"]
    conf.add_help(None, "docs/commands", source)
    sections = dict(re.findall(r"^## linformer (\S+)\n(.*?)(?=^## |\Z)", source[0], re.MULTILINE | re.DOTALL))
    commands = typer.main.get_command(app).commands
    assert sections.keys() == commands.keys()
    for name, command in commands.items():
        options = [
            option
            for each in command.params
            if not getattr(each, "hidden", False)
            for option in each.opts
            if option.startswith("--")
        ]
        assert "--debug" in options
        assert [option for option in options if not re.search(rf"{option}(?![\w-])", sections[name])] == []
