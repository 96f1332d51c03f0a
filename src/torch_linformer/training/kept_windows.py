"""What an encoder makes of windows of texts, kept for the next run: reading takes minutes, all that follows seconds."""

import hashlib
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening.devices import autocast
from torch_linformer.reporting.tables import format_count, format_duration
from torch_linformer.training.training_screen import TrainingScreen

AT_ONCE = 16_384  # tokens
FOLDER = "torch_linformer"  # in the cache of `datasets`


def windows_of_rows(
    model: nn.Module,
    pieces: PieceVectors,
    rows: Sequence[Sequence[int]],
    device: str,
    precision: str,
    screen: TrainingScreen,
) -> list[Tensor]:
    """The :meth:`PieceVectors.windows` of rows of token ids; from a file where the same texts were read before.

    The file is known by the weights, the windows, the precision and the rows, in whichever order.
    """
    encoded = [torch.tensor(row, dtype=torch.int32).numpy().tobytes() for row in rows]
    distinct = sorted(set(encoded))
    name = _digest(model, (pieces.window, pieces.before, pieces.after, device, precision), distinct)
    path = Path(datasets.config.HF_DATASETS_CACHE) / FOLDER / f"{name}.safetensors"
    kept = _opened(path)
    if kept is None:
        lengths = [len(row) // 4 for row in distinct]
        tokens, order = sum(lengths), sorted(range(len(distinct)), key=lambda number: -lengths[number])
        screen.say(f"reading {format_count(tokens)} tokens, {pieces.window} at once; they are kept in {path.parent}")
        read: list[Tensor] = [torch.empty(0)] * len(distinct)
        begin, done = time.monotonic(), 0
        screen.start(0, tokens, "reading")
        try:
            while order:
                together = [order.pop(0)]
                while order and (len(together) + 1) * lengths[together[0]] <= AT_ONCE:
                    together.append(order.pop(0))
                for number, windows in zip(
                    together, _read(model, pieces, [distinct[i] for i in together], device, precision), strict=True
                ):
                    read[number] = windows
                done += sum(lengths[number] for number in together)
                if screen.is_due():
                    screen.read(done, time.monotonic() - begin)
        finally:
            screen.stop()
        took = time.monotonic() - begin
        screen.say(f"read in {format_duration(took)}, {format_count(tokens / max(took, 1e-9))} tokens/s")
        kept = {"windows": torch.cat(read), "counts": torch.tensor([len(windows) for windows in read])}
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_suffix(f".{os.getpid()}")
        save_file(kept, temporary)
        temporary.replace(path)
    by_row = dict(zip(distinct, torch.split(kept["windows"], kept["counts"].tolist()), strict=True))
    return [by_row[row] for row in encoded]


@torch.inference_mode()
def _read(model: nn.Module, pieces: PieceVectors, rows: Sequence[bytes], device: str, precision: str) -> list[Tensor]:
    ids = [torch.frombuffer(bytearray(row), dtype=torch.int32).long() for row in rows]
    padded = torch.nn.utils.rnn.pad_sequence(ids, batch_first=True).to(device)
    mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in ids], batch_first=True).to(device)
    with autocast(device, precision):
        return [windows.cpu() for windows in pieces.windows(model.eval(), padded, mask)]


def _digest(model: nn.Module, options: Any, rows: Sequence[bytes]) -> str:
    digest = hashlib.sha256(repr(options).encode())
    for name, weight in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(weight.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    for row in rows:
        digest.update(len(row).to_bytes(8, "big"))
        digest.update(row)
    return digest.hexdigest()[:32]


def _opened(path: Path) -> dict[str, Tensor] | None:
    """What is kept; None where nothing is, or a damaged file, which is then made anew."""
    try:
        return load_file(path)
    except (OSError, SafetensorError):
        return None
