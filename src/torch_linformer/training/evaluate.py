"""A trained model scored on documents with labels, with the same code that scores a run at its end."""

import tempfile
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from torch_linformer.models import LinformerForMaskedLM, LinformerForSequenceClassification
from torch_linformer.reporting.files import write_json
from torch_linformer.training.data import check_labels, load_documents
from torch_linformer.training.devices import resolve_device, resolve_precision
from torch_linformer.training.errors import InputError
from torch_linformer.training.folder import load_model, load_tokenizer
from torch_linformer.training.screen import Screen
from torch_linformer.training.tasks import Classification, MaskedLanguageModelling, Task
from torch_linformer.training.tokenizer import tokenize_documents
from torch_linformer.training.trainer import DocumentTrainer


def evaluate(
    folder: str,
    data: str,
    *,
    text_column: str | None = None,
    label_column: str | None = None,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "auto",
    seed: int = 0,
    screen: Screen | None = None,
) -> tuple[Task, dict[str, Any]]:
    """Score the model in ``folder`` on ``data``; returns its task and the scores.

    Raises:
        InputError: for anything wrong with the folder, the data, the device, or a label the model does not know.
    """
    screen = screen or Screen()
    device = resolve_device(device)
    precision = resolve_precision(precision, device)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    mlm = isinstance(model, LinformerForMaskedLM)
    if not mlm and not isinstance(model, LinformerForSequenceClassification):
        raise InputError(f"{folder}: holds a {type(model).__name__}, for which there are no scores yet")
    documents = load_documents(data, text_column=text_column, label_column=label_column, needs_label=not mlm)
    for note in documents.notes:
        screen.say(note)
    if mlm:
        task: Task = MaskedLanguageModelling(tokenizer, seed)
    else:
        names = model.config.label_names
        check_labels(names, documents.dataset, data)
        task = Classification(tokenizer, names)
    tokenized = tokenize_documents(documents.dataset, tokenizer, model.config.max_position_embeddings)
    with tempfile.TemporaryDirectory() as scratch:
        trainer = DocumentTrainer(
            model=model,
            args=evaluation_arguments(Path(scratch), batch_size, device, precision),
            eval_collator=task.collator(training=False),
            preprocess_logits_for_metrics=task.preprocess_logits,
        )
        prediction = trainer.predict(task.prepare(tokenized))
    return task, {**task.metrics(prediction.predictions, prediction.label_ids), "documents": len(tokenized)}


def evaluation_arguments(scratch: Path, batch_size: int, device: str, precision: str) -> TrainingArguments:
    """Arguments of a Trainer that only evaluates."""
    return TrainingArguments(
        output_dir=str(scratch),
        per_device_eval_batch_size=batch_size,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=device == "cpu",
        disable_tqdm=True,
        report_to="none",
        remove_unused_columns=False,
    )


def write_scores(path: Path, scores: dict[str, Any]) -> None:
    """Write the scores as JSON; the file appears whole or not at all."""
    write_json(path, scores)
