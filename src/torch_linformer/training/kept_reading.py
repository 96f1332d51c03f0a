"""What an encoder makes of rows, read once and kept for other runs that read the same rows by the same encoder."""

import hashlib
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

import torch_linformer
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.files import atomic_path
from torch_linformer.reporting.tables import format_count, format_duration
from torch_linformer.tasks.kept_fits import FOLDER
from torch_linformer.training.training_screen import TrainingScreen

AT_ONCE = 16_384  # tokens of a batch, padding included
TOGETHER = 2**18  # tokens of rows that are read in batches of similar lengths, between two looks at the clock
SAVE_SECONDS = 60.0  # between two files of what is read


class KeptReading:
    """A tensor ``(k, C)`` of each row of token ids, whatever k, kept by its ids.

    ``read`` makes those of a batch's ids and mask, ``(B, N)``, by the weights of ``model`` and by ``options``.
    """

    def __init__(
        self,
        model: nn.Module,
        options: Any,
        read: Callable[[Tensor, Tensor], Sequence[Tensor]],
        device: str,
        precision: str,
        pad_token_id: int = 0,
    ) -> None:
        self.read, self.device, self.precision, self.pad_token_id = read, device, precision, pad_token_id
        digest = hashlib.sha256(repr((torch_linformer.__version__, options, device, precision)).encode())
        for name, tensor in sorted(model.state_dict().items()):
            digest.update(name.encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        self.folder = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / digest.hexdigest()[:32]
        self.known: dict[bytes, Tensor] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                kept = load_file(path)
            except (OSError, SafetensorError):  # cut short: its rows are read again
                continue
            values = torch.split(kept["values"], kept["counts"].tolist())
            self.known.update(zip(map(bytes, kept["rows"].numpy()), values, strict=True))

    def of(self, rows: Sequence[Sequence[int]], screen: TrainingScreen) -> list[Tensor]:
        """The tensors of rows, of which those that are new are read."""
        keys = [hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).digest()[:16] for row in rows]
        new = {key: row for key, row in zip(keys, rows, strict=True) if key not in self.known}
        if new:
            begin, done, total = time.monotonic(), 0, sum(map(len, new.values()))
            kept = f", {format_count(len(rows) - len(new))} are known" if len(new) < len(rows) else ""
            screen.say(f"reading {format_count(len(new))} texts of {format_count(total)} tokens{kept}")
            screen.start(0, max(1, total), "reading")
            unsaved: dict[bytes, Tensor] = {}
            saved = begin
            try:
                for batch in _batches(new):
                    unsaved.update(zip(batch, self._read(list(batch.values())), strict=True))
                    done += sum(map(len, batch.values()))
                    if screen.is_due():
                        screen.read(done, time.monotonic() - begin)
                    if time.monotonic() - saved > SAVE_SECONDS:
                        self._save(unsaved)
                        unsaved, saved = {}, time.monotonic()
            finally:
                self._save(unsaved)
                screen.stop()
            took = time.monotonic() - begin
            speed = f"{format_count(done / max(took, 1e-9))} tokens/s"
            screen.say(f"read in {format_duration(took)}, {speed}; kept in {self.folder.parent}")
        return [self.known[key] for key in keys]

    @torch.inference_mode()
    def _read(self, rows: Sequence[Sequence[int]]) -> list[Tensor]:
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).to(self.device)
        batch = pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id).to(self.device)
        with autocast(self.device, self.precision):
            return [values.float().cpu() for values in self.read(batch, mask)]

    def _save(self, read: dict[bytes, Tensor]) -> None:
        """Add what is read to what is known, and write it as a file of its own, which appears whole."""
        if not read:
            return
        self.known |= read
        rows = torch.tensor([list(key) for key in read], dtype=torch.uint8)
        counts = torch.tensor([len(values) for values in read.values()])
        path = self.folder / f"{hashlib.sha256(rows.numpy().tobytes()).hexdigest()[:32]}.safetensors"
        with atomic_path(path) as half:
            save_file({"rows": rows, "counts": counts, "values": torch.cat(list(read.values()))}, half)


def pooled_states(
    model: LinformerForSequenceClassification, pad_token_id: int, device: str, precision: str
) -> KeptReading:
    """The pooled state of rows, ``(1, C)`` of each, of a classifier in eval mode, whatever its head."""

    def read(input_ids: Tensor, attention_mask: Tensor) -> Sequence[Tensor]:
        hidden = model.linformer(input_ids, attention_mask=attention_mask).last_hidden_state
        return torch.split(model.pooler(hidden.float(), attention_mask), 1)

    parts = nn.ModuleList([model.linformer, model.pooler])
    options = model.config.read_window, model.config.pooling
    return KeptReading(parts, options, read, device, precision, pad_token_id)


def windows_of_rows(model: nn.Module, pieces: PieceVectors, device: str, precision: str) -> KeptReading:
    """The :meth:`~torch_linformer.models.pieces.PieceVectors.windows` of rows."""

    def read(input_ids: Tensor, attention_mask: Tensor) -> Sequence[Tensor]:
        return pieces.windows(model.eval(), input_ids, attention_mask)

    return KeptReading(model, (pieces.window, pieces.before, pieces.after), read, device, precision)


def _batches(rows: dict[bytes, Sequence[int]]) -> Iterator[dict[bytes, Sequence[int]]]:
    """Rows of similar lengths, ``AT_ONCE`` tokens of them, out of neighbors that have ``TOGETHER``."""
    ends = np.cumsum([len(row) for row in rows.values()]) // TOGETHER
    for _, part in groupby(zip(ends.tolist(), rows.items(), strict=True), key=itemgetter(0)):
        order = sorted((row for _, row in part), key=lambda row: -len(row[1]))
        while order:
            size = max(1, AT_ONCE // max(1, len(order[0][1])))
            yield dict(order[:size])
            order = order[size:]
