"""One vector for a sequence: the input of a classifier, or the vector of a document."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers.activations import ACT2FN

from torch_linformer.functional.padding import Padding, fill_padding
from torch_linformer.functional.softmax import find_exact_tokens
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.nn.linear import run_linear


def pool(hidden: Tensor, attention_mask: Tensor | Padding | None, pooling: str) -> Tensor:
    """One vector per row of ``(B, N, C)``; padding is ignored, and a row that is all padding gives zeros.

    ``mean_max`` gives ``(B, 2C)``, the others ``(B, C)``; ``cls`` is the first real token, ``last`` the last. Where
    ``attention_mask`` is a piece of the rows, the vectors are those of whole rows.
    """
    if pooling == "mean_max":
        return torch.cat([pool(hidden, attention_mask, part) for part in ("mean", "max")], dim=-1)
    if attention_mask is None:
        attention_mask = hidden.new_ones(hidden.shape[:2])
    rows = attention_mask if isinstance(attention_mask, Padding) else Padding(attention_mask == 0)
    if pooling in ("cls", "last"):
        if rows.is_piece:
            states = find_exact_tokens(hidden, rows, int(pooling == "cls"), int(pooling == "last")).take(hidden)
        else:
            places = torch.arange(1, hidden.shape[1] + 1, device=hidden.device)
            places = places.flip(0) if pooling == "cls" else places  # the largest is that of the token asked for
            column = (rows.real * places).argmax(dim=-1)
            states = hidden[torch.arange(hidden.shape[0], device=hidden.device), column].unsqueeze(1)
        return states.squeeze(1).masked_fill(rows.tokens == 0, 0.0)
    if pooling == "max":
        filled = fill_padding(hidden, rows.mask, float("-inf"))
        if rows.is_piece:  # which may have no positions
            filled = F.pad(filled, (0, 0, 0, 1), value=float("-inf"))
        return rows.maximum(filled.amax(dim=1)).masked_fill(rows.tokens == 0, 0.0)
    # A sum over a long document is inaccurate in half precision.
    accurate = torch.promote_types(hidden.dtype, torch.float32)
    total = rows.total(rows.clean(hidden).sum(dim=1, dtype=accurate))
    return (total / rows.tokens.clamp(min=1)).to(hidden.dtype)


def embed(hidden: Tensor, attention_mask: Tensor, pooling: str) -> Tensor:
    """Embeddings ``(B, C)`` of length 1, in float32 at least, of ``(B, N, C)``; see :func:`pool`."""
    accurate = hidden.to(torch.promote_types(hidden.dtype, torch.float32))
    return F.normalize(pool(accurate, attention_mask, pooling), dim=-1)


class Pooler(nn.Module):
    r"""``(B, out_features)`` from ``(B, N, C)``: :math:`p` of :func:`pool`, or :math:`\mathrm{act}(p W^\top + b)`.

    The second if ``config.classifier_hidden_act`` names an activation; it has C features, whatever the pooling.

    Raises:
        ValueError: for ``cls`` pooling of a causal model.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        if config.causal and config.pooling == "cls":
            raise ValueError(
                "pooling='cls' of a causal model reads the first token, which attends to no other: use pooling='last'"
            )
        self.pooling = config.pooling
        self.out_features = config.hidden_size * (2 if config.pooling == "mean_max" else 1)
        self.dense: nn.Linear | None = None
        if config.classifier_hidden_act is not None:
            self.dense = nn.Linear(self.out_features, config.hidden_size)
            self.activation = ACT2FN[config.classifier_hidden_act]
            self.out_features = config.hidden_size

    def forward(self, hidden: Tensor, attention_mask: Tensor | Padding | None) -> Tensor:
        pooled = pool(hidden, attention_mask, self.pooling)
        if self.dense is not None:
            pooled = self.activation(run_linear(self.dense, pooled))
        return pooled


class DocumentVectors(nn.Module):
    """Vectors ``(B, C)`` of length 1: what last hidden states pool to, and the words of the rows beside it.

    Where ``pieces`` makes several vectors of a row, of the means of passages, they are ``(B, M, C)``, and each has the
    words of the whole row, which ``lexical`` adds.
    """

    def __init__(self, pooling: str, lexical: LexicalVector | None = None, pieces: PieceVectors | None = None) -> None:
        super().__init__()
        self.pooling, self.lexical, self.pieces = pooling, lexical, pieces

    @property
    def most(self) -> int:
        """Vectors of a row at most."""
        return 1 if self.pieces is None else self.pieces.most

    def forward(
        self,
        model: Callable[..., Any],
        input_ids: Tensor,
        attention_mask: Tensor,
        whole_ids: Tensor | None = None,
        **options: Any,
    ) -> Tensor:
        """Vectors in float32 of rows ``(B, N)`` that a model reads; where a row is only a part of its document, the
        words are those of ``whole_ids`` ``(B, M)``, padded with a token that counts for nothing.
        """
        vectors = self.without_words(model, input_ids, attention_mask, **options)
        if self.lexical is None:
            return vectors
        return self.lexical.beside(vectors, *((input_ids, attention_mask) if whole_ids is None else (whole_ids,)))

    def without_words(
        self, model: Callable[..., Any], input_ids: Tensor, attention_mask: Tensor, **options: Any
    ) -> Tensor:
        """What the hidden states of rows give, which a model reads in windows where ``pieces`` says so."""
        if self.pieces is not None and self.pieces.window is not None:
            return self.pieces.of_windows(self.pieces.windows(model, input_ids, attention_mask, **options))
        hidden = model(input_ids=input_ids, attention_mask=attention_mask, **options).last_hidden_state
        if self.pieces is None:
            return embed(hidden, attention_mask, self.pooling)
        return self.pieces.vectors(hidden, attention_mask)

    def width(self, hidden_size: int) -> int:
        """Numbers of a vector of a model whose hidden states have this many."""
        if self.lexical is not None:
            return self.lexical.get_embedding_dimension()
        return hidden_size * (2 if self.pooling == "mean_max" else 1)
