"""What an encoder makes of rows, read once and kept for other runs that read the same rows by the same encoder."""

import hashlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import datasets
import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import format_count, format_duration
from torch_linformer.training.training_screen import TrainingScreen

TOKENS_AT_ONCE = 16_384  # of a batch, padding included
TOKENS_TOGETHER = 2**18  # of rows that are read in batches of similar lengths, between two looks at the clock
SAVE_SECONDS = 60.0  # between two files of what is read


class KeptStates:
    """Pooled states of rows of token ids, in a folder of the cache of datasets.

    Args:
        model: a classifier, whose encoder and pooler make them.
        pad_token_id: of a batch.
        device: where it computes, and
        precision: in what.
    """

    def __init__(
        self, model: LinformerForSequenceClassification, pad_token_id: int, device: str, precision: str
    ) -> None:
        self.model, self.pad_token_id, self.device, self.precision = model, pad_token_id, device, precision
        digest = hashlib.sha256(f"{precision} {device} {model.config.read_window} {model.config.pooling}".encode())
        for part in (model.linformer, model.pooler):
            for name, tensor in sorted(part.state_dict().items()):
                digest.update(name.encode())
                digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
        self.folder = Path(datasets.config.HF_DATASETS_CACHE) / "torch_linformer_states" / digest.hexdigest()[:32]
        self.known: dict[bytes, np.ndarray] = {}
        for path in sorted(self.folder.glob("*.safetensors")):
            try:
                read = load_file(path)
            except (OSError, SafetensorError):  # cut short: it is read again
                continue
            self.known.update(zip(map(bytes, read["rows"]), read["states"], strict=True))

    def of(self, rows: Sequence[Sequence[int]], screen: TrainingScreen, seconds: float = float("inf")) -> np.ndarray:
        """The states of rows, ``(rows, C)``: of all, or of the first of them for which so many seconds are enough."""
        keys = [hashlib.sha256(np.asarray(row, dtype=np.int64).tobytes()).digest()[:16] for row in rows]
        new = [number for number, key in enumerate(keys) if key not in self.known]
        begin, total, done = time.monotonic(), sum(len(rows[number]) for number in new), 0
        unsaved: dict[bytes, np.ndarray] = {}
        if new:
            kept = f", {format_count(len(rows) - len(new))} are known" if len(new) < len(rows) else ""
            screen.say(f"reading {format_count(len(new))} documents of {format_count(total)} tokens{kept}")
            screen.start(0, max(1, total), "reading")
        end = len(rows)
        try:
            saved = begin
            for part in _parts(rows, new):
                if time.monotonic() - begin > seconds:
                    end = part[0]
                    break
                for batch in _batches(rows, part):
                    for number, state in zip(batch, self._read([rows[number] for number in batch]), strict=True):
                        unsaved[keys[number]] = state
                    done += sum(len(rows[number]) for number in batch)
                    if screen.is_due():
                        screen.read(done, time.monotonic() - begin)
                if time.monotonic() - saved > SAVE_SECONDS:
                    self._save(unsaved)
                    unsaved, saved = {}, time.monotonic()
        finally:
            self._save(unsaved)
            screen.stop()
        if new:
            took = format_duration(time.monotonic() - begin)
            screen.say(f"read {format_count(done)} tokens in {took}; they are kept in {self.folder.parent}")
        width = self.model.pooler.out_features
        return np.stack([self.known[key] for key in keys[:end]]) if end else np.zeros((0, width), dtype=np.float32)

    @torch.inference_mode()
    def _read(self, rows: list[Sequence[int]]) -> np.ndarray:
        ids = [torch.tensor(row, dtype=torch.long) for row in rows]
        mask = pad_sequence([torch.ones_like(row) for row in ids], batch_first=True)
        batch = pad_sequence(ids, batch_first=True, padding_value=self.pad_token_id)
        batch, mask = batch.to(self.device), mask.to(self.device)
        with autocast(self.device, self.precision):
            hidden = self.model.linformer(batch, attention_mask=mask).last_hidden_state
            return np.asarray(self.model.pooler(hidden.float(), mask).float().cpu())

    def _save(self, states: dict[bytes, np.ndarray]) -> None:
        """Add states to those that are known, and write them as a file of their own, which appears whole."""
        if not states:
            return
        self.known |= states
        self.folder.mkdir(parents=True, exist_ok=True)
        rows = np.stack([np.frombuffer(key, dtype=np.uint8) for key in states])
        path = self.folder / f"{hashlib.sha256(rows.tobytes()).hexdigest()[:32]}.safetensors"
        half = path.with_suffix(".tmp")
        save_file({"rows": rows, "states": np.stack(list(states.values()))}, half)
        half.replace(path)


def _parts(rows: Sequence[Sequence[int]], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Rows in their order, of so many tokens together."""
    part: list[int] = []
    tokens = 0
    for number in numbers:
        part.append(number)
        tokens += len(rows[number])
        if tokens >= TOKENS_TOGETHER:
            yield part
            part, tokens = [], 0
    if part:
        yield part


def _batches(rows: Sequence[Sequence[int]], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Rows of similar lengths, those of one batch of so many tokens, padding included."""
    order = sorted(numbers, key=lambda number: -len(rows[number]))
    while order:
        size = max(1, TOKENS_AT_ONCE // max(1, len(rows[order[0]])))
        yield order[:size]
        order = order[size:]
