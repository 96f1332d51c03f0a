"""Encoders of transformers made linear, beside themselves with full attention (SDPA): the time of a forward pass.

    python benchmarks/linear_encoders.py --output linear-encoders
    python benchmarks/linear_encoders.py --encoders BERT,MiniLM --lengths 512,1024,2048 --exact-below 0

Base size (width 768, 12 heads) or MiniLM's (384, 12 heads), two layers, random weights; ModernBERT's second layer is
local in both, so that of its two one attends to all positions. Both are timed in turn; a ratio is the median of those
of neighboring passes.
"""

import statistics
import time
from pathlib import Path
from typing import Annotated, Any

import torch
import transformers
import typer

from runner.results import git_commit
from torch_linformer.encoders import linearize
from torch_linformer.measuring.machine import machine_facts
from torch_linformer.reporting.files import write_json, write_text
from torch_linformer.reporting.report import markdown_table

SIZE = {"hidden_size": 768, "num_hidden_layers": 2, "num_attention_heads": 12, "vocab_size": 1000}
ENCODERS = {
    "XLM-R": ("XLMRobertaModel", {"intermediate_size": 3072, "pad_token_id": 1}),
    "Nomic-BERT": ("NomicBertModel", {"intermediate_size": 3072}),
    "ModernBERT": ("ModernBertModel", {"intermediate_size": 1152, "pad_token_id": 0}),
    "BERT": ("BertModel", {"intermediate_size": 3072}),
    "MiniLM": ("BertModel", {"hidden_size": 384, "intermediate_size": 1536}),
}
TOKENS = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")


def build(name: str, longest: int) -> Any:
    """A model of random weights that reads this many tokens."""
    kind, sizes = ENCODERS[name]
    model_class: Any = getattr(transformers, kind)
    longest += sizes["pad_token_id"] + 1 if name == "XLM-R" else 0
    tokens = dict.fromkeys(TOKENS, 2) if name == "ModernBERT" else {}
    config = model_class.config_class(**{**SIZE, **sizes}, **tokens, max_position_embeddings=longest)
    torch.manual_seed(0)
    return model_class(config).eval()


def seconds_of(model: Any, ids: torch.Tensor, precision: torch.dtype) -> float:
    """The time of one forward pass."""
    begin = time.perf_counter()
    with torch.inference_mode(), torch.autocast("cpu", precision, enabled=precision != torch.float32):
        model(ids)
    return time.perf_counter() - begin


def main(
    lengths: Annotated[str, typer.Option(help="tokens, comma between")] = "512,8192",
    encoders: Annotated[str, typer.Option(help="names, comma between")] = "XLM-R,Nomic-BERT,ModernBERT",
    precisions: Annotated[str, typer.Option(help="names of dtypes, comma between")] = "float32,bfloat16",
    k: int = 256,
    window: int = 128,
    exact_below: Annotated[int | None, typer.Option(help="[the default]")] = None,
    pairs: Annotated[int, typer.Option(help="of passes")] = 7,
    output: Annotated[Path | None, typer.Option(help="folder for results.md and results.json")] = None,
) -> None:
    """Time them."""
    sizes = [int(length) for length in lengths.split(",")]
    chosen: dict[str, Any] = {} if exact_below is None else {"exact_below": exact_below}
    rows = []
    for name in encoders.split(","):
        full = build(name, max(sizes))
        linear = linearize(full, min(k, max(sizes)), window, **chosen)
        for length in sizes:
            ids = torch.randint(5, SIZE["vocab_size"], (1, length))
            for precision in (getattr(torch, kind) for kind in precisions.split(",")):
                for model in (full, linear):  # the first pass of each prepares
                    seconds_of(model, ids, precision)
                times = [[seconds_of(model, ids, precision) for model in (full, linear)] for _ in range(pairs)]
                ratio = statistics.median(one / other for one, other in times)
                medians = [statistics.median(column) for column in zip(*times, strict=True)]
                rows.append(
                    (
                        name,
                        length,
                        str(precision).removeprefix("torch."),
                        *(f"{x:.3f}" for x in medians),
                        f"{ratio:.2f}",
                    )
                )
                print(*rows[-1], flush=True)
    if output is not None:
        output.mkdir(parents=True, exist_ok=True)
        columns = ("encoder", "tokens", "dtype", "full, s", "linear, s", "times as fast")
        write_text(output / "results.md", markdown_table(columns, rows))
        facts = {"machine": machine_facts("cpu"), "commit": git_commit(__file__), "k": k, "window": window}
        write_json(output / "results.json", {"rows": rows, "pairs": pairs, **facts})


if __name__ == "__main__":
    typer.run(main)
