"""Every file of examples/ runs as a user would run it, and what it prints bears out what it shows."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
SHARED = "documents"  # what the examples import, no example itself
EXAMPLES = sorted(path.stem for path in (ROOT / "examples").glob("*.py") if path.stem != SHARED)
ALONE_AND_IN_TWO = "trainer_two_processes"  # has a test of its own
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]


def run(folder, name, *options):
    """What an example prints when it is started in an empty folder, which it leaves empty."""
    command = [sys.executable, *options, ROOT / "examples" / f"{name}.py"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    print(done.stdout)
    assert done.returncode == 0, done.stderr
    assert not list(folder.iterdir()), "files outside its temporary folder"
    return done.stdout


def numbers(output):
    """The numbers of the lines "what: number"."""
    return {what: float(number) for what, number in re.findall(r"^(\w.*): ([-+.e\d]+)$", output, re.MULTILINE)}


def differences(found):
    return [number for what, number in found.items() if what.endswith("largest difference of a score")]


def check_accelerate_loop(found):
    assert found["held-out accuracy after epoch 2"] > 0.85
    assert found["largest difference of a score once loaded"] == 0


def check_import_weights(found):
    assert found["lucidrains, largest difference"] < 1e-5
    assert found["linformer-pytorch, largest difference"] < 1e-5


def check_int8_quantization(found):
    assert found["of which int8"] == found["linear layers"] == 13
    assert found["accuracy in float32"] > 0.85 and abs(found["accuracy lost"]) <= 0.02
    assert 0 < found["largest error of a score, relative to the largest score"] < 0.05


def check_lightning_module(found):
    assert found["held-out accuracy before"] < 0.75 and found["held-out accuracy after"] > 0.85
    assert found["held-out accuracy once loaded"] == found["held-out accuracy after"]


def check_linearize(found):
    for name in ("MiniLM", "ModernBERT"):
        assert found[f"{name}, 256 tokens, largest difference"] < 1e-5
        assert 0.8 < found[f"{name}, 512 tokens, cosine of embeddings"] < 0.999
        assert found[f"{name}, opened again, 512 tokens, largest difference"] == 0
    assert found["MiniLM, attn_implementation, 512 tokens, largest difference"] < 1e-5
    assert 0.8 < found["ModernBERT, attn_implementation, 2048 tokens, cosine of embeddings"] < 0.999


def check_quickstart(found):
    assert found["original, seconds"] > 0 and found["linear, seconds"] > 0
    assert 0.99 < found["cosine of the two vectors"] < 1


def check_peft_lora(found):
    assert found["accuracy of the base model on the new labels"] < 0.75
    assert found["share of the parameters that is trained"] < 0.15
    assert found["accuracy with the adapter"] > 0.85
    assert found["largest difference of a score once loaded"] < 1e-4
    assert found["largest difference of a score once merged"] < 1e-4


def check_pipeline_fill_mask(found):
    assert found["fill-mask, share of guesses of the right season (by chance 0.25)"] > 0.9


def check_pipeline_text_classification(found):
    assert found["text-classification, accuracy on held-out texts"] > 0.85
    assert found["feature-extraction, nearest text is of the same package"] > 0.9


def check_pipeline_text_generation(found):
    assert found["text-generation, share of right days"] > 0.99


def check_pipeline_token_classification(found):
    assert found["token-classification, accuracy on held-out texts"] > 0.9


def check_question_answering(found):
    assert found["held-out questions answered word for word"] > 0.9


def check_sentence_embeddings(found):
    assert found["similarity of a package after training"] > found["similarity of a package before training"] + 0.08
    assert found["largest difference of a number once loaded"] < 1e-5


def check_seq2seq_trainer(found):
    assert found["held-out targets written right before"] < 0.2
    assert found["held-out targets written right after"] > 0.9
    assert found["held-out targets written right by beams"] > 0.9


def check_torch_compile(found):
    assert found["graphs compiled"] == 1
    assert len(differences(found)) == 4 and max(differences(found)) < 1e-5


def check_torch_encoder(found):
    assert found["accuracy before"] < 0.3 and found["accuracy after"] > 0.8
    assert found["largest difference of a score without the padding"] < 1e-4


def check_torch_export(found):
    assert len(differences(found)) == 6 and max(differences(found)) < 1e-5


def check_trainer(found):
    assert found["steps until it stopped"] < 500
    assert found["accuracy of the model that was kept"] == found["best accuracy while training"] > 0.9
    assert found["largest difference of a weight, resumed at step 10 or never stopped"] == 0


CHECKS = {name.removeprefix("check_"): check for name, check in globals().items() if name.startswith("check_")}


def test_every_example_has_a_check():
    assert sorted([*CHECKS, ALONE_AND_IN_TWO]) == EXAMPLES


@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != ALONE_AND_IN_TWO])
def test_what_it_prints_bears_it_out(name, tmp_path):
    if name == "torch_compile":
        if not any(map(shutil.which, ("g++", "clang++", "c++"))):
            pytest.skip("the default backend builds C++, and no C++ compiler (g++, clang++ or c++) is installed")
        if " " in torch.__file__:
            pytest.skip("the default backend cannot link where torch's path has a space")
    CHECKS[name](numbers(run(tmp_path, name)))


def test_two_processes_have_the_losses_of_one(tmp_path):
    outputs = [run(tmp_path, ALONE_AND_IN_TWO, *options) for options in ([], TORCHRUN)]
    assert [numbers(output)["processes"] for output in outputs] == [1, 2]
    lines = [re.search(r"^losses: (.+)$", output, re.MULTILINE)[1] for output in outputs]
    one, two = ([float(loss) for loss in line.split()] for line in lines)
    assert len(one) == 12 and len(set(one)) > 1
    assert two == pytest.approx(one, abs=1e-3)


@pytest.mark.parametrize("name", EXAMPLES)
def test_docstring_says_how_to_install_and_run_it(name):
    text = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
    docstring = text.split('"""')[1]
    assert re.search(r'^Install: pip install "?torch-linformer', docstring, re.MULTILINE)
    assert re.search(rf"^Run: .*examples/{name}\.py", docstring, re.MULTILINE)


def test_every_row_of_the_page_has_an_example_and_every_example_a_row():
    page = (ROOT / "docs" / "works-with.md").read_text(encoding="utf-8")
    table = re.search(r"^\| with \| what \|.*\n\|[-|]+\n((?:\|.*\n)+)", page, re.MULTILINE)[1]
    named = [re.findall(r"\]\(\.\./examples/(\w+)\.py\)", row) for row in table.splitlines()]
    assert all(named), "a row without an example"
    assert sorted({name for names in named for name in names}) == EXAMPLES
