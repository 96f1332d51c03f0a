"""The positions of an encoder: the tables that it looks them up in, and what these become for longer texts."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from transformers import PreTrainedModel

from torch_linformer.encoders.attentions import TOKENS, example_inputs, recorded_by, run, stop

FIELD = "max_position_embeddings"
UNLIMITED = 1 << 20  # positions of models of images and sound, and of rotary models that do not tell


@dataclass(frozen=True)
class Positions:
    """The positions of an encoder.

    Attributes:
        longest: tokens that it reads at once.
        usual: tokens that the original reads at once as it is used, whose positions are repeated beyond them.
        offset: rows of a table before that of the first token: RoBERTa's kin keep some for padding, BART's two.
        tables: names of the tables of positions, in the base model; none for positions that go on by themselves.
    """

    longest: int
    usual: int
    offset: int = 0
    tables: tuple[str, ...] = ()

    @classmethod
    def of(cls, base: PreTrainedModel) -> "Positions":
        """Those of a model, which is run on a few tokens: a table is what they are looked up in one after the other.

        A linear encoder's configuration tells.
        """
        config: Any = base.config
        if isinstance(getattr(config, "linformer", None), dict):
            return cls.said_by(config)
        longest = getattr(config, FIELD, None) or UNLIMITED
        if base.main_input_name != "input_ids":
            return cls(longest, longest)
        names = {
            table.data_ptr(): name
            for name, table in nn.Module.state_dict(base, keep_vars=True).items()
            if isinstance(table, Tensor) and table.dim() == 2
        }
        lookups = _Lookups()
        with recorded_by(stop, base), lookups, suppress(Exception):  # what fails later is told by who runs it
            run(base, example_inputs(base, TOKENS))
        offsets, rows = {}, []
        for table, index in lookups.seen:
            start = int(index[0])
            is_in_turn = len(index) >= TOKENS and torch.equal(index[:TOKENS].cpu(), torch.arange(start, start + TOKENS))
            if is_in_turn and table.data_ptr() in names:
                offsets[names[table.data_ptr()]] = start
                rows.append(len(table) - start)
        if not offsets:
            return cls(longest, longest)
        return cls(min(rows), min(rows), max(offsets.values()), tuple(offsets))

    @classmethod
    def said_by(cls, config: Any) -> "Positions":
        """Those that the configuration of a linear encoder says; ``ValueError`` where it says something else."""
        try:
            said = cls(**{**config.positions, "tables": tuple(config.positions["tables"])})
            numbers, names = (said.longest, said.usual, said.offset), said.tables
            is_whole = all(type(x) is int and x >= 0 for x in numbers) and all(isinstance(x, str) for x in names)
        except (KeyError, TypeError):  # whatever stands there instead
            is_whole = False
        if not is_whole:
            raise ValueError("config.json has no positions of a linear encoder")
        return said


class _Lookups(TorchFunctionMode):
    """What is looked up in tables meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[Tensor, Tensor]] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.embedding:
            self.seen.append((args[1], args[0].flatten()))
        elif func in (torch.index_select, Tensor.index_select):
            self.seen.append((args[0], args[2].flatten()))
        return func(*args, **(kwargs or {}))


def set_length(
    base: PreTrainedModel,
    positions: Positions,
    length: int,
    marks: tuple[int, int],
    new_model: Callable[[], PreTrainedModel],
) -> None:
    """Let the tables of an encoder have the positions of ``length`` tokens, and no more.

    A table that is learned repeats as if the text were read in windows of ``usual`` tokens one after the other, with
    ``marks`` special tokens before and after each: the rows of a window without those of its marks follow again. So a
    token has the position that it has in its window. A table that is computed, which training leaves as it is, becomes
    what it is in ``new_model()``, of the configuration for that length.
    """
    if not positions.tables:
        return
    for name in positions.tables:
        place, _, own_name = name.rpartition(".")
        module, table = base.get_submodule(place), nn.Module.state_dict(base, keep_vars=True)[name]
        numbers, kept = table.detach(), positions.offset
        rows, first = torch.arange(length, device=table.device), marks[0]
        room = max(1, positions.usual - sum(marks))
        repeated = torch.where(rows < positions.longest, rows, (rows - first) % room + first)
        grown = torch.cat([numbers[:kept], numbers[kept:][repeated]])
        if not table.requires_grad:
            computed = nn.Module.state_dict(new_model())[name].to(table)
            shared = min(len(computed), len(table))
            if len(computed) == len(grown) and torch.equal(computed[:shared], table[:shared]):
                grown = computed
        if torch.equal(grown, table):
            continue
        is_parameter = isinstance(table, nn.Parameter)
        setattr(module, own_name, nn.Parameter(grown, table.requires_grad) if is_parameter else grown)
        if isinstance(module, nn.Embedding):
            module.num_embeddings = len(grown)
        for other in {base.get_submodule(place.rpartition(".")[0]), module}:
            for buffer, own in list(other.named_buffers(recurse=False)):  # numbers of positions, and types of tokens
                width = own.shape[-1]
                if own.dtype == torch.long and own.dim() == 2 and width in (len(table), len(table) - kept):
                    step = own[0, 1] - own[0, 0] if width > 1 else 1
                    count = torch.arange(width + len(grown) - len(table), device=own.device)
                    setattr(other, buffer, (own[0, 0] + step * count).expand(len(own), -1).contiguous())
