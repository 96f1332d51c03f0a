"""A few vectors of a row instead of one: each of the mean of a piece of its hidden states."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from torch_linformer.models.saved_module import SavedModule

LEAST_TOKENS = 64  # that a vector stands for: a shorter row, such as most queries, has one


def largest_products(queries: Tensor, documents: Tensor) -> Tensor:
    r"""How near queries and documents of one vector each, or of several, are: ``(Q, D)``.

    .. math:: s_{ij} = \max_{a, b} \; q_{ia} \cdot d_{jb}

    This is late interaction (Khattab and Zaharia 2020, arXiv 2004.12832) for queries of one vector.

    Args:
        queries: ``(Q, C)`` or ``(Q, A, C)``.
        documents: ``(D, C)`` or ``(D, B, C)``.
    """
    queries, documents = (rows.unsqueeze(1) if rows.dim() == 2 else rows for rows in (queries, documents))
    if queries.shape[1] > 1 and bool((queries == queries[:, :1]).all()):
        queries = queries[:, :1]  # short ones, whose vectors are all the same
    products = queries.flatten(0, 1) @ documents.flatten(0, 1).T
    return products.view(*queries.shape[:2], *documents.shape[:2]).amax(dim=(1, 3))


def number_of_pieces(tokens: Tensor, most: int) -> Tensor:
    """How many vectors rows of so many tokens have: one for each 64, at least one and at most ``most``."""
    return (tokens / LEAST_TOKENS).ceil().long().clamp(1, most)


def read_in_windows(
    model: Callable[..., Any], input_ids: Tensor, attention_mask: Tensor, window: int | None, **options: Any
) -> Tensor:
    """The last hidden states ``(B, N, C)`` of rows, of which the model reads ``window`` tokens at once; all if None.

    Raises:
        ValueError: rows are read in windows, and padding stands before some of them or in between: their windows would
            depend on the other rows of the batch.
    """
    if window is None or input_ids.shape[1] <= window:
        hidden: Tensor = model(input_ids=input_ids, attention_mask=attention_mask, **options).last_hidden_state
        return hidden
    if bool((attention_mask[:, 1:] > attention_mask[:, :-1]).any()):
        raise ValueError("rows that are read in windows need padding_side='right': padding stands behind them")
    rows, tokens = input_ids.shape
    ids, mask = (F.pad(values, (0, -tokens % window)).view(-1, window) for values in (input_ids, attention_mask))
    real = mask.any(dim=1)
    states = model(input_ids=ids[real], attention_mask=mask[real], **options).last_hidden_state
    hidden = states.new_zeros(len(ids), window, states.shape[-1])
    return hidden.masked_scatter(real.view(-1, 1, 1), states).view(rows, -1, states.shape[-1])[:, :tokens]


class PieceVectors(SavedModule):
    r"""Vectors ``(B, M, C)`` of length 1 of rows: M pieces of equally many neighboring tokens.

    .. math:: d_m = \frac{W u_m + b}{\lVert W u_m + b \rVert}, \qquad u_m = \frac{h_m}{\lVert h_m \rVert}

    :math:`h_m` is the mean of the last hidden states of a piece, which have read the whole row ("late chunking",
    Günther et al. 2024, arXiv 2409.04701). A row has :func:`number_of_pieces`; where these are fewer than M they are
    repeated, which changes no :func:`largest_products`.

    In a folder of sentence-transformers this is a module of its own, unless rows are read in windows.

    Args:
        channels: C.
        most: M.
        window: tokens of a row that the encoder reads at once (:func:`read_in_windows`); None for all of it.

    Attributes:
        map: W, the identity, and b, 0, until they are fitted
            (:func:`~torch_linformer.training.fitted_pieces.fit_pieces`).
    """

    def __init__(self, channels: int, most: int, window: int | None = None) -> None:
        super().__init__()
        self.channels, self.most, self.window = channels, most, window
        self.map = nn.Linear(channels, channels).requires_grad_(False)
        nn.init.eye_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    @property
    def is_fitted(self) -> bool:
        """Whether the map is another than the one it begins as."""
        weight, bias = self.map.weight, self.map.bias
        return not (torch.equal(weight, torch.eye(self.channels).to(weight)) and not bias.any())

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """What sentence-transformers calls: a dictionary with ``token_embeddings``, as many as vectors, or with
        ``sentence_embedding`` where M is 1.

        Raises:
            ValueError: rows are to be read in windows, and these were read as a whole.
        """
        hidden, mask = features["token_embeddings"], features["attention_mask"]
        if self.window is not None and hidden.shape[1] > self.window:
            raise ValueError(
                f"this model reads {self.window} tokens at once, window by window, which sentence-transformers does "
                "not: make its vectors by torch_linformer.Embedder or linformer embed"
            )
        vectors = self.vectors(hidden, mask)
        if self.most == 1:
            return {**features, "sentence_embedding": vectors.squeeze(1)}
        number = number_of_pieces((mask != 0).sum(dim=1, keepdim=True), self.most)
        own = torch.arange(self.most, device=mask.device) < number
        return {**features, "token_embeddings": vectors, "attention_mask": own.to(mask.dtype), "token_mask": mask}

    def vectors(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """The vectors, in float32 at least, of hidden states ``(B, N, C)``; padding may stand anywhere."""
        accurate = torch.promote_types(hidden.dtype, torch.float32)
        with torch.autocast(hidden.device.type, enabled=False):
            return self.mapped(self._means(hidden.to(accurate), attention_mask != 0))

    def mapped(self, means: Tensor) -> Tensor:
        """The vectors of the means of pieces, ``(…, C)``."""
        return F.normalize(F.linear(F.normalize(means, dim=-1), self.map.weight, self.map.bias), dim=-1)

    def _means(self, hidden: Tensor, real: Tensor) -> Tensor:
        tokens = real.sum(dim=1, keepdim=True)
        number = number_of_pieces(tokens, self.most)
        piece = (real.cumsum(dim=1) - 1) * number // tokens.clamp(min=1)
        members = F.one_hot(piece.clamp(min=0), self.most).masked_fill(~real.unsqueeze(-1), 0).to(hidden.dtype)
        sums = members.transpose(1, 2) @ hidden.masked_fill(~real.unsqueeze(-1), 0.0)
        means = sums / members.sum(dim=1).clamp(min=1).unsqueeze(-1)
        numbers = torch.arange(self.most, device=hidden.device) % number
        return means.gather(1, numbers.unsqueeze(-1).expand_as(means))

    def get_embedding_dimension(self) -> int:
        """Numbers of a vector, by the name that sentence-transformers asks for."""
        return self.channels

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that build it."""
        return {"channels": self.channels, "most": self.most, "window": self.window}
