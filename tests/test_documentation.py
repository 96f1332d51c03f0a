"""The README, in the repository and on PyPI, the quickstart, the examples in docstrings, and the page of commands."""

import doctest
import importlib
import importlib.util
import re
import shlex
from pathlib import Path
from types import ModuleType

import pytest
import torch
import typer
from pages import blocks, python_blocks

from torch_linformer.cli.app import app, run

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


def test_links_of_the_readme_lead_to_files():
    targets = re.findall(r"\]\(([^)]*)\)", README)
    relative = [target for target in targets if not target.startswith("https://")]
    assert len(relative) > 10
    assert [target for target in relative if not (ROOT / target.partition("#")[0]).is_file()] == []


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(page):
    """As they are named: ``docs/architecture.md`` calls a file by the end of its path."""
    named = set(re.findall(r"`([a-z_/]+\.py)`", (ROOT / page).read_text(encoding="utf-8")))
    folders = ("src", "tests", "tools", "benchmarks")
    there = [*ROOT.glob("*.py"), *(path for folder in folders for path in (ROOT / folder).rglob("*.py"))]
    assert [name for name in sorted(named) if not any(path.match(f"*/{name}") for path in there)] == []


@pytest.mark.parametrize("address", [None, "https://example.org/us/torch-linformer"])
def test_on_pypi_the_readme_has_no_link_that_breaks(address):
    module = ModuleType("hatch_build")
    exec((ROOT / "hatch_build.py").read_text(encoding="utf-8"), vars(module))
    metadata = {"urls": {"Repository": address} if address else {}}
    module.ReadmeHook(str(ROOT), {}).update(metadata)
    text = metadata["readme"]["text"]
    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets and all(target.startswith("https://") for target in targets)
    if address:
        assert f"]({address}/blob/main/docs/choose.md)" in text and re.search(
            rf"!\[.*\]\({address}/raw/main/.*png\)", text
        )
    else:
        assert "!" not in text and "When not to use it" in text


def test_readme_stays_a_door():
    lines = README.splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 100 and not line.startswith("![")] == []


def test_python_of_the_readme_is_the_example():
    (block,) = python_blocks("README.md")
    assert (ROOT / "examples" / "quickstart.py").read_text(encoding="utf-8").endswith(f'"""\n\n{block}')


@pytest.mark.parametrize("page", ["README.md", "docs/quickstart.md"])
def test_python_of_the_first_pages_runs(page, minilm_package, tmp_path):
    """Block after block, as one reads them, in an empty folder; what needs a library that is not here is left out."""
    names = {}
    with torch.no_grad():  # half the time
        for block in python_blocks(page):
            needed = re.search(r"^import (faiss)", block, re.MULTILINE)
            if needed is None or importlib.util.find_spec(needed[1]):
                exec(block, names)


@pytest.mark.usefixtures("minilm_package", "measured_once")
def test_commands_of_the_quickstart_run(tmp_path, datasets_cache):
    shell = "".join(code for _, code in blocks("docs/quickstart.md", "sh")).replace("\\\n", " ")
    commands = [shlex.split(line)[1:] for line in shell.splitlines() if line.startswith("linformer ")]
    assert {arguments[0] for arguments in commands} == {"search", "adapt", "embed", "train", "predict"}
    texts = {"refund": "wet mud of grey rain " * 9, "invoice": "warm sand and sun " * 9}
    names = {f"letters/{label}{number}.txt": label for number in range(120) for label in texts}
    (tmp_path / "letters").mkdir()
    for name, label in names.items():
        (tmp_path / name).write_text(f"{texts[label]} {name}", encoding="utf-8")
    rows = "".join(f"{name},{label}\n" for name, label in names.items())
    (tmp_path / "letters.csv").write_text(f"file,label\n{rows}", encoding="utf-8")
    less = {
        "adapt": ["--steps", "1", "--max-length", "32", "--exact-below", "0", "--batch-size", "2"],
        "train": ["--max-length", "32"],
    }
    for arguments in commands:
        if "stdlib" in arguments and "embed" in arguments:  # reads the whole library, for minutes
            continue
        with pytest.raises(SystemExit) as ended:
            run([*arguments, *less.get(arguments[0], [])])
        assert ended.value.code == 0, arguments
    assert len((tmp_path / "labels.jsonl").read_text(encoding="utf-8").splitlines()) == len(names)


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
