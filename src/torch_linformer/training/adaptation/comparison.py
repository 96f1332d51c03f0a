"""How near the student is to its teacher, on texts that neither the fit nor the distillation has seen."""

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from torch_linformer.models import LinformerModel
from torch_linformer.training.adaptation.distillation import embed
from torch_linformer.training.adaptation.teacher import Teacher
from torch_linformer.training.devices import autocast

NEIGHBOURS = 10


class Comparison:
    """Texts whose embeddings by the teacher are known.

    Args:
        teacher: embeds them once, at the first comparison.
        texts: token ids of each.
        batch_size: texts at once.
        precision: of the student's arithmetic, as it will be used.
    """

    def __init__(self, teacher: Teacher, texts: Sequence[list[int]], batch_size: int, precision: str) -> None:
        self.teacher, self.texts, self.batch_size, self.precision = teacher, texts, batch_size, precision
        self.wanted: Tensor | None = None

    def scores(self, student: LinformerModel) -> dict[str, float]:
        """``cosine``, ``rank_correlation`` and ``neighbours``; see :func:`embedding_scores`."""
        pooling = self.teacher.model.config.pooling
        if self.wanted is None:
            self.wanted = self._embeddings(lambda ids, mask: self.teacher.hidden_states(ids, mask)[-1], pooling)
        module: nn.Module = student
        was_training = module.training
        module.eval()
        given = self._embeddings(lambda ids, mask: student(ids, mask).last_hidden_state, pooling)
        module.train(was_training)
        return embedding_scores(given, self.wanted)

    @torch.no_grad()
    def _embeddings(self, hidden_of, pooling: str) -> Tensor:
        device = next(self.teacher.model.parameters()).device
        found = torch.empty(len(self.texts), self.teacher.model.config.hidden_size)
        with autocast(device.type, self.precision):
            for numbers in self._batches():
                texts = [torch.tensor(self.texts[number]) for number in numbers]
                ids = nn.utils.rnn.pad_sequence(texts, batch_first=True).to(device)
                lengths = torch.tensor([len(text) for text in texts], device=device)
                mask = (torch.arange(ids.shape[1], device=device) < lengths[:, None]).long()
                found[numbers] = embed(hidden_of(ids, mask), mask, pooling).cpu()
        return found

    def _batches(self) -> Iterator[list[int]]:
        """Texts of similar length together, longest first."""
        order = sorted(range(len(self.texts)), key=lambda number: -len(self.texts[number]))
        for start in range(0, len(order), self.batch_size):
            yield order[start : start + self.batch_size]


def embedding_scores(given: Tensor, wanted: Tensor) -> dict[str, float]:
    """How well embeddings ``(n, C)`` of length 1 stand in for others of the same texts.

    Returns:
        ``cosine``: mean over the texts. ``rank_correlation``: Spearman's, of the similarities of all pairs.
        ``neighbours``: share of each text's ten nearest that are still among its ten nearest.
    """
    ours, theirs = (given @ given.T).double(), (wanted @ wanted.T).double()
    pairs = np.triu_indices(len(given), 1)
    kept = _nearest(ours) & _nearest(theirs)
    return {
        "cosine": float((given * wanted).sum(dim=-1).mean()),
        "rank_correlation": float(spearmanr(ours.numpy()[pairs], theirs.numpy()[pairs]).statistic),
        "neighbours": float(kept.sum(dim=-1).double().mean()) / min(NEIGHBOURS, len(given) - 1),
    }


def _nearest(similarities: Tensor) -> Tensor:
    """Bool ``(n, n)``: True at the nearest others of each text."""
    others = similarities.clone().fill_diagonal_(-torch.inf)
    found = others.topk(min(NEIGHBOURS, len(others) - 1), dim=-1).indices
    return torch.zeros_like(others, dtype=torch.bool).scatter(-1, found, True)
