"""A model folder as a function from texts to vectors."""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from torch_linformer.inference.predictor import Predictor, check_texts


class Embedder:
    """What ``linformer embed`` computes, as a function from texts to an array.

    Args:
        model: folder of a trained or adapted model, with or without a head, or a run of ``torch_linformer.train``.
        overflow: how long texts are read: ``cut``, or ``windows``, whose vectors are averaged.
        stride: tokens that neighboring windows share; a quarter of a window if None.
        normalize: whether vectors have length 1.
        prompt_name: which of the prompts of a folder of sentence-transformers is put before texts; its default one if
            None.
        device: ``auto`` takes a GPU if there is one.
        precision: ``auto``, ``fp32``, ``bf16`` or ``fp16``.
        batch_size: windows computed at once; a call may have any number of texts.
        compile: whether torch.compile makes the kernels, which the first batches wait for.

    Raises:
        InputError: the folder holds no model, or an option is not for it.

    Example:
        >>> embedder = Embedder("runs/all-MiniLM-L6-v2-linformer")  # doctest: +SKIP
        >>> embedder(["The parcel never came.", "Where is my order?"]).shape  # doctest: +SKIP
        (2, 384)
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        *,
        overflow: str = "cut",
        stride: int | None = None,
        normalize: bool = True,
        prompt_name: str | None = None,
        device: str = "auto",
        precision: str = "auto",
        batch_size: int = 16,
        compile: bool = False,
    ) -> None:
        self._predictor = Predictor(
            model,
            vectors=True,
            overflow=overflow,
            stride=stride,
            normalize=normalize,
            prompt_name=prompt_name,
            device=device,
            precision=precision,
            batch_size=batch_size,
            compile=compile,
        )

    @property
    def max_length(self) -> int:
        """Tokens of a text that are read at once."""
        return self._predictor.max_length

    @property
    def width(self) -> int:
        """Numbers of a vector."""
        return self._predictor.width

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """The vectors of some texts, an array ``(texts, width)`` in float32.

        Raises:
            InputError: a text is empty, or this is one text and no list.
        """
        check_texts(texts)
        if not len(texts):
            return np.zeros((0, self.width), dtype=np.float32)
        columns: dict[str, Any] = self._predictor({"text": texts})
        vectors: np.ndarray = columns["embedding"]
        return vectors
