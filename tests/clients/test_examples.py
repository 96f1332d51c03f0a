"""Every example and lesson runs as a user would run it, and what it prints bears out what it shows."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != "documents")
LESSONS, PAGES = ROOT / "examples" / "lessons", ROOT / "docs" / "lessons"
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
ALONE_AND_IN_TWO = "trainer_two_processes"  # has a test of its own
NUMBERED = re.compile(r"^(\w[^:\n$]*): ([-+.e\d]+)$", re.MULTILINE)
ANY = -math.inf, math.inf


def more_than(bound):
    return math.nextafter(bound, math.inf), math.inf


def less_than(bound):
    return -math.inf, math.nextafter(bound, -math.inf)


def between(low, high):
    return math.nextafter(low, math.inf), math.nextafter(high, -math.inf)


ZERO = 0, 0
# Lines that each prints, "what: number", and where the number lies; "*" and a text are all lines that end with it.
SAYS = {
    "accelerate_loop": {
        "held-out accuracy after epoch 2": more_than(0.85),
        "largest difference of a score once loaded": ZERO,
    },
    "import_weights": {
        "lucidrains, largest difference": less_than(1e-5),
        "linformer-pytorch, largest difference": less_than(1e-5),
    },
    "int8_quantization": {
        "of which int8": (13, 13),
        "linear layers": (13, 13),
        "accuracy in float32": more_than(0.85),
        "accuracy lost": (-0.02, 0.02),
        "largest error of a score, relative to the largest score": between(0, 0.05),
    },
    "lightning_module": {
        "held-out accuracy before": less_than(0.75),
        "held-out accuracy after": more_than(0.85),
        "held-out accuracy once loaded": more_than(0.85),
    },
    "linearize": {
        **{f"{name}, 256 tokens, largest difference": less_than(1e-5) for name in ("MiniLM", "ModernBERT")},
        **{f"{name}, 512 tokens, cosine of embeddings": between(0.8, 0.999) for name in ("MiniLM", "ModernBERT")},
        **{f"{name}, opened again, 512 tokens, largest difference": ZERO for name in ("MiniLM", "ModernBERT")},
        "MiniLM, attn_implementation, 512 tokens, largest difference": less_than(1e-5),
        "ModernBERT, attn_implementation, 2048 tokens, cosine of embeddings": between(0.8, 0.999),
    },
    "quickstart": {
        "original, 32 windows, seconds": more_than(0),
        "linear, one pass, seconds": more_than(0),
        "cosine of the two vectors": between(0.99, 1),
    },
    "peft_lora": {
        "accuracy of the base model on the new labels": less_than(0.75),
        "share of the parameters that is trained": less_than(0.15),
        "accuracy with the adapter": more_than(0.85),
        "largest difference of a score once loaded": less_than(1e-4),
        "largest difference of a score once merged": less_than(1e-4),
    },
    "pipeline_fill_mask": {"fill-mask, share of guesses of the right season (by chance 0.25)": more_than(0.9)},
    "pipeline_text_classification": {
        "text-classification, accuracy on held-out texts": more_than(0.85),
        "feature-extraction, nearest text is of the same package": more_than(0.9),
    },
    "pipeline_text_generation": {"text-generation, share of right days": more_than(0.99)},
    "pipeline_token_classification": {"token-classification, accuracy on held-out texts": more_than(0.9)},
    "question_answering": {"held-out questions answered word for word": more_than(0.9)},
    "sentence_embeddings": {
        "similarity of a package after training": ANY,
        "similarity of a package before training": ANY,
        "largest difference of a number once loaded": less_than(1e-5),
    },
    "seq2seq_trainer": {
        "held-out targets written right before": less_than(0.2),
        "held-out targets written right after": more_than(0.9),
        "held-out targets written right by beams": more_than(0.9),
    },
    "torch_compile": {"graphs compiled": (1, 1), "*largest difference of a score": less_than(1e-5)},
    "torch_encoder": {
        "accuracy before": less_than(0.3),
        "accuracy after": more_than(0.8),
        "largest difference of a score without the padding": less_than(1e-4),
    },
    "torch_export": {"*largest difference of a score": less_than(1e-5)},
    "trainer": {
        "steps until it stopped": less_than(500),
        "accuracy of the model that was kept": more_than(0.9),
        "best accuracy while training": more_than(0.9),
        "largest difference of a weight, resumed at step 10 or never stopped": ZERO,
    },
}
EQUAL = [
    ("lightning_module", "held-out accuracy once loaded", "held-out accuracy after"),
    ("trainer", "accuracy of the model that was kept", "best accuracy while training"),
]
GREATER = [  # by how much
    ("sentence_embeddings", "similarity of a package after training", "similarity of a package before training", 0.08),
    ("images", "slots and window, same label as the teacher", "window alone, same label as the teacher", 0.2),
]
COUNTS = {"torch_compile": 4, "torch_export": 6, "search_meetings": 5}  # lines of "*"
LESSONS_SAY = {
    "classify": {"accuracy": more_than(0.9), "accuracy of the most frequent label": less_than(0.5)},
    "search_meetings": {"*found first": more_than(1 / 30)},
    "choose_k": {"loss of a window of 64 and exact tokens, without slots": ANY},
    "million_tokens": {"largest difference between chunks and all at once": less_than(1e-5)},
    "own_slots": {
        "own, fixed, accuracy": more_than(0.3),
        "means of equal segments, accuracy": less_than(0.3),
        "own, learned, numbers learned for the maps": (64, 64),
    },
    "images": {
        "full attention, accuracy": more_than(0.7),
        "slots and window, loss after it": ANY,
        "window alone, loss after it": ANY,
    },
    "two_processes": {"configurations that differ": ZERO},
}
SHORT = {  # options, so that each lesson takes seconds
    "search_meetings": ["--max-length", "640", "--number", "30", "--characters", "1500", "--minutes", "0.05"],
    "choose_k": ["--length", "128", "--documents", "2"],
    "million_tokens": ["--tokens", "32768"],
    "own_slots": ["--steps", "120"],
    "images": ["--size", "128", "--steps", "20"],
    "two_processes": ["--steps", "4"],
}


def run(folder, file, *options, before=()):
    """What a program prints when it is started in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1", "TMPDIR": str(folder)}
    command = [sys.executable, *before, file, *options]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=900)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    return done.stdout


def numbers(output):
    return {what: float(number) for what, number in NUMBERED.findall(output)}


def check(name, found, says):
    for what, (low, high) in says.items():
        values = [found[what]] if what[0] != "*" else [found[line] for line in found if line.endswith(what[1:])]
        assert len(values) == (1 if what[0] != "*" else COUNTS[name]), what
        assert all(low <= value <= high for value in values), (what, values)
    assert all(found[one] == found[other] for of, one, other in EQUAL if of == name)
    assert all(found[one] > found[other] + more for of, one, other, more in GREATER if of == name)


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != ALONE_AND_IN_TWO])
def test_what_it_prints_bears_it_out(name, tmp_path):
    if name == "torch_compile":
        if not any(map(shutil.which, ("g++", "clang++", "c++"))):
            pytest.skip("the default backend builds C++, and no C++ compiler (g++, clang++ or c++) is installed")
        if " " in torch.__file__:
            pytest.skip("the default backend cannot link where torch's path has a space")
    check(name, numbers(run(tmp_path, ROOT / "examples" / f"{name}.py")), SAYS[name])
    assert not list(tmp_path.iterdir()), "files that stay"


def test_two_processes_have_the_losses_of_one(tmp_path):
    file = ROOT / "examples" / f"{ALONE_AND_IN_TWO}.py"
    outputs = [run(tmp_path, file, before=before) for before in ([], TORCHRUN)]
    assert [numbers(output)["processes"] for output in outputs] == [1, 2]
    lines = [re.search(r"^losses: (.+)$", output, re.MULTILINE)[1] for output in outputs]
    one, two = ([float(loss) for loss in line.split()] for line in lines)
    assert len(one) == 12 and len(set(one)) > 1
    assert two == pytest.approx(one, abs=1e-3)


@pytest.mark.parametrize("name", LESSONS_SAY)
def test_a_lesson_runs_and_its_page_shows_what_it_prints(name, tmp_path):
    output = run(tmp_path, LESSONS / f"{name}.py", *SHORT.get(name, []))
    found = numbers(output)
    check(name, found, LESSONS_SAY[name])
    if name == "choose_k":
        losses = [number for what, number in found.items() if re.fullmatch(r"loss with \d+ slots added", what)]
        assert losses and max(losses) < found["loss of a window of 64 and exact tokens, without slots"]
    if name == "images":
        assert found["slots and window, loss after it"] < 0.6 * found["window alone, loss after it"]
    page = (PAGES / f"{name}.md").read_text(encoding="utf-8")
    assert f"../../examples/lessons/{name}.py" in page
    # What has a number, without the numbers that options change.
    printed, shown = ({re.sub(r"\d[\d,]*", "N", what) for what in numbers(text)} for text in (output, page))
    assert printed == shown


def test_every_one_has_a_check_a_row_or_a_page_and_says_how_to_run_it():
    lessons = sorted(path.stem for path in LESSONS.glob("*.py") if path.stem != "shared")
    assert lessons == sorted(LESSONS_SAY) == sorted(path.stem for path in PAGES.glob("*.md") if path.stem != "index")
    assert sorted([*SAYS, ALONE_AND_IN_TWO]) == EXAMPLES
    page = (ROOT / "docs" / "works-with.md").read_text(encoding="utf-8")
    table = re.search(r"^\| with \| what \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    named = [re.findall(r"\]\(\.\./examples/(\w+)\.py\)", row) for row in table.splitlines()]
    assert all(named), "a row without an example"
    assert sorted({name for names in named for name in names}) == EXAMPLES
    for name in [*EXAMPLES, *(f"lessons/{name}" for name in lessons)]:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        docstring = text.split('"""')[1]
        assert re.search(r'^Install: pip install "?torch-linformer', docstring, re.MULTILINE), name
        assert re.search(rf"^Run: .*examples/{name}\.py", docstring, re.MULTILINE), name
        assert "/" not in name or text.count("\n") <= 110  # a lesson stays one


def test_what_is_missing_is_one_line(tmp_path):
    with pytest.raises(AssertionError, match=r"own_slots\.py: error: unrecognized arguments: --no-such-option"):
        run(tmp_path, LESSONS / "own_slots.py", "--no-such-option")
