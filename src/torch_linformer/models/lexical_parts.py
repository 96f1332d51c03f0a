"""Which words a row has, wherever they stand: counted and weighted, as logits of a head."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.functional.padding import Padding

NOTHING = -1  # what a token without words counts as, and the pair of an empty bucket
_PRIME = 2**31 - 1
_MULTIPLIERS = (1_000_003, 998_244_353)  # of the two tokens of a pair; no product leaves the range of int64


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


class LexicalHead(LexicalFeatures):
    r"""A linear map of a row's :class:`~torch_linformer.models.lexical_parts.LexicalFeatures` x.

    .. math:: z = \frac{x}{\lVert x \rVert_2} W + b

    A row without tokens gives b.

    Args:
        vocab_size: token ids.
        buckets: of the table of pairs.
        num_labels: logits of a row.

    Attributes:
        weight: W, ``(vocab_size + buckets, num_labels)``, tokens first; 0 until it is fitted, as is
        bias: b, ``(num_labels,)``.
    """

    def __init__(self, vocab_size: int, buckets: int, num_labels: int) -> None:
        super().__init__(vocab_size, buckets)
        self.weight = nn.Parameter(torch.empty(vocab_size + buckets, num_labels))
        self.bias = nn.Parameter(torch.empty(num_labels))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Forget what was fitted: every logit is 0."""
        super().reset_parameters()
        for tensor in (self.weight, self.bias):
            nn.init.zeros_(tensor)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        """Logits ``(B, num_labels)`` of token ids ``(B, N)``; those where the mask is 0 are padding."""
        features, weights = self.weigh(input_ids, attention_mask)
        accurate, weights = weights.dtype, F.normalize(weights, dim=-1).to(self.weight.dtype)
        rows_begin = torch.arange(features.shape[0], device=features.device) * features.shape[1]
        logits = F.embedding_bag(
            features.flatten(), self.weight, rows_begin, mode="sum", per_sample_weights=weights.flatten()
        )
        return (logits + self.bias).to(accurate)

    @torch.no_grad()
    def resize(self, vocab_size: int) -> None:
        """Take this many token ids; those that are new count for nothing.

        With as many as before every tensor stays, so that an optimizer goes on training the weight that it holds.
        """
        tokens = len(self.counts_as)
        if vocab_size == tokens:
            return
        self.weight = nn.Parameter(_resized(self.weight, tokens, vocab_size), requires_grad=self.weight.requires_grad)
        self.idf = _resized(self.idf, tokens, vocab_size)
        self.counts_as = F.pad(self.counts_as, (0, vocab_size - tokens), value=NOTHING)
        self.counts_as[self.counts_as >= vocab_size] = NOTHING


def _resized(features: Tensor, tokens: int, size: int) -> Tensor:
    """``size`` rows of tokens, zeros where there were none, before those of pairs."""
    new = features.new_zeros(max(0, size - tokens), *features.shape[1:])
    return torch.cat([features[: min(tokens, size)], new, features[tokens:]])
