"""A few vectors of a row instead of one: each of the mean of a passage, beside that of the whole.

The class is named after pieces, and not after passages, because saved folders of sentence-transformers name it.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.functional.padding import Padding
from torch_linformer.models.row_windows import Windows
from torch_linformer.models.saved_module import SavedModule

LEAST_TOKENS = 64  # that a vector stands for where a row is read at once: a shorter row, such as most queries, has one
AT_ONCE = 32  # windows that are computed


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


class PieceVectors(SavedModule):
    r"""Vectors ``(B, M, C)`` of length 1 of rows: of M passages of equally many neighboring tokens, or windows.

    .. math:: d_m = \frac{W u_m + b}{\lVert W u_m + b \rVert}, \qquad
        u_m = \frac{v_m}{\lVert v_m \rVert}, \qquad
        v_m = \frac{h_m}{\lVert h_m \rVert} + \frac{h}{\lVert h \rVert}

    :math:`h_m` is the mean of the last hidden states of a passage and h that of the whole row, without which a passage
    is found for what other documents have as well (docs/log.md). Where the encoder reads the row at once its states
    know all of it ("late chunking", Günther et al. 2024, arXiv 2409.04701). A row has as many passages as
    :meth:`number` says; where these are fewer than M they are repeated, which changes no :func:`largest_products`.

    In a folder of sentence-transformers this is a module of its own, unless rows are read in windows.

    Args:
        channels: C.
        most: M.
        window: tokens that the encoder reads at once, one window after the other; None for the whole row.
        before, after: the special tokens that begin and end a row, and each of its windows.

    Attributes:
        map: W and b, the identity and 0 until they are fitted
            (:func:`~torch_linformer.training.vector_map.fit_map`).
    """

    def __init__(
        self,
        channels: int,
        most: int,
        window: int | None = None,
        before: Sequence[int] = (),
        after: Sequence[int] = (),
    ) -> None:
        super().__init__()
        self.channels, self.most, self.window = channels, most, window
        self.before, self.after = list(before), list(after)
        self.map = nn.Linear(channels, channels).requires_grad_(False)
        nn.init.eye_(self.map.weight)
        nn.init.zeros_(self.map.bias)

    @property
    def is_fitted(self) -> bool:
        """Whether the map is another than the one it begins as."""
        weight, bias = self.map.weight, self.map.bias
        return not (torch.equal(weight, torch.eye(self.channels).to(weight)) and not bias.any())

    @property
    def room(self) -> int:
        """Tokens of text in a window."""
        assert self.window is not None
        return self.window - len(self.before) - len(self.after)

    def number(self, tokens: Tensor) -> Tensor:
        """How many vectors rows of these lengths have: one for each window, or for each 64 tokens; M at most."""
        if self.window is None:
            least = (tokens / LEAST_TOKENS).ceil()
        else:
            least = ((tokens - len(self.before) - len(self.after)) / self.room).ceil()
        return least.long().clamp(1, self.most)

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        """What sentence-transformers calls: a dictionary with ``token_embeddings``, as many as vectors, or with
        ``sentence_embedding`` where M is 1. Rows that are to be read in windows are refused.
        """
        hidden, mask = features["token_embeddings"], features["attention_mask"]
        if self.window is not None and hidden.shape[1] > self.window:
            raise ValueError(
                f"this model reads {self.window} tokens at once, window by window, which sentence-transformers does "
                "not: make its vectors by torch_linformer.Embedder or linformer embed"
            )
        vectors = self.vectors(hidden, mask)
        if self.most == 1:
            return {**features, "sentence_embedding": vectors}
        own = torch.arange(self.most, device=mask.device) < self.number((mask != 0).sum(dim=1, keepdim=True))
        return {**features, "token_embeddings": vectors, "attention_mask": own.to(mask.dtype), "token_mask": mask}

    def vectors(self, hidden: Tensor, attention_mask: Tensor) -> Tensor:
        """The vectors, ``(B, C)`` where M is 1, in float32 at least, of hidden states ``(B, N, C)`` of rows that were
        read at once; padding may stand anywhere.
        """
        accurate, real = torch.promote_types(hidden.dtype, torch.float32), attention_mask != 0
        number = self.number(real.sum(dim=1, keepdim=True))
        return self._of_means(hidden.to(accurate), real.to(accurate), number)

    def windows(
        self, model: Callable[..., Any], input_ids: Tensor, attention_mask: Tensor, **options: Any
    ) -> list[Tensor]:
        """The mean of the last hidden states of each window, and its tokens in one column more: ``(windows, C + 1)`` of
        each row, in float32. A row of one window is read as it is.
        """
        assert self.window is not None
        windows = Windows.of(Padding(attention_mask == 0), self.window, len(self.before), len(self.after))
        ids, means = windows.cut(input_ids), []
        every = torch.arange(len(ids), device=ids.device)
        parts = [part for index, _ in windows.batches() for part in torch.split(every[index], AT_ONCE)]
        for part in parts:
            real = windows.real[part]
            real = real[:, : max(1, int(real.sum(dim=1).max()))]
            tokens = real.sum(dim=1, keepdim=True)
            rows = ids[part, : real.shape[1]].masked_fill(~real, 0)
            hidden = model(input_ids=rows, attention_mask=real.long(), **options).last_hidden_state.float()
            sums = hidden.masked_fill(~real.unsqueeze(-1), 0.0).sum(dim=1)
            means.append(torch.cat([sums / tokens.clamp(min=1), tokens], dim=1))
        return list(torch.split(torch.cat(means)[torch.cat(parts).argsort()], windows.counts))

    def of_windows(self, windows: Sequence[Tensor]) -> Tensor:
        """The vectors of rows, ``(B, C)`` where M is 1, from what :meth:`windows` gives of each."""
        counts = torch.tensor([len(row) for row in windows], device=windows[0].device).unsqueeze(1)
        padded = pad_sequence(list(windows), batch_first=True)
        return self._of_means(padded[..., :-1], padded[..., -1], counts.clamp(max=self.most))

    def _of_means(self, means: Tensor, tokens: Tensor, number: Tensor) -> Tensor:
        with torch.autocast(means.device.type, enabled=False):
            vectors = self.mapped(self.joined(means, tokens, number))
        return vectors.squeeze(1) if self.most == 1 else vectors

    def mapped(self, joined: Tensor) -> Tensor:
        """The vectors of what :meth:`joined` gives, ``(…, C)``."""
        return F.normalize(F.linear(joined, self.map.weight, self.map.bias), dim=-1)

    def joined(self, means: Tensor, tokens: Tensor, number: Tensor) -> Tensor:
        """u ``(B, M, C)`` of the means ``(B, W, C)`` of parts of rows with these ``tokens``, in ``number`` passages."""
        real = tokens > 0
        passage = (real.cumsum(dim=1) - 1) * number // real.sum(dim=1, keepdim=True).clamp(min=1)
        members = F.one_hot(passage.clamp(min=0), self.most).to(means.dtype) * tokens.unsqueeze(-1)
        sums = members.transpose(1, 2) @ means.masked_fill(~real.unsqueeze(-1), 0.0)
        places = torch.arange(self.most, device=means.device) % number
        passages = sums.gather(1, places.unsqueeze(-1).expand_as(sums))
        whole = F.normalize(sums.sum(dim=1, keepdim=True), dim=-1)
        return F.normalize(F.normalize(passages, dim=-1) + whole, dim=-1)

    def get_embedding_dimension(self) -> int:
        """Numbers of a vector, by the name that sentence-transformers asks for."""
        return self.channels

    @property
    def options(self) -> dict[str, Any]:
        """The arguments that build it."""
        return {name: getattr(self, name) for name in ("channels", "most", "window", "before", "after")}
