"""Record what models and modules do today, for those kinds of which nothing is recorded yet.

    python tests/compatibility/make_fixture.py

Whoever adds a class or an option adds a kind to `model_kinds.py`, or a case to `module_cases.py`, and runs this.
What is there already stays as it is, since it stands for what users have saved: a test that fails on it is answered by
code that opens it as before. Only a record that was wrong from the start is made anew, by its name:

    python tests/compatibility/make_fixture.py --overwrite causal-lm-rotary
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from model_kinds import KINDS, TINY, build_model, inputs_of
from module_cases import CASES, record_module
from recorded import EXPECTED, MODULES, RUNS, SAVED, STATE_DICTS, open_model, record_model
from run_commands import ADAPT, DOCUMENTS, EXACTLY, FIRST, PREDICTIONS, TOKENIZER, TRAIN, write_documents
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, BertConfig, BertModel

import torch_linformer

LEFT_OUT = ("report.html", "training_args.bin")  # nothing reads them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--overwrite", metavar="NAME", nargs="*", default=[], help="records to make anew")
    overwrite = set(parser.parse_args().overwrite)
    unknown = overwrite - {*KINDS, *CASES, TRAIN.output, ADAPT.output}
    if unknown:
        parser.error(f"no such record: {', '.join(sorted(unknown))}")
    record_modules(overwrite)
    for kind in KINDS:
        if kind in overwrite or not (SAVED / kind).exists():
            save_kind(kind)
    for run in (TRAIN, ADAPT):
        if run.output in overwrite or not (RUNS / run.output).exists():
            save_run(run)


def record_modules(overwrite: set[str]) -> None:
    tensors = load_file(MODULES) if MODULES.exists() else {}
    shapes = json.loads(STATE_DICTS.read_text(encoding="utf-8")) if STATE_DICTS.exists() else {}
    for name, case in CASES.items():
        if name in shapes and name not in overwrite:
            continue
        print(f"recording {name}")
        tensors = {key: tensor for key, tensor in tensors.items() if key.partition(".")[0] != name}
        tensors |= {f"{name}.{key}": tensor for key, tensor in record_module(case).items()}
        shapes[name] = {key: list(tensor.shape) for key, tensor in case.module().state_dict().items()}
    save_file(tensors, MODULES)
    lines = (f"  {json.dumps(name)}: {json.dumps(each)}" for name, each in sorted(shapes.items()))
    STATE_DICTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def save_kind(kind: str) -> None:
    print(f"saving {kind}")
    shutil.rmtree(SAVED / kind, ignore_errors=True)
    build_model(kind).save_pretrained(SAVED / kind)
    expect(SAVED / kind)


def expect(folder: Path) -> None:
    """Record inputs of a model and what it makes of them."""
    model = open_model(folder)
    inputs = inputs_of(model)
    record = {f"inputs.{key}": tensor.contiguous() for key, tensor in inputs.items()}
    record |= {f"outputs.{key}": tensor for key, tensor in record_model(model, inputs).items()}
    EXPECTED.mkdir(exist_ok=True)
    save_file(record, EXPECTED / f"{folder.name}.safetensors")


def save_run(run) -> None:
    """What a command leaves that begins with a tiny model; it runs where no path of this machine gets into it."""
    with tempfile.TemporaryDirectory() as place:
        here = Path(place)
        write_documents(here / DOCUMENTS)
        save_first_model(here, run is ADAPT)
        linformer(here, *run.arguments, *run.defaults.split())
        folder = RUNS / run.output
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(here / run.output, folder, ignore=shutil.ignore_patterns(*LEFT_OUT, ".*"))
        shutil.copyfile(here / DOCUMENTS, RUNS / DOCUMENTS)
        if run is TRAIN:
            linformer(here, "predict", run.output, DOCUMENTS, "--output", PREDICTIONS, *EXACTLY)
            shutil.copyfile(here / PREDICTIONS, RUNS / PREDICTIONS)
    if run is ADAPT:
        expect(folder)


def save_first_model(here: Path, pretrained: bool) -> None:
    """A model to begin with, and the tokenizer that `linformer train --tokenizer bytes` makes."""
    linformer(here, *TOKENIZER.arguments)
    tokenizer = AutoTokenizer.from_pretrained(here / TOKENIZER.output)
    tokenizer.save_pretrained(here / FIRST)
    torch.manual_seed(0)
    sizes = {**TINY, "vocab_size": len(tokenizer), "max_position_embeddings": 24}
    if not pretrained:
        torch_linformer.LinformerForMaskedLM(torch_linformer.LinformerConfig(**sizes)).save_pretrained(here / FIRST)
        return
    del sizes["k"]
    BertModel(BertConfig(**sizes, initializer_range=0.3)).save_pretrained(here / FIRST)
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
    ]
    (here / FIRST / "modules.json").write_text(json.dumps(modules))
    (here / FIRST / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": TINY["hidden_size"], "pooling_mode_mean_tokens": True}
    (here / FIRST / "1_Pooling" / "config.json").write_text(json.dumps(pooling))


def linformer(here: Path, *arguments: str) -> None:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    subprocess.run([sys.executable, "-m", "torch_linformer.cli", *arguments], cwd=here, env=environment, check=True)


if __name__ == "__main__":
    main()
