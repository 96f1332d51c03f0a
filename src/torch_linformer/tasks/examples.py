"""Documents made ready for a task."""

from dataclasses import dataclass

import numpy as np
from datasets import Dataset

from torch_linformer.data.packing import PackedText


@dataclass(frozen=True)
class Examples:
    """Documents, the windows of them that a model reads, and the tokens of each document before anything is cut."""

    documents: Dataset
    windows: Dataset | PackedText
    num_tokens: np.ndarray
