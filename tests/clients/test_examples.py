"""Every example runs as a user would run it, and what it prints bears out what it shows."""

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
        "MiniLM, 256 tokens, largest difference": less_than(1e-5),
        "ModernBERT, 896 tokens, largest difference": less_than(1e-5),
        "MiniLM, 512 tokens, cosine of embeddings": between(0.8, 0.999),
        "ModernBERT, 2048 tokens, cosine of embeddings": between(0.8, 0.999),
        "MiniLM, opened again, 512 tokens, largest difference": ZERO,
        "ModernBERT, opened again, 2048 tokens, largest difference": ZERO,
        "MiniLM, attn_implementation, 512 tokens, largest difference": less_than(1e-5),
        "ModernBERT, attn_implementation, 2048 tokens, cosine of embeddings": between(0.8, 0.999),
    },
    "quickstart": {
        "original, seconds": more_than(0),
        "linear, seconds": more_than(0),
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
]
COUNTS = {"torch_compile": 4, "torch_export": 6}  # lines of "*"


def run(folder, file, before=()):
    """What a program prints when it is started in a folder."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, *before, file]
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


def test_every_one_has_a_check_and_a_row_and_says_how_to_run_it():
    assert sorted([*SAYS, ALONE_AND_IN_TWO]) == EXAMPLES
    page = (ROOT / "docs" / "works-with.md").read_text(encoding="utf-8")
    table = re.search(r"^\| with \| what \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    named = [re.findall(r"\]\(\.\./examples/(\w+)\.py\)", row) for row in table.splitlines()]
    assert all(named), "a row without an example"
    assert sorted({name for names in named for name in names}) == EXAMPLES
    for name in EXAMPLES:
        text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        docstring = text.split('"""')[1]
        assert re.search(r'^Install: pip install "?torch-linformer', docstring, re.MULTILINE), name
        assert re.search(rf"^Run: .*examples/{name}\.py", docstring, re.MULTILINE), name
