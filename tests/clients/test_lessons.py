"""Every lesson runs, with less of everything, and its page shows what it prints."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "examples" / "lessons"
PAGES = ROOT / "docs" / "lessons"
SHARED = "shared"  # what they import
SHORT = {  # options, so that each takes seconds
    "classify": [],
    "search_meetings": ["--max-length", "640", "--number", "30", "--characters", "1500", "--minutes", "0.05"],
    "choose_k": ["--length", "128", "--documents", "2"],
    "million_tokens": ["--tokens", "32768"],
    "own_slots": ["--steps", "120"],
    "images": ["--size", "128", "--steps", "20"],
    "two_processes": ["--steps", "4"],
}
NUMBERED = re.compile(r"^(\w[^:\n$]*): ([-+.e\d]+)$", re.MULTILINE)


def run(name, folder, *options):
    command = [sys.executable, LESSONS / f"{name}.py", *options]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    return done.stdout


def names(output):
    """What has a number, without the numbers that options change."""
    return {re.sub(r"\d[\d,]*", "N", what) for what, _ in NUMBERED.findall(output)}


def check_classify(found):
    assert found["accuracy"] > 0.9 > 0.5 > found["accuracy of the most frequent label"]


def check_search_meetings(found):
    ways = [number for what, number in found.items() if what.endswith("found first")]
    assert len(ways) == 5 and min(ways) > 1 / 30


def check_choose_k(found):
    losses = [number for what, number in found.items() if re.fullmatch(r"loss with \d+ slots added", what)]
    assert losses and max(losses) < found["loss of a window of 64 and exact tokens, without slots"]


def check_million_tokens(found):
    assert found["largest difference between chunks and all at once"] < 1e-5


def check_own_slots(found):
    assert found["own, fixed, accuracy"] > 0.3 > found["means of equal segments, accuracy"]
    assert found["own, learned, numbers learned for the maps"] == 2 * 32


def check_images(found):
    assert found["full attention, accuracy"] > 0.7
    assert found["slots and window, loss after it"] < 0.6 * found["window alone, loss after it"]
    assert found["slots and window, same label as the teacher"] > found["window alone, same label as the teacher"] + 0.2


def check_two_processes(found):
    assert found["configurations that differ"] == 0


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def test_every_lesson_has_options_a_check_and_a_page():
    lessons = sorted(path.stem for path in LESSONS.glob("*.py") if path.stem != SHARED)
    assert lessons == sorted(SHORT) == sorted(CHECKS)
    assert lessons == sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("name", SHORT)
def test_it_runs_and_its_page_shows_what_it_prints(name, tmp_path):
    output = run(name, tmp_path, *SHORT[name])
    found = {what: float(number) for what, number in NUMBERED.findall(output)}
    CHECKS[name](found)
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"../../examples/lessons/{name}.py" in page
    assert names(output) == names(page)


@pytest.mark.parametrize("name", SHORT)
def test_a_lesson_stays_one(name):
    text = (LESSONS / f"{name}.py").read_text(encoding="utf-8")
    assert text.count("\n") <= 110
    docstring = text.split('"""')[1]
    assert re.search(r'^Install: pip install "?torch-linformer', docstring, re.MULTILINE)
    assert re.search(rf"^Run: python examples/lessons/{name}\.py$", docstring, re.MULTILINE)


def test_what_is_missing_is_one_line(tmp_path):
    with pytest.raises(AssertionError, match=r"own_slots\.py: error: unrecognized arguments: --no-such-option"):
        run("own_slots", tmp_path, "--no-such-option")
