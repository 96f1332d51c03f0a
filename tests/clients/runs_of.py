"""Trains, and adapts, what FOLDER/runs.json lists, in as many processes as torchrun started, into FOLDER/NAME.

Usage: runs_of.py FOLDER NAME [RUN ...]

Without dropout, as each process draws random numbers of its own, and in float64: an optimizer divides by the size of
gradients, and makes steps of the roundings of those that are nothing.
"""

import dataclasses
import json
import os
import sys
from functools import partial
from pathlib import Path

import torch

from torch_linformer.adaptation import pretrained_encoder
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import run_adaptation
from torch_linformer.distributed import processes
from torch_linformer.training import sizes as model_sizes
from torch_linformer.training import task_trainers, train_settings, trainer
from torch_linformer.training.train import train

torch.set_default_dtype(torch.float64)
pretrained_encoder.WEIGHTS = torch.float64
sys.executable = "/bin/false"  # no steps are measured
folder, name, *named = Path(sys.argv[1]), *sys.argv[2:]
# Else a gradient of twice the size would make the same step.
trainer.TrainingArguments = partial(trainer.TrainingArguments, adam_epsilon=1e-2, max_grad_norm=0.0)
sizes = model_sizes.SIZES
sizes.update({size: dataclasses.replace(each, dropout=0.0) for size, each in sizes.items()})
runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))
for run in named or runs:
    options = runs[run]
    task_trainers.RetrievalTrainer.most_at_once = options.pop("tokens_at_once", 16_384)
    options["output"] = str(folder / name / run)
    if os.environ.get("WORLD_SIZE", "1") == "1":
        options.pop("context_parallel", None)
        options.pop("fsdp", None)
    if "source" in options:
        run_adaptation(options.pop("source"), AdaptSettings(**options))
    else:
        train(train_settings.TrainSettings(**options))
    states = (folder / name / run / "metrics.json", folder / name / run / "adaptation.json")
    if processes.is_main():
        assert any(file.exists() for file in states), os.listdir(folder / name / run)
processes.leave()
