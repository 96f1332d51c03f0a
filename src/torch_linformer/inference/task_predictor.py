"""A trained model as a function of documents: what its task predicts of each."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

from torch import nn
from transformers import PreTrainedTokenizerFast

from torch_linformer.data.reading.records import TEXT, Record
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.window_reader import WindowReader, Windows, in_groups
from torch_linformer.opening.model_folder import AnyModel, read_length
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Classification, MultiLabel


class TaskPredictor:
    """A trained model with its tokenizer and task, which must be one that predicts something about a document.

    ``overflow`` and ``stride`` are those of `DocumentEncoder`; ``batch_size`` counts windows. ``threshold`` and
    ``top_k`` are for models that predict labels: see :class:`torch_linformer.inference.Predictor`.
    """

    def __init__(
        self,
        model: AnyModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        overflow: str = "cut",
        stride: int | None = None,
        threshold: float | None = None,
        top_k: int | None = None,
        device: str,
        precision: str,
        batch_size: int,
    ) -> None:
        self.task = predicting_task(model, tokenizer)
        _choose_labels(self.task, threshold, top_k)
        self.model = cast(nn.Module, model).to(device).eval()
        self.encode = self.task.encoder(read_length(model.config), overflow=overflow, stride=stride)
        self.windows = WindowReader(
            self.task.collate,
            lambda batch: self.task.respond(self.model, batch),
            device=device,
            precision=precision,
            batch_size=batch_size,
        )

    @property
    def record(self) -> Record:
        """What is read of a row, without what the task needs only for training."""
        return TEXT if self.task.record.usual.text == TEXT.usual.text else self.task.record

    def predict(self, documents: Iterable[Document]) -> Iterator[dict[str, Any]]:
        """A record for each document, in their order; batches hold documents of similar lengths."""
        for group in in_groups(documents, self.windows.batch_size):
            yield from self.answer(group, self.prepare(group))

    def prepare(self, documents: Sequence[Document]) -> Windows:
        """The windows of some documents, all of which have a question or none of which has."""
        columns = self.task.documents(documents)
        return self.encode(columns["text"], columns.get("question"))

    def answer(
        self, documents: Sequence[Document], windows: Windows, values: Sequence[Any] | None = None
    ) -> Iterator[dict[str, Any]]:
        """A record for each document, from the windows that :meth:`prepare` made of them.

        ``values`` are what ``windows.read`` gives of these windows, which are read here if None.
        """
        values = self.windows.read(windows) if values is None else values
        answers = self.task.answers(values, windows, self.task.documents(documents))
        sizes = zip(windows["document"], windows["num_tokens"], windows["length"], strict=True)
        tokens_and_read = {number: (tokens, read) for number, tokens, read in sizes}
        for number, document in enumerate(documents):
            tokens, read = tokens_and_read[number]
            question = {} if document.question is None else {"question": document.question}
            answer = self.task.describe(answers[number], document)
            cut = self.encode.overflow == "cut" and tokens > read
            yield {"document": document.where, **question, **answer, "tokens": tokens, "cut": cut}


def _choose_labels(task: Task, threshold: float | None, top_k: int | None) -> None:
    """Let a task predict labels above a probability, and tell the highest probabilities."""
    if threshold is None and top_k is None:
        return
    if not isinstance(task, Classification | MultiLabel):
        raise InputError("--threshold and --top-k are for models that predict labels, and this one does not")
    if threshold is not None and not 0 < threshold < 1:
        raise InputError(f"--threshold must lie between 0 and 1, got {threshold:g}")
    if top_k is not None and top_k < 1:
        raise InputError(f"--top-k must be at least 1, got {top_k}")
    task.threshold = task.threshold if threshold is None else threshold
    task.top_k = top_k


def predicting_task(model: AnyModel, tokenizer: PreTrainedTokenizerFast) -> Task:
    """The task of a model; an ``InputError`` where it predicts nothing of a document."""
    task = task_of(model, tokenizer)
    if type(task).describe is Task.describe:
        raise InputError(f"{type(model).__name__} predicts nothing of a document: {task.instead}")
    return task
