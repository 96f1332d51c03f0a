"""The vector of a document, from what a model made of it."""

from torch import Tensor, nn

from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pooling import embed


class DocumentVectors(nn.Module):
    """Vectors ``(B, C)`` of length 1: what last hidden states pool to, and the words of the rows beside it.

    Args:
        pooling: of the hidden states, see :func:`~torch_linformer.models.pooling.pool`.
        lexical: what the words add; None for nothing.
    """

    def __init__(self, pooling: str, lexical: LexicalVector | None = None) -> None:
        super().__init__()
        self.pooling, self.lexical = pooling, lexical

    def width(self, hidden_size: int) -> int:
        """Numbers of a vector of a model whose hidden states have this many."""
        pooled = hidden_size * (2 if self.pooling == "mean_max" else 1)
        return pooled if self.lexical is None else self.lexical.get_embedding_dimension()

    def forward(
        self, hidden: Tensor, input_ids: Tensor, attention_mask: Tensor, whole_ids: Tensor | None = None
    ) -> Tensor:
        """Vectors in float32 of rows ``(B, N)`` and of their hidden states ``(B, N, C)``.

        Where a row is only a part of its document, the words are those of all of it: ``whole_ids`` ``(B, M)``, padded
        with a token that counts for nothing.
        """
        vectors = embed(hidden, attention_mask, self.pooling)
        if self.lexical is None:
            return vectors
        words = (input_ids, attention_mask) if whole_ids is None else (whole_ids, None)
        return self.lexical.beside(vectors, *words)
