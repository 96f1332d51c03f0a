"""A trained model as one file that runs without this package; kept only if it agrees with the model."""

import importlib.util
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.export import Dim

from torch_linformer.encoders.heads import Head, has_token_types, head_of
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerForConditionalGeneration, LinformerForSequenceClassification
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.folder import check_free, new_folder
from torch_linformer.opening.hub import model_file
from torch_linformer.opening.load import (
    AnyModel,
    load_model,
    load_tokenizer,
    read_length,
    reader_config,
    reading_options,
    save_tokenizer,
)
from torch_linformer.opening.sentence_transformers import (
    POOLINGS,
    PROMPTS,
    document_vectors,
    sentence_settings,
    write_sentence_modules,
)
from torch_linformer.reporting.screen import Screen

FILES = {"onnx": "model.onnx", "torch": "model.pt2"}
_ONNX_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
OUTPUTS: dict[Head, list[str]] = {"answers": ["start_logits", "end_logits"]}  # of a head; of others, "logits"
_TOLERANCE = 1e-4  # of the largest score, in float32


class Scores(nn.Module):
    """A model as a function of ids, mask and, where it has them, token types ``(B, N)``; for words only, no encoder.

    It returns ``logits``, or ``start_logits`` and ``end_logits`` of question answering; of a model without a head
    ``last_hidden_state`` and ``sentence_embedding``, the vectors that ``linformer embed`` writes.
    """

    def __init__(self, model: AnyModel, vectors: DocumentVectors) -> None:
        super().__init__()
        self.model: Any = model
        self.vectors = vectors
        self.inputs = ["input_ids", "attention_mask", *(["token_type_ids"] if has_token_types(model) else [])]
        self.options = reading_options(model.config)
        self.outputs = OUTPUTS.get(head_of(model), ["logits"])
        if model.base_model is model:
            self.outputs = ["last_hidden_state", "sentence_embedding"]
        self.words_only = isinstance(model, LinformerForSequenceClassification) and model.words_only
        if self.words_only:  # no graph has weights whose states count for nothing
            self.inputs, self.model.linformer = self.inputs[:2], nn.Identity()

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        named = dict(zip(self.inputs, inputs, strict=True))
        if self.words_only:
            return (self.model.lexical_logits(**named) + self.model.classifier.bias,)
        outputs = self.model(**named, **self.options)
        if "sentence_embedding" not in self.outputs:
            return tuple(outputs[name] for name in self.outputs)
        vectors = self.vectors(lambda **_: outputs, named["input_ids"], named["attention_mask"])
        return outputs.last_hidden_state, vectors


def export_model(folder: str, output: Path, format: str, screen: Screen | None = None) -> float:
    """Write a model folder as ONNX or as a program of ``torch.export``, with its tokenizer and configuration.

    The file takes any number of rows and any length that the model takes: the dimensions ``batch`` and ``tokens``. It
    is loaded again (by onnxruntime, or by torch) and its scores are compared with the model's before the folder gets
    its name. That of an embedder is one of sentence-transformers. ``screen`` says what runs.

    Returns:
        The largest difference of a score, relative to the largest score.

    Raises:
        InputError: an unknown format, missing packages, an encoder-decoder, or scores that differ by more than 1e-4.
    """
    if format not in FILES:
        raise InputError(f"--format must be one of {', '.join(FILES)}, got {format!r}")
    missing = [name for name in _ONNX_PACKAGES if importlib.util.find_spec(name) is None]
    if format == "onnx" and missing:
        raise InputError(f'--format onnx needs {", ".join(missing)}: pip install "torch-linformer[onnx]"')
    check_free(output)
    screen = screen or Screen()
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    if isinstance(model, LinformerForConditionalGeneration):
        raise InputError(
            f"{folder}: an encoder-decoder writes token by token, which no single program can hold; load it with "
            "from_pretrained"
        )
    vectors = document_vectors(folder, reader_config(model.config))
    if vectors.most > 1:
        raise InputError(
            f"{folder}: makes {vectors.most} vectors of a text, and a program makes one: linformer embed writes them"
        )
    scores = Scores(model, vectors).eval()
    with new_folder(output) as temporary:
        file = temporary / FILES[format]
        _write(scores, file, screen)
        screen.say(f"comparing its scores with the model's, on texts of up to {_shapes(model)[-1][1]:,} tokens")
        program = _opened(file, scores)  # once: it takes nearly half as long as writing
        difference = float(np.max([_difference(scores, program, *shape) for shape in _shapes(model)]))  # NaN stays NaN
        if not difference <= _TOLERANCE:
            raise InputError(
                f"{folder}: the exported scores differ by {difference:.1e} of the largest; nothing is kept"
            )
        save_tokenizer(tokenizer, model, temporary)
        model.config.save_pretrained(temporary)
        if "sentence_embedding" in scores.outputs and scores.vectors.pooling in POOLINGS.values():
            write_sentence_modules(model.config, temporary, scores.vectors, sentence_settings(folder))
            prompts = model_file(folder, PROMPTS)
            if prompts is not None:
                shutil.copyfile(prompts, temporary / PROMPTS)
    return difference


def _shapes(model: AnyModel) -> list[tuple[int, int]]:
    """Batches to compare on: ordinary ones, the smallest and the longest. The first is the one to trace."""
    longest = read_length(model.config)
    return [(2, min(longest, 16)), (1, 1), (3, longest)]


def _batch(scores: Scores, rows: int, length: int) -> tuple[Tensor, ...]:
    """Random ids, a mask whose first row is padded by half, and two types."""
    ids = torch.randint(scores.model.config.vocab_size, (rows, length), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[0, length // 2 + 1 :] = 0
    types = torch.zeros_like(ids)
    types[:, length // 3 :] = 1
    return (ids, mask, types)[: len(scores.inputs)]


def _write(scores: Scores, file: Path, screen: Screen) -> None:
    dimensions = {0: Dim("batch"), 1: Dim("tokens", max=scores.model.config.longest_input)}
    batch = _batch(scores, *_shapes(scores.model)[0])
    screen.say("tracing the model")
    program = torch.export.export(scores, batch, dynamic_shapes=((dimensions,) * len(batch),))
    if file.suffix == ".pt2":
        torch.export.save(program, file)
        return
    screen.say(f"writing its {len(program.graph.nodes):,} operations as ONNX, the longest part")
    names = {axis: dimension.__name__ for axis, dimension in dimensions.items()}  # which the program has not kept
    onnx = torch.onnx.export(
        program,
        input_names=scores.inputs,
        output_names=scores.outputs,
        dynamic_shapes=((names,) * len(batch),),
        dynamo=True,
        verbose=False,
    )
    assert onnx is not None
    onnx.save(str(file))


def _opened(file: Path, scores: Scores) -> Callable[..., Sequence[Any]]:
    """What a written file computes of a batch."""
    if file.suffix == ".pt2":
        return cast(Callable[..., Sequence[Any]], torch.export.load(file).module())
    import onnxruntime

    session = onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])
    return lambda *batch: session.run(
        scores.outputs, {name: tensor.numpy() for name, tensor in zip(scores.inputs, batch, strict=True)}
    )


@torch.no_grad()
def _difference(scores: Scores, program: Callable[..., Sequence[Any]], rows: int, length: int) -> float:
    """Largest difference between the scores of a program and of the model, relative to the largest score."""
    batch = _batch(scores, rows, length)
    pairs = [(np.asarray(one), other.numpy()) for one, other in zip(program(*batch), scores(*batch), strict=True)]
    largest = [max(np.abs(other).max(), np.finfo(np.float32).tiny) for _, other in pairs]  # a row without words is 0
    return float(np.max([np.abs(one - other).max() / size for (one, other), size in zip(pairs, largest, strict=True)]))
