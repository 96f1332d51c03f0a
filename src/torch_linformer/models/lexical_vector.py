"""Which words a document has, as a part of its vector."""

import json
from pathlib import Path
from typing import Any, Self

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from torch.nn import functional as F

from torch_linformer.models.lexical_features import LexicalFeatures

CONFIG, WEIGHTS = "config.json", "model.safetensors"
_PRIME = 2**31 - 1
_COLUMN, _SIGN = 1_640_531_527, 1_103_515_245  # multipliers of a token; no product leaves the range of int64


class LexicalVector(LexicalFeatures):
    r"""A sketch of a row's words beside its vector, so that one product compares both.

    .. math::
        v' = \Big[ \sqrt{1 - s} \; v, \; \sqrt{s} \; \frac{y}{\lVert y \rVert_2} \Big], \qquad
        y_j = \sum_{f : \, h(f) = j} g(f) \, x_f

    v has length 1, and x are the :class:`~torch_linformer.models.lexical_features.LexicalFeatures` of the row's tokens.
    As in feature hashing (Weinberger et al. 2009, arXiv 0902.2206) each token has a column h and a sign g, so the
    product of two sketches is that of two x but for the products of tokens that share a column. Hashed columns make
    that about one in :math:`\sqrt{\text{width}}`; those that
    :func:`~torch_linformer.tasks.lexical_vector_fit.fit_vector` chooses make it less. A row without tokens has y = 0.

    In a folder of sentence-transformers this is a module of its own, the last one.

    Args:
        vocab_size: token ids.
        channels: numbers of v.
        width: numbers of y.
        share: s, from 0 to 1.

    Attributes:
        columns: a buffer, ``(vocab_size,)``: h of each token, by a hash (the first value) until it is fitted.
    """

    columns: Tensor

    def __init__(self, vocab_size: int, channels: int, width: int, share: float = 0.5) -> None:
        super().__init__(vocab_size)
        self.register_buffer("columns", torch.empty(vocab_size, dtype=torch.long))
        self.channels, self.width, self.share = channels, width, share
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was fitted: no token counts, and a hash is its column."""
        super().reset_parameters()
        self.columns.copy_(torch.arange(len(self.columns)) * _COLUMN % _PRIME % self.width)

    def sketch(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """y of length 1, ``(B, width)``, of token ids ``(B, N)``; those where the mask is 0 are padding."""
        features, weights = self.weigh(input_ids, attention_mask)
        signs = 1 - 2 * (features * _SIGN % _PRIME % 2)
        found = weights.new_zeros(input_ids.shape[0], self.width)
        return F.normalize(found.scatter_add(1, self.columns[features], signs * weights), dim=-1)

    def beside(self, vectors: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """v' ``(B, C + width)`` of vectors v ``(B, C)`` of the same rows."""
        sketch = self.sketch(input_ids, attention_mask).to(vectors.dtype)
        return torch.cat([vectors * (1 - self.share) ** 0.5, sketch * self.share**0.5], dim=-1)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """What sentence-transformers calls: a dictionary with ``sentence_embedding``, from one with v there."""
        rows = features["input_ids"], features["attention_mask"]
        return {**features, "sentence_embedding": self.beside(features["sentence_embedding"], *rows)}

    def get_embedding_dimension(self) -> int:
        """Numbers of v', by the name that sentence-transformers asks for."""
        return self.channels + self.width

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Write what :meth:`load` reads into a folder, which may be there already."""
        folder = Path(output_path)
        folder.mkdir(parents=True, exist_ok=True)
        config = {
            "vocab_size": len(self.counts_as),
            "channels": self.channels,
            "width": self.width,
            "share": self.share,
        }
        (folder / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_file(self.state_dict(), folder / WEIGHTS, metadata={"format": "pt"})

    @classmethod
    def load(cls, input_path: str) -> Self:
        """Read what :meth:`save` wrote."""
        folder = Path(input_path)
        lexical = cls(**json.loads((folder / CONFIG).read_text(encoding="utf-8")))
        lexical.load_state_dict(load_file(folder / WEIGHTS))
        return lexical
