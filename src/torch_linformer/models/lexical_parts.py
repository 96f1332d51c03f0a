"""Which words a row has, wherever they stand: counted and weighted, as a part of a vector."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding
from torch_linformer.models.saved_module import SavedModule

NOTHING = -1  # what a token without words counts as, and the pair of an empty bucket
_PRIME = 2**31 - 1
_MULTIPLIERS = (1_000_003, 998_244_353)  # of the two tokens of a pair; no product leaves the range of int64
_COLUMN, _SIGN = 1_640_531_527, 1_103_515_245  # multipliers of a token; no product leaves the range of int64


class LexicalFeatures(nn.Module):
    r"""TF-IDF features of a row, made of token ids alone.

    .. math::
        x_f = \begin{cases} (1 + \ln c_f) \, \mathrm{idf}_f & c_f > 0 \\ 0 & c_f = 0 \end{cases}

    A feature f is a token, or one of the pairs of neighboring tokens that the table has room for, and :math:`c_f` says
    how often a row has it. Tokens are counted as :attr:`counts_as` says, and those that count for nothing are left
    out before neighbors are paired. Padding counts for nothing, on any side.

    Args:
        vocab_size: token ids.
        buckets: of the table of pairs; each holds one pair, which lies in one of two buckets by its hash.

    Attributes:
        idf: a buffer, ``(vocab_size + buckets,)``, tokens first; 0 until it is fitted.
        counts_as: a buffer, ``(vocab_size,)``: the token as which each is counted, −1 for nothing (the first value).
        pairs: a buffer, ``(buckets,)``: the :meth:`codes` of a pair, −1 for none (the first value); None if empty.
    """

    idf: Tensor
    counts_as: Tensor
    pairs: Tensor

    def __init__(self, vocab_size: int, buckets: int = 0) -> None:
        super().__init__()
        self.register_buffer("idf", torch.empty(vocab_size + buckets))
        self.register_buffer("counts_as", torch.empty(vocab_size, dtype=torch.long))
        # torch.export.save writes no tensor that is empty.
        self.register_buffer("pairs", torch.empty(buckets, dtype=torch.long) if buckets else None)
        self.num_buckets = buckets

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was fitted: no token counts."""
        nn.init.zeros_(self.idf)
        nn.init.constant_(self.counts_as, NOTHING)
        if self.num_buckets:
            nn.init.constant_(self.pairs, NOTHING)

    def weigh(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The features ``(B, F)`` of token ids ``(B, N)`` and the :math:`x_f` of each; a feature that stands twice has
        0 the second time, as has what does not count. Negative ids are padding, and tokens where the mask is 0."""
        tokens = self.counts_as[input_ids.clamp(min=0)]
        missing = (tokens == NOTHING) | (input_ids < 0)
        if attention_mask is not None:
            missing = missing | (attention_mask == 0)
        rows = Padding(missing)
        features, counted = self.features(rows.justify(tokens).clamp(min=0), ~rows.trailing)
        # Equal ones side by side, those that do not count last: no array has a column for every feature.
        features = features.masked_fill(~counted, len(self.idf)).sort(dim=1).values
        first = (features != features.roll(1, dims=1)) | (torch.arange(features.shape[1], device=features.device) == 0)
        group, accurate = first.cumsum(dim=1) - 1, torch.promote_types(self.idf.dtype, torch.float32)
        counts = torch.zeros_like(features).scatter_add(1, group, torch.ones_like(features)).gather(1, group)
        stands = first & (features < len(self.idf))
        features = torch.where(stands, features, 0)
        return features, torch.where(stands, (1 + counts.to(accurate).log()) * self.idf[features], 0.0)

    def features(self, tokens: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
        """The features ``(B, 2N)`` of tokens ``(B, N)`` and of each with the next one, and which of these count."""
        if not self.num_buckets:
            return tokens, real
        # Rolled, not sliced, so that an exported program makes no exception of rows of one or two tokens.
        following, last = tokens.roll(-1, dims=1), torch.arange(tokens.shape[1], device=tokens.device) + 1
        pairs = self.codes(tokens, following)
        first, second = self.buckets(pairs)
        bucket = torch.where(self.pairs[first] == pairs, first, second)
        known = (self.pairs[bucket] == pairs) & real & real.roll(-1, dims=1) & (last < tokens.shape[1])
        return torch.cat([tokens, len(self.counts_as) + bucket], dim=1), torch.cat([real, known], dim=1)

    @staticmethod
    def codes(tokens: Tensor, following: Tensor) -> Tensor:
        """A number for each pair, which no other pair has."""
        return tokens * 2**32 + following

    def buckets(self, codes: Tensor) -> tuple[Tensor, Tensor]:
        """The two buckets in which a pair may be."""
        (one, other), tokens, following = _MULTIPLIERS, codes // 2**32, codes % 2**32
        hashes = (tokens * one + following * other, tokens * other + following * one)
        first, second = (number % _PRIME % self.num_buckets for number in hashes)
        return first, second


class LexicalVector(LexicalFeatures, SavedModule):
    r"""A sketch of a row's words beside its vector, so that one product compares both.

    .. math::
        v' = \Big[ \sqrt{1 - s} \; v, \; \sqrt{s} \; \frac{y}{\lVert y \rVert_2} \Big], \qquad
        y_j = \sum_{f : \, h(f) = j} g(f) \, x_f

    v has length 1, and x are the :class:`~torch_linformer.models.lexical_parts.LexicalFeatures` of the row's tokens.
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
        sketch = weights.new_zeros(input_ids.shape[0], self.width)
        return F.normalize(sketch.scatter_add(1, self.columns[features], signs * weights), dim=-1)

    def beside(self, vectors: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """v' ``(B, C + width)`` of vectors v ``(B, C)`` of the same rows, or of each of M a row."""
        sketch = self.sketch(input_ids, attention_mask).to(vectors.dtype)
        if vectors.dim() == 3:
            sketch = sketch.unsqueeze(1).expand(-1, vectors.shape[1], -1)
        return torch.cat([vectors * (1 - self.share) ** 0.5, sketch * self.share**0.5], dim=-1)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """What sentence-transformers calls: a dictionary with ``sentence_embedding``, from one with v there.

        Where a row has several v they are its ``token_embeddings``, and ``token_mask`` tells its tokens.
        """
        name = "token_embeddings" if "token_mask" in features else "sentence_embedding"
        mask = features.get("token_mask", features["attention_mask"])
        return {**features, name: self.beside(features[name], features["input_ids"], mask)}

    def get_embedding_dimension(self) -> int:
        """Numbers of v', by the name that sentence-transformers asks for."""
        return self.channels + self.width

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that build it."""
        sizes = {"vocab_size": len(self.counts_as), "channels": self.channels, "width": self.width}
        return {**sizes, "share": self.share}
