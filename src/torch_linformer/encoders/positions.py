"""How many tokens an encoder reads at once, and its learned positions where it is to read more."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

FIELD = "max_position_embeddings"
TABLES = ("position_embeddings.weight",)  # the end of their names
UNLIMITED = 1 << 20  # positions of models of images and sound, and of rotary models that do not tell


@dataclass(frozen=True)
class Positions:
    """The positions of an encoder.

    Attributes:
        longest: tokens that it reads at once.
        offset: rows of a learned table before that of the first token: RoBERTa's kin keep some for padding.
        is_learned: whether there is such a table; others go on by themselves.
    """

    longest: int
    offset: int
    is_learned: bool

    @classmethod
    def of(cls, base: PreTrainedModel) -> "Positions":
        config: Any = base.config
        for name, module in base.named_modules():
            if name.endswith("position_embeddings") and isinstance(module, nn.Embedding):
                offset = 0 if module.padding_idx is None else module.padding_idx + 1
                return cls(module.num_embeddings - offset, offset, is_learned=True)
        return cls(getattr(config, FIELD, None) or UNLIMITED, 0, is_learned=False)

    def fields(self, length: int) -> dict[str, int]:
        """The fields of a configuration that reads ``length`` tokens."""
        return {FIELD: length + self.offset} if self.is_learned else {}

    def is_table(self, name: str) -> bool:
        return self.is_learned and name.endswith(TABLES)

    def extended(self, table: Tensor, rows: int) -> Tensor:
        """``rows`` of a learned table: beyond its own these repeat, but not those kept for padding."""
        places = torch.arange(rows - self.offset, device=table.device) % self.longest
        return torch.cat([table[: self.offset], table[self.offset :][places]])
