"""One trained model and what it can be asked over HTTP, by what ``linformer embed`` and ``linformer predict`` use."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerFast

from torch_linformer.errors import InputError
from torch_linformer.inference.embedder import DocumentEmbedder, embedder_of
from torch_linformer.inference.task_predictor import TaskPredictor, predicting_task
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.serving.request_forms import CLASSIFY, EMBED, EMBEDDINGS, PREDICT

Ability = DocumentEmbedder | TaskPredictor


@dataclass(frozen=True)
class ServedModel:
    """A model that is loaded once for all that it does.

    Attributes:
        name: what clients call it.
        tokenizer: of the model.
        embedder: makes vectors, with any model.
        predictor: predicts what the model's task is; None where it has no such task, because of
        no_prediction: in words.
    """

    name: str
    tokenizer: PreTrainedTokenizerFast
    embedder: DocumentEmbedder
    predictor: TaskPredictor | None
    no_prediction: str

    @property
    def classifies(self) -> bool:
        """Whether whole documents get labels."""
        task = None if self.predictor is None else self.predictor.task
        return task is not None and bool(task.names) and not task.offsets

    @property
    def asks(self) -> bool:
        """Whether it answers questions about documents."""
        return self.predictor is not None and bool(self.predictor.record.usual.question)

    @property
    def paths(self) -> list[str]:
        """Where it can be asked."""
        classify = [CLASSIFY] if self.classifies else []
        return [EMBEDDINGS, EMBED, *classify, *([] if self.predictor is None else [PREDICT])]

    @property
    def longest(self) -> int:
        """Tokens of a text that are read at once."""
        return self.embedder.encode.max_length

    def has_dimensions(self, number: int) -> bool:
        """Whether vectors may have so many: all, or fewer where the configuration says that the first ones suffice.

        It says so as vLLM reads it: ``matryoshka_dimensions`` lists them, or ``is_matryoshka`` allows any number.
        """
        config = self.embedder.encoder.config
        fewer = getattr(config, "matryoshka_dimensions", None) or range(1, self.embedder.width)
        cut = hasattr(config, "matryoshka_dimensions") or getattr(config, "is_matryoshka", False)
        words = self.embedder.vectors.lexical is not None  # they stand at the end
        return number == self.embedder.width or (bool(cut) and not words and number in fewer)


def load_served(
    folder: str,
    *,
    name: str | None = None,
    overflow: str = "cut",
    stride: int | None = None,
    batch_size: int = 16,
    device: str = "auto",
    precision: str = "auto",
) -> ServedModel:
    """Load a model folder for serving; clients call it by ``name``, which is that of the folder if None."""
    device = resolve_device(device)
    same: dict[str, Any] = {
        "overflow": overflow,
        "stride": stride,
        "device": device,
        "precision": resolve_precision(precision, device),
        "batch_size": batch_size,
    }
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    predictor, no_prediction = None, ""
    try:
        predicting_task(model, tokenizer)
    except InputError as error:
        no_prediction = str(error)
    else:
        predictor = TaskPredictor(model, tokenizer, **same)
    embedder = embedder_of(folder, model, tokenizer, **same)
    return ServedModel(name or Path(folder).resolve().name, tokenizer, embedder, predictor, no_prediction)
