"""A rotary encoder, from its pretraining to one that is linear and reads eight times as much.

    python benchmarks/rotary.py pretrain --data novels.parquet --output rotary --minutes 30
    linformer adapt rotary/original --data rotary/passages.parquet --task mlm --max-length 4096 --k 256 --window 128 \\
        --batch-size 4 --minutes 24 --output rotary/linear
    python benchmarks/rotary.py score --data novels.parquet --output rotary

A small ModernBERT (4 layers, width 256, the first and the last attend to all positions) learns masked words of novels
at 512 tokens. Scored are the last novels, which neither training has read: the same masked words of the same passages
of 4,096 tokens, read whole and as eight pieces of 512.
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from torch.nn import functional as F
from transformers import ModernBertConfig, ModernBertForMaskedLM, PreTrainedTokenizerFast

from runner.results import git_commit
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.encoders.heads import predicts_at
from torch_linformer.encoders.linearize import with_options
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.opening.devices import autocast, resolve_precision
from torch_linformer.opening.load import load_model
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.report import markdown_table

SHORT, LONG = 512, 4096  # tokens, special ones among them
WORDS = 1024  # of the tokenizer
MASKED = 0.3  # of the tokens
HELD_OUT = 5  # novels, the last ones
PASSAGE = 12_000  # characters, about 4,096 tokens
ROWS, PEAK_RATE, WARM_UP = 4, 1e-3, 0.05
SCORED = 40  # passages

app = typer.Typer()
Data = Annotated[Path, typer.Option(help="table with a column text")]
Output = Annotated[Path, typer.Option(help="folder")]


@app.command()
def pretrain(data: Data, output: Output, minutes: float = 30.0, seed: int = 0) -> None:
    """Train the original."""
    texts = pd.read_parquet(data)["text"].tolist()[:-HELD_OUT]
    torch.manual_seed(seed)
    tokenizer = build_tokenizer(f"bpe:{WORDS}", (text[:200_000] for text in texts), max_length=SHORT)
    passages = [text[at : at + PASSAGE] for text in texts for at in range(0, len(text) - PASSAGE, PASSAGE)]
    drawn = np.random.default_rng(seed).permutation(len(passages))[:3000]
    output.mkdir(parents=True)
    pd.DataFrame({"text": [passages[number] for number in drawn]}).to_parquet(output / "passages.parquet")
    ids = [np.asarray(tokenizer(text, add_special_tokens=False).input_ids, dtype=np.int16) for text in texts[:40]]
    tokens = torch.from_numpy(np.concatenate(ids)).long()
    model = ModernBertForMaskedLM(_config(tokenizer)).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, weight_decay=0.01)
    precision = resolve_precision("auto", "cpu")
    begin, step = time.monotonic(), 0
    while (done := (time.monotonic() - begin) / (60 * minutes)) < 1:
        for group in optimizer.param_groups:
            group["lr"] = PEAK_RATE * min(1.0, (done + 1e-3) / WARM_UP) * (1 - done)
        starts = torch.randint(len(tokens) - SHORT, (ROWS,))
        rows = torch.stack([_with_ends(tokens[at : at + SHORT - 2], tokenizer) for at in starts.tolist()])
        with autocast("cpu", precision):
            loss = _loss(model, *_masked(rows, tokenizer)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        step += 1
        if step % 50 == 0:
            print(f"step {step}: {loss.item():.3f} nats, {done:.0%} of the time", flush=True)
    model.save_pretrained(output / "original")
    tokenizer.save_pretrained(output / "original")


@app.command()
@torch.no_grad()
def score(data: Data, output: Output) -> None:
    """Compare the original and the linear model on the novels held out."""
    original = ModernBertForMaskedLM.from_pretrained(output / "original").eval()
    linear: Any = load_model(str(output / "linear")).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(output / "original")
    options = linear.config.linear_options
    alone = with_options(linear, replace(options, k=0)).eval()
    exact = with_options(linear, replace(options, exact_below=SHORT)).eval()
    models = {"original": original, "linear": linear, "linear, 512 tokens exactly": exact, "its window alone": alone}
    losses: dict[str, dict[int, list[float]]] = {name: {SHORT: [], LONG: []} for name in models}
    torch.manual_seed(0)
    for body in _passages(data, tokenizer):
        masked, labels = _masked(body[None], tokenizer)
        for length in (SHORT, LONG):
            rows, wanted = (_rows(x[0], length, tokenizer) for x in (masked, labels))
            for name, model in models.items():
                losses[name][length] += _loss(model, rows, wanted).tolist()
    table = [
        (name, *(f"{np.mean(by_length[length]):.3f}" for length in (SHORT, LONG))) for name, by_length in losses.items()
    ]
    columns = ("nats a masked word", f"pieces of {SHORT}", f"whole, {LONG:,} tokens")
    text = markdown_table(columns, table)
    print(text)
    write_text(output / "results.md", text)
    facts = {"machine": machine_facts("cpu"), "commit": git_commit(__file__), "words": len(losses["original"][SHORT])}
    write_json(output / "results.json", {"nats": {name: row for name, *row in table}, **facts})


def _config(tokenizer: PreTrainedTokenizerFast) -> ModernBertConfig:
    ids = {"pad": tokenizer.pad_token_id, "cls": tokenizer.cls_token_id, "sep": tokenizer.sep_token_id}
    return ModernBertConfig(
        vocab_size=len(tokenizer),
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=4,
        num_attention_heads=4,
        global_attn_every_n_layers=3,
        local_attention=128,
        max_position_embeddings=SHORT,
        pad_token_id=ids["pad"],
        bos_token_id=ids["cls"],
        eos_token_id=ids["sep"],
        cls_token_id=ids["cls"],
        sep_token_id=ids["sep"],
    )


def _with_ends(tokens: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    return F.pad(F.pad(tokens, (1, 0), value=tokenizer.cls_token_id), (0, 1), value=tokenizer.sep_token_id)


def _masked(rows: torch.Tensor, tokenizer: PreTrainedTokenizerFast) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows with masked words, and these as labels, −100 elsewhere."""
    special = (rows == tokenizer.cls_token_id) | (rows == tokenizer.sep_token_id)
    chosen = (torch.rand(rows.shape) < MASKED) & ~special
    return rows.masked_fill(chosen, tokenizer.mask_token_id), rows.masked_fill(~chosen, -100)


def _loss(model: Any, rows: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    chosen = labels != -100
    with predicts_at(model, chosen):
        logits = model(input_ids=rows, attention_mask=torch.ones_like(rows)).logits[0]
    return F.cross_entropy(logits, labels[chosen], reduction="none")


def _passages(data: Path, tokenizer: PreTrainedTokenizerFast) -> list[torch.Tensor]:
    """Tokens of passages of the novels held out, as many as eight short rows have without their ends."""
    length, bodies = LONG // SHORT * (SHORT - 2), []
    for text in pd.read_parquet(data)["text"].tolist()[-HELD_OUT:]:
        tokens = torch.tensor(tokenizer(text, add_special_tokens=False).input_ids)
        bodies += list(tokens.split(length))[: SCORED // HELD_OUT]
    return bodies


def _rows(body: torch.Tensor, length: int, tokenizer: PreTrainedTokenizerFast) -> torch.Tensor:
    """Passages as rows with both ends; what is no token is no label either."""
    is_label = bool((body == -100).any())
    parts = body.split(SHORT - 2) if length == SHORT else (body,)
    if is_label:
        return torch.stack([F.pad(part, (1, 1), value=-100) for part in parts])
    return torch.stack([_with_ends(part, tokenizer) for part in parts])


if __name__ == "__main__":
    app()
