"""The scripts of a release: what they take for granted, and what they refuse."""

import importlib.util
import shutil
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from torch_linformer import __version__
from torch_linformer.reporting.files import damage_of, file_state

ROOT = Path(__file__).resolve().parents[1]


def script(name):
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("damage", ["removed", "halved", "zeroed", "a byte changed"])
def test_each_damage_of_the_soak_is_one(damage, tmp_path):
    part = tmp_path / "part-00000.jsonl"
    part.write_text('{"label": "rain"}\n')
    state = file_state(part)
    soak = script("soak")
    assert set(soak.DAMAGES) == {"removed", "halved", "zeroed", "a byte changed"} and damage_of(part, state) is None
    soak.DAMAGES[damage](part)
    assert damage_of(part, state) is not None


def test_every_python_of_the_documentation_is_checked_on_its_own_line():
    snippets = script("check_snippets")
    modules = snippets.modules()
    for page in snippets.PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(list(snippets.blocks_of_page(text))) == text.count("```python"), page
        lines = modules.get(page.relative_to(ROOT).as_posix(), "").splitlines()
        assert all(line in ("", written) for line, written in zip(lines, text.splitlines(), strict=False)), page
    examples = [place for place in modules if place.startswith("src/")]
    assert len(examples) >= sum(">>> " in path.read_text(encoding="utf-8") for path in snippets.SOURCES)
    for place in examples:
        path, _, number = place.partition(":")
        lines = zip(modules[place].splitlines(), (ROOT / path).read_text(encoding="utf-8").splitlines(), strict=False)
        assert all(line.strip() in written for line, written in lines) and int(number) > 1


@pytest.fixture
def release_check():
    return script("release_check")


def test_every_extra_of_a_user_is_checked(release_check):
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    extras = release_check.extras()
    assert set(extras) == {"none", "hf", "train", "minilm", "inspect", "onnx", "ray", "serve", "all"}
    assert set(declared) - set(extras) == release_check.FOR_THE_PROJECT
    assert set(release_check.COMMAND) == set(extras) - {"none", "hf"}


def test_the_lines_of_the_readme_are_found(release_check):
    assert "encoder_folder(" in release_check.readme_python()


def test_what_is_no_python_is_not_taken_for_one(release_check, tmp_path):
    shim = tmp_path / "python3.99"
    shim.write_text("#!/bin/sh\necho no such version >&2\nexit 127\n")
    shim.chmod(0o755)
    assert not release_check.works(str(shim)) and not release_check.works("python3.98")
    assert release_check.works(sys.executable)


def test_a_command_that_fails_tells_what_it_printed(release_check, tmp_path):
    python = sys.executable
    with pytest.raises(release_check.CheckError, match=r"ended with 3:\nsomething$"):
        release_check.run(python, "-c", "import sys; print('something'); sys.exit(3)", cwd=tmp_path)
    assert release_check.run(python, "-c", "import sys; sys.exit(3)", cwd=tmp_path, status=3) == ""


@pytest.fixture
def project(tmp_path):
    """A copy of what a tag is compared with, filled in as docs/release.md asks."""
    for name in ("src/torch_linformer/__init__.py", "CHANGELOG.md", "CITATION.cff", "pyproject.toml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    change(tmp_path / "CHANGELOG.md", f"## [{__version__}] - unreleased", f"## [{__version__}] - 2030-01-31")
    addresses = "".join(f'{name} = "https://example.org"\n' for name in ("Repository", "Issues", "Changelog"))
    change(tmp_path / "pyproject.toml", 'Paper = "https', f'{addresses}Paper = "https')
    change(tmp_path / "CITATION.cff", "\nlicense:", '\nrepository-code: "https://example.org"\nlicense:')
    return tmp_path


def change(path, before, after):
    text = path.read_text(encoding="utf-8")
    path.write_text(text.replace(before, after), encoding="utf-8")


def test_a_tag_that_fits_may_be_released(project):
    assert script("tag_check").reasons_against(f"v{__version__}", project) == []


@pytest.mark.parametrize(
    ("name", "before", "after", "reason"),
    [
        ("src/torch_linformer/__init__.py", __version__, "9.9.9", "the tag is v"),
        ("CHANGELOG.md", "2030-01-31", "unreleased", "CHANGELOG.md has no line '## ["),
        ("CITATION.cff", f"version: {__version__}", "version: 9.9.9", "CITATION.cff has no line 'version: "),
        ("pyproject.toml", "Issues = ", "Bugs = ", "no address of the Issues"),
        ("CITATION.cff", "repository-code", "url", "no line 'repository-code"),
    ],
)
def test_what_keeps_a_tag_from_being_released(project, name, before, after, reason):
    change(project / name, before, after)
    found = script("tag_check").reasons_against(f"v{__version__}", project)
    assert any(reason in line for line in found) and not any("\n" in line for line in found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="about a machine without CUDA")
def test_the_gpu_session_without_a_gpu_says_so_and_leaves_nothing(tmp_path):
    with pytest.raises(SystemExit, match="torch sees no CUDA device here"):
        script("gpu").main(output=tmp_path / "results")
    assert list(tmp_path.iterdir()) == []


def test_a_step_of_the_gpu_session_is_stopped_after_its_seconds(tmp_path):
    wait = (
        "import time\nprint('begun', flush=True)\ntry: time.sleep(60)\nexcept KeyboardInterrupt: print('all but one')"
    )
    told = script("gpu")._run([sys.executable, "-c", wait], tmp_path / "log", 3.0)
    assert (told["status"], told["last line"]) == ("stopped", "all but one")
    told = script("gpu")._run([sys.executable, "-c", "raise SystemExit(3)"], tmp_path / "log", 60.0)
    assert (told["status"], told["last line"]) == (3, "nothing was printed")
