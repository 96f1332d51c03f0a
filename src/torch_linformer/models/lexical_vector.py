"""Which words a row has, wherever they stand: a sketch of them beside its vector, so that one product compares both."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.models.saved_module import SavedModule

NOTHING = -1  # what a token without words counts as
WORDS, PAIRS = 2**16, 2**18  # buckets
_LONGEST = 16  # tokens of a word whose order counts
_PRIME = 2**31 - 1
_PLACES = [pow(1_000_003, place + 1, _PRIME) for place in range(_LONGEST)]  # multipliers of a word's tokens
_COLUMN, _SIGN = 1_640_531_527, 1_103_515_245  # multipliers of a feature; no product leaves the range of int64


class LexicalVector(SavedModule):
    r"""A sketch of a row's words beside its vector, so that one product compares both.

    .. math::
        v' = \Big[ \sqrt{1 - s} \; v, \; \sqrt{s} \; \frac{y}{\lVert y \rVert_2} \Big], \qquad
        y_j = \sum_{f : \, h(f) = j} g(f) \, x_f, \qquad
        x_f = \begin{cases} (1 + \ln c_f) \, w_f & c_f > 0 \\ 0 & c_f = 0 \end{cases}

    v has length 1, and :math:`c_f` says how often a row has feature f: a token, as which :attr:`counts_as` counts it; a
    word of several tokens; or two tokens that follow each other. Words and pairs are known by hashes. So ``split_name``
    has its parts, and them as a pair. A token that counts for nothing ends a word, and not a pair.

    As in feature hashing (Weinberger et al. 2009, arXiv 0902.2206) each feature has a column h and a sign g, so the
    product of two sketches is that of two x but for features that share a column: hashed columns make that about one in
    :math:`\sqrt{\text{width}}`, those that :func:`~torch_linformer.tasks.lexical_vector_fit.fit_vector` chooses less.
    There are too many pairs for a sketch: it has none of them. Who keeps x itself, as a sparse row, loses nothing
    (:func:`~torch_linformer.tasks.lexical_vector_fit.word_rows`). Without tokens y = 0; padding counts for nothing.

    Args:
        vocab_size: token ids.
        channels: numbers of v.
        width: numbers of y.
        share: s, from 0 to 1.
        exact_share: s where x is kept itself.

    Attributes:
        weights: a buffer ``(features,)``: w of the tokens, of the buckets of words, and of those of pairs; 0 at first.
        columns: a buffer ``(vocab_size + WORDS,)``: h, by a hash until it is fitted.
        counts_as: a buffer ``(vocab_size,)``: the token as which each is counted, −1 for nothing (the first value).
        begins: a bool buffer ``(vocab_size,)``: whether a token begins a word wherever it stands.
    """

    weights: Tensor
    columns: Tensor
    counts_as: Tensor
    begins: Tensor

    def __init__(
        self, vocab_size: int, channels: int, width: int, share: float = 0.5, exact_share: float = 0.5
    ) -> None:
        super().__init__()
        self.channels, self.width, self.share, self.exact_share = channels, width, share, exact_share
        self.register_buffer("weights", torch.empty(vocab_size + WORDS + PAIRS))
        self.register_buffer("columns", torch.empty(vocab_size + WORDS, dtype=torch.long))
        self.register_buffer("counts_as", torch.empty(vocab_size, dtype=torch.long))
        self.register_buffer("begins", torch.empty(vocab_size, dtype=torch.bool))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was fitted: no token counts, and a hash is its column."""
        nn.init.zeros_(self.weights)
        nn.init.constant_(self.counts_as, NOTHING)
        self.begins.fill_(True)
        self.columns.copy_(torch.arange(len(self.columns)) * _COLUMN % _PRIME % self.width)

    @property
    def signs(self) -> Tensor:
        """g of each feature that a sketch has."""
        return 1 - 2 * (torch.arange(len(self.columns), device=self.columns.device) * _SIGN % _PRIME % 2)

    def features(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The features of token ids ``(B, N)``, and which of them there are: ``(B, 3N)``, the pairs last."""
        features, real = self._tokens_and_words(input_ids, attention_mask)
        number = input_ids.shape[1]
        # Tokens that count side by side, first.
        order = (~real[:, :number]).long().argsort(dim=1, stable=True)
        tokens, both = (rows[:, :number].gather(1, order) for rows in (features, real))
        pairs = ((tokens + 1) * _PLACES[0] + (tokens.roll(-1, dims=1) + 1) * _PLACES[1]) % _PRIME
        both = both & both.roll(-1, dims=1) & (torch.arange(number, device=tokens.device) + 1 < number)
        return torch.cat([features, len(self.columns) + pairs % PAIRS], dim=1), torch.cat([real, both], dim=1)

    def _tokens_and_words(self, input_ids: Tensor, attention_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The features that a sketch has, ``(B, 2N)``."""
        tokens = self.counts_as[input_ids.clamp(min=0)]
        real = (tokens != NOTHING) & (input_ids >= 0)
        if attention_mask is not None:
            real = real & (attention_mask != 0)
        tokens, place = tokens.clamp(min=0), torch.arange(tokens.shape[1], device=tokens.device)
        after_one = real.roll(1, dims=1) & (place > 0)
        starts = real & (self.begins[input_ids.clamp(min=0)] | ~after_one)
        word, nothing = (starts.cumsum(dim=1) - 1).clamp(min=0), torch.zeros_like(tokens)
        first = nothing.scatter_add(1, word, torch.where(starts, place, 0)).gather(1, word)
        multipliers = torch.tensor(_PLACES, device=tokens.device)[(place - first).clamp(0, _LONGEST - 1)]
        codes = nothing.scatter_add(1, word, torch.where(real, (tokens + 1) * multipliers % _PRIME, 0)) % _PRIME
        words = nothing.scatter_add(1, word, real.long()) > 1
        features = torch.cat([tokens, len(self.counts_as) + codes % WORDS], dim=1)
        return features, torch.cat([real, words], dim=1)

    def sketch(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """y of length 1, ``(B, width)``, of token ids ``(B, N)``; those where the mask is 0 are padding."""
        features, real = self._tokens_and_words(input_ids, attention_mask)
        accurate, rows = torch.promote_types(self.weights.dtype, torch.float32), features.shape[0]
        counts = torch.zeros(rows, len(self.columns), dtype=accurate, device=features.device)
        counts = counts.scatter_add(1, features, real.to(accurate))
        x = torch.where(counts > 0, (1 + counts.clamp(min=1).log()) * self.weights[: len(self.columns)], 0.0)
        sketch = x.new_zeros(rows, self.width).scatter_add(1, self.columns.expand(rows, -1), x * self.signs)
        return F.normalize(sketch, dim=-1)

    def beside(self, vectors: Tensor, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """v' ``(B, C + width)`` of vectors v ``(B, C)`` of the same rows, or of each of M a row."""
        sketch = self.sketch(input_ids, attention_mask).to(vectors.dtype)
        if vectors.dim() == 3:
            sketch = sketch.unsqueeze(1).expand(-1, vectors.shape[1], -1)
        return torch.cat([vectors * (1 - self.share) ** 0.5, sketch * self.share**0.5], dim=-1)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """What sentence-transformers calls: a dictionary with v' in place of v, its ``sentence_embedding``, or where a
        row has several, its ``token_embeddings``; ``token_mask`` then tells its tokens.
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
        named = ("channels", "width", "share", "exact_share")
        return {"vocab_size": len(self.counts_as), **{name: getattr(self, name) for name in named}}
