"""Which words a document has, wherever they stand: logits of its bag of tokens and of neighboring pairs of tokens."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.models.lexical_features import NOTHING, LexicalFeatures


class LexicalHead(LexicalFeatures):
    r"""A linear map of a row's :class:`~torch_linformer.models.lexical_features.LexicalFeatures` x.

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
        found = F.embedding_bag(
            features.flatten(), self.weight, rows_begin, mode="sum", per_sample_weights=weights.flatten()
        )
        return (found + self.bias).to(accurate)

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


def _resized(features: Tensor, tokens: int, wanted: int) -> Tensor:
    """``wanted`` rows of tokens, zeros where there were none, before those of pairs."""
    new = features.new_zeros(max(0, wanted - tokens), *features.shape[1:])
    return torch.cat([features[: min(tokens, wanted)], new, features[tokens:]])
