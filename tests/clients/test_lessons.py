"""Every lesson runs as its page has it, with less of everything, and the page shows what it prints."""

import os
import re
import subprocess
import sys

import pytest
from pages import ROOT, blocks

PAGES = ROOT / "docs" / "lessons"
SHORT = {  # what is replaced, so that each takes seconds
    "classify": {},
    "search_meetings": {
        "MAX_LENGTH = 16_384": "MAX_LENGTH = 640",
        "NUMBER = 40": "NUMBER = 30",
        "CHARACTERS = 6000": "CHARACTERS = 1500",
        "MINUTES = 1.0": "MINUTES = 0.05",
    },
    "choose_k": {"LENGTH = 256": "LENGTH = 128", "DOCUMENTS = 12": "DOCUMENTS = 2"},
    "million_tokens": {"TOKENS = 1_048_576": "TOKENS = 32_768"},
    "own_slots": {"STEPS = 250": "STEPS = 120"},
    "images": {"SMALL, SIZE = 4, 64, 256": "SMALL, SIZE = 4, 64, 128", "STEPS = 40": "STEPS = 20"},
    "two_processes": {"--max-steps 150": "--max-steps 4"},
}
COMMANDS = {"linformer": "torch_linformer.cli", "torchrun": "torch.distributed.run"}
NUMBERED = re.compile(r"^(\w[^:\n$]*): ([-+.e\d]+)$", re.MULTILINE)


def run(name, folder):
    """What the blocks of a page print, one after the other, in an empty folder; installing is left out."""
    less = SHORT[name]
    program = ["import subprocess\n"]
    for language, code in blocks(f"docs/lessons/{name}.md", "python", "sh"):
        for usual in [usual for usual in less if usual in code]:
            code = code.replace(usual, less[usual])
        if language == "python":
            program.append(code)
        elif not code.startswith("pip install "):
            program.append(f"subprocess.run({code!r}, shell=True, check=True)\n")
    assert all(any(small in part for part in program) for small in less.values())
    commands = folder / "bin"
    commands.mkdir()
    for command, module in COMMANDS.items():
        (commands / command).write_text(f'#!/bin/sh\nexec "{sys.executable}" -m {module} "$@"\n', encoding="utf-8")
        (commands / command).chmod(0o755)
    (folder / "lesson.py").write_text("\n".join(program), encoding="utf-8")
    path = os.pathsep.join([str(commands), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    environment["PYTHONUNBUFFERED"] = "1"
    command = [sys.executable, "lesson.py"]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(output):
    """What has a number, without the numbers that sizes change."""
    return {re.sub(r"\d[\d,]*", "N", what) for what, _ in NUMBERED.findall(output)}


def check_classify(found):
    assert found["accuracy"] > 0.9 > 0.5 > found["accuracy of majority"]


def check_search_meetings(found):
    ways = [number for what, number in found.items() if what.endswith("found first")]
    assert len(ways) == 5 and min(ways) > 1 / 30


def check_choose_k(found):
    losses = [number for what, number in found.items() if re.fullmatch(r"loss with \d+ slots added", what)]
    assert losses and max(losses) < found["loss of a window of 64, without slots"]


def check_million_tokens(found):
    assert found["largest difference between chunks and all at once"] < 1e-5


def check_own_slots(found):
    assert found["own, fixed, accuracy"] > 0.3 > found["means of equal segments, accuracy"]
    assert found["own, learned, numbers learned for the maps"] == 2 * 32


def check_images(found):
    assert found["full attention, accuracy"] > 0.7
    assert found["slots and window, loss after it"] < 0.6 * found["without slots, loss after it"]
    assert (
        found["slots and window, same label as the teacher"] > found["without slots, same label as the teacher"] + 0.2
    )


def check_two_processes(found):
    assert found["configurations that differ"] == 0


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def test_every_lesson_has_a_check():
    assert sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index") == sorted(SHORT) == sorted(CHECKS)


@pytest.mark.parametrize("name", SHORT)
def test_it_runs_and_its_page_shows_what_it_prints(name, tmp_path):
    output = run(name, tmp_path)
    found = {what: float(number) for what, number in NUMBERED.findall(output)}
    CHECKS[name](found)
    assert names(output) == names((PAGES / f"{name}.md").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", SHORT)
def test_a_lesson_stays_one(name):
    fences = blocks(f"docs/lessons/{name}.md", "python", "sh")
    assert fences[0][0] == "sh" and re.match(r'pip install "?torch-linformer', fences[0][1])
    assert sum(code.count("\n") for _, code in fences) <= 130
