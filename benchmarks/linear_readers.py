"""How near is one linear pass over a long text to the mean of the windows that an embedder would read one by one?

    python benchmarks/linear_readers.py --data novels.parquet,meetings.parquet,stdlib --output readers
    python benchmarks/linear_readers.py --data novels.parquet,stdlib --train 500 --output learning
    linformer adapt minilm --slots-only --data learning/texts.parquet --max-length 8192 --minutes 30 --output slots
    python benchmarks/linear_readers.py --data meetings.parquet --models slots --output readers

Each file has a column ``text`` and is a kind of text; ``stdlib`` is Python's own source. Passages of exactly so many
tokens are cut out of the second half of each file's texts, so that ``--train``, which writes passages of 1,024 to 8,192
tokens of the first half to ``texts.parquet`` and does nothing else, shares no text with them. What the original makes
of windows of the tokens that it is used with, one after the other, averaged over their tokens, is what every row is
compared with: the cosine, the cosine after the mean over all passages is taken off, and the share of the ten nearest
passages that stay, all kinds together. Beside it stand linear copies that were never trained, the window alone among
them, and the folders of ``--models``. results.md has the table, with tokens a second of one process's CPU time.
"""

import itertools
import random
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
import torch
import typer
from torch import Tensor
from torch.nn import functional as F
from transformers import AutoModel

import torch_linformer
from learning import write_results
from torch_linformer.adaptation.objectives import embedding_scores
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.cli.options import positive_numbers
from torch_linformer.opening.devices import autocast, resolve_precision
from torch_linformer.reporting.report import markdown_table

CHARACTERS = 10  # of a token at most, on average, in any kind of text
AT_ONCE = 16_384  # tokens
LEARNED = (1024, 2048, 4096, 8192)  # tokens of the passages that slots are trained on
NONE = -1  # where there is no token


def texts_of(kind: str) -> list[str]:
    """The texts of a file, shuffled."""
    if kind == "stdlib":
        files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
        texts = [path.read_text("utf-8", "ignore") for path in files if "site-packages" not in path.parts]
    else:
        texts = pd.read_parquet(kind).text.tolist()
    random.Random(0).shuffle(texts)
    return texts


def passages(texts: list[str], tokenizer: Any, length: int, number: int) -> Iterator[list[int]]:
    """Passages of ``length`` tokens, special ones included, a text in turn; short texts are joined to what follows."""
    draw, joined = random.Random(length), itertools.cycle(texts)
    for _ in range(number):
        ids: list[int] = []
        while len(ids) < length - 2:
            text = next(joined)
            start = draw.randrange(max(1, len(text) - CHARACTERS * length))
            ids += tokenizer(text[start : start + CHARACTERS * length], add_special_tokens=False)["input_ids"]
        yield [tokenizer.cls_token_id, *ids[: length - 2], tokenizer.sep_token_id]


@torch.no_grad()
def vectors(model: Any, ids: Tensor, precision: str, window: int | None = None) -> tuple[Tensor, float]:
    """Means of the last hidden states of passages, of length 1, and the seconds of CPU time that they took.

    With ``window`` a passage is read as windows of that many tokens, and the mean is that over the tokens of all.
    """
    means, began = [], time.process_time()
    for part in ids.split(max(1, AT_ONCE // ids.shape[1])):
        rows = part[:, None] if window is None else windows_of(part, window)
        mask = (rows != NONE).long()
        with autocast("cpu", precision):
            read = model(input_ids=rows.clamp(min=0).flatten(0, 1), attention_mask=mask.flatten(0, 1))
        states = read.last_hidden_state.float().unflatten(0, rows.shape[:2])
        means.append(F.normalize((states * mask.unsqueeze(-1)).sum(dim=(1, 2)), dim=-1))
    return torch.cat(means), time.process_time() - began


def windows_of(ids: Tensor, window: int) -> Tensor:
    """The windows ``(B, W, L)`` of passages, with the special tokens around each, and ``NONE`` after the last."""
    room = window - 2
    text = F.pad(ids[:, 1:-1], (0, -(ids.shape[1] - 2) % room), value=NONE).unflatten(1, (-1, room))
    first, last = (mark[:, None, None].expand(-1, text.shape[1], 1) for mark in (ids[:, 0], ids[:, -1]))
    rows = torch.cat([first, text, torch.full_like(last, NONE)], dim=2)
    return rows.scatter(2, (rows != NONE).sum(dim=2, keepdim=True), last)


def main(
    data: Annotated[str, typer.Option(help="parquet files with a column text, or stdlib, comma-separated")],
    output: Annotated[Path, typer.Option(help="folder of texts.parquet, or of results.md")],
    train: Annotated[int | None, typer.Option(help="only write so many passages to learn from")] = None,
    models: Annotated[str, typer.Option(help="linear folders to score, comma-separated")] = "",
    source: Annotated[str, typer.Option(help="the original")] = "minilm",
    lengths: Annotated[str, typer.Option(help="tokens of a passage, comma-separated")] = "512,1024,2048,4096,8192",
    number: Annotated[int, typer.Option(help="passages of each kind and length")] = 16,
) -> None:
    output.mkdir(parents=True, exist_ok=True)
    original = load_encoder(source)
    kinds, tokenizer = data.split(","), original.tokenizer
    tokenizer.model_max_length = 1 << 30  # passages are cut here
    if train is not None:
        share, texts = train // (len(kinds) * len(LEARNED)), list[str]()
        for kind in kinds:
            known = texts_of(kind)
            for length in LEARNED:
                rows = passages(known[: len(known) // 2], tokenizer, length, share)
                texts += [tokenizer.decode(ids, skip_special_tokens=True) for ids in rows]
        pd.DataFrame({"text": texts}).to_parquet(output / "texts.parquet")
        return
    precision, usual = resolve_precision("auto", "cpu"), original.usual_length
    halves = {kind: (texts := texts_of(kind))[len(texts) // 2 :] for kind in kinds}
    adapted = {Path(model).name: AutoModel.from_pretrained(model) for model in models.split(",") if model}
    table = list[list[object]]()
    for length in positive_numbers("--lengths", lengths):
        ids = torch.tensor([row for texts in halves.values() for row in passages(texts, tokenizer, length, number)])
        made = {"slots, untrained": None, "window alone, untrained": 0}
        readers = {
            name: torch_linformer.linearize(original.model, k, max_length=length, usual_length=usual).eval()
            for name, k in made.items()
        }
        wanted, seconds = vectors(original.model.eval(), ids, precision, window=usual)
        table.append([length, f"windows of {usual}", *[1.0] * (len(kinds) + 2), ids.numel() / seconds])
        for name, model in {**readers, **adapted}.items():
            ours, seconds = vectors(model.eval(), ids, precision)
            center = wanted.mean(dim=0)
            centered = F.cosine_similarity(ours - center, wanted - center).mean().item()
            kept = embedding_scores(ours, wanted)["neighbours"]
            cosines = (ours * wanted).sum(dim=-1).unflatten(0, (len(kinds), number)).mean(dim=1).tolist()
            table.append([length, name, *cosines, centered, kept, ids.numel() / seconds])
        columns = ["tokens", "read by", *(Path(kind).stem for kind in kinds), "centered", "ten nearest", "tokens/s"]
        shown = [[f"{x:.4f}" if isinstance(x, float) and x < 2 else x for x in row] for row in table]
        note = f"Cosine by kind of text ({number} passages each), and over all; {source}, {precision}."
        write_results(output, [note, markdown_table(columns, shown)], "cpu")


if __name__ == "__main__":
    typer.run(main)
