"""Transformers knows our models, whichever of the two packages is imported first."""

import re
import subprocess
import sys
import textwrap

import pytest
from transformers import BertConfig, BertForMaskedLM

from torch_linformer import LinformerConfig, LinformerForMaskedLM, linearize

OPEN = "print(type(AutoModelForMaskedLM.from_pretrained('model')).__name__)"
ORDERS = {
    "ours first": "import torch_linformer; from transformers import AutoModelForMaskedLM",
    "theirs first": "from transformers import AutoModelForMaskedLM; import torch_linformer",
    "halfway through another": "import torch_linformer; from transformers import BertModel, AutoModelForMaskedLM",
    "our modules alone": "import torch_linformer.nn; from transformers import pipeline, AutoModelForMaskedLM",
    "a module of ours": "import torch_linformer.models.heads; from transformers import AutoModelForMaskedLM",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with a small model in `model`."""
    folder = tmp_path_factory.mktemp("saved")
    sizes = {"vocab_size": 11, "hidden_size": 6, "num_attention_heads": 2, "intermediate_size": 7}
    config = LinformerConfig(num_hidden_layers=1, max_position_embeddings=8, k=3, **sizes)
    LinformerForMaskedLM(config).save_pretrained(folder / "model")
    bert = BertForMaskedLM(BertConfig(num_hidden_layers=1, max_position_embeddings=8, **sizes))
    linearize(bert, k=3).save_pretrained(folder / "linear")
    return folder


def run_python(code, folder):
    command = [sys.executable, "-W", "error::UserWarning", "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("order", ORDERS)
def test_the_plain_import_registers(folder, order):
    done = run_python(f"{ORDERS[order]}\n{OPEN}", folder)
    assert done.stdout == "LinformerForMaskedLM\n", done.stderr


@pytest.mark.parametrize("order", ["ours first", "theirs first"])
def test_a_linear_encoder_is_opened_in_either_order(folder, order):
    done = run_python(f"{ORDERS[order]}\n{OPEN.replace('model', 'linear')}", folder)
    assert done.stdout == "LinearBertForMaskedLM\n", done.stderr


def test_trusted_code_opens_the_folder_without_any_import_of_ours(folder):
    code = """
        from transformers import AutoModel, AutoModelForMaskedLM
        for auto in (AutoModel, AutoModelForMaskedLM):
            model = auto.from_pretrained("model", trust_remote_code=True)
            model.save_pretrained("again")
        import os, torch_linformer
        print(type(model) is torch_linformer.LinformerForMaskedLM, sorted(os.listdir("again")))
        print(open("again/config.json").read() == open("model/config.json").read())
    """
    done = run_python(code, folder)
    files = ["config.json", "model.safetensors", "modeling_linformer.py"]
    assert done.stdout.splitlines() == [f"True {files}", "True"], done.stderr


def test_a_release_of_transformers_that_does_not_fit_is_named_and_still_works(folder):
    auto = folder / "other" / "transformers" / "models" / "auto"
    auto.mkdir(parents=True)
    for package in (auto, auto.parent, auto.parent.parent):
        (package / "__init__.py").touch()
    (auto / "configuration_auto.py").write_text("class AutoConfig: ...")
    code = """
        import sys, warnings
        sys.path.insert(0, "other")
        import torch_linformer.nn
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            from transformers.models.auto.configuration_auto import AutoConfig
        print(*(each.message for each in caught))
    """
    done = run_python(code, folder)
    warning = r"transformers will not know linformer models \(.*'transformers.*\): "  # the first name it has not
    assert re.fullmatch(warning + r'pip install "torch-linformer\[hf\]"\n', done.stdout), done.stderr
