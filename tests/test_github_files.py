"""The files for GitHub, which nothing here can run: that they say what the project does."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[1]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^([a-z-]+):.*## ", MAKEFILE, re.MULTILINE))
FILES = sorted([*(ROOT / ".github").rglob("*.yml"), ROOT / ".pre-commit-config.yaml"])


def read(name):
    return yaml.safe_load((ROOT / ".github" / name).read_text(encoding="utf-8"))


def steps(workflow):
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_file_is_yaml(path):
    assert isinstance(yaml.safe_load(path.read_text(encoding="utf-8")), dict)


@pytest.mark.parametrize("name", ["test.yml", "release.yml"])
def test_commands_of_the_workflows_exist(name):
    commands = [step["run"] for step in steps(read(f"workflows/{name}")) if "run" in step]
    assert commands
    for command in commands:
        program, what, *_ = command.split()
        assert what in TARGETS if program == "make" else (ROOT / what).is_file()


def test_the_matrix_is_every_python_from_the_oldest():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    oldest = int(re.fullmatch(r">=3\.(\d+)", project["requires-python"])[1])
    jobs = read("workflows/test.yml")["jobs"]
    first = jobs["everything"]["steps"][1]["with"]["python-version"]
    assert [first, *jobs["tests"]["strategy"]["matrix"]["python"]] == [f"3.{minor}" for minor in range(oldest, 15)]
    installed = read("workflows/release.yml")["jobs"]["build"]["steps"][1]["with"]["python-version"].split()
    assert sorted(installed) == [f"3.{minor}" for minor in range(oldest, 15)]


def test_only_what_was_tested_and_built_is_published_and_only_for_a_tag():
    workflow = read("workflows/release.yml")
    assert workflow[True] == {"push": {"tags": ["v*"]}}  # "on" is a truth value in YAML 1.1
    jobs = workflow["jobs"]
    assert (
        set(jobs["publish"]["needs"]) == {"test", "build"} and jobs["test"]["needs"] == jobs["build"]["needs"] == "tag"
    )
    assert jobs["tag"]["steps"][-1]["run"].startswith("python tools/tag_check.py ")


def test_only_the_upload_may_do_more_than_read():
    for name in ("test.yml", "release.yml"):
        workflow = read(f"workflows/{name}")
        assert workflow["permissions"] == {"contents": "read"}
        rights = {job: found["permissions"] for job, found in workflow["jobs"].items() if "permissions" in found}
        assert rights == ({"publish": {"id-token": "write"}} if name == "release.yml" else {})
        assert "secrets." not in (ROOT / ".github" / "workflows" / name).read_text(encoding="utf-8")


def test_hooks_before_a_commit_are_make_check():
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    assert repository["repo"] == "local"
    for hook in repository["hooks"]:
        assert hook["language"] == "system"
        tool = hook["entry"].removeprefix(".venv/bin/").removesuffix(" --force-exclude").replace("python", "$(PY)")
        assert f"@{tool}" in MAKEFILE
