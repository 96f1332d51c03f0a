"""Which of 70 meetings was a question asked about? One vector a meeting, by the tokens that it is made of.

    python benchmarks/meetings.py --data folder --output meetings
    linformer adapt all-MiniLM-L6-v2 --data meetings/texts.parquet --test meetings/held_out_texts.parquet \\
        --max-length 16384 --output adapted ...
    linformer train --task embed --from adapted --data meetings/known.parquet --documents meetings/documents.parquet \\
        --test meetings/held_out.parquet --output trained ...
    python benchmarks/meetings.py --data folder --output meetings --models adapted,trained

The folder holds ``qmsum_meetings.parquet`` (meeting, split, text) and ``qmsum_queries.parquet`` (query, meeting, split,
kind) of QMSum (Zhong et al. 2021). Only specific questions are asked: those of its part for training to learn from, and
those of the other two, about their 70 meetings, held out. The first call writes the files that the commands between
read; the last one scores each model with documents cut at each of ``--lengths``, and what a model must beat: TF-IDF,
BM25, and the original embedder's first 512 tokens, mean of chunks, and best chunk. results.md and results.json have
all of it.
"""

import re
import tempfile
import time
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer
from datasets import Dataset

from learning import write_results
from torch_linformer.cli.options import positive_numbers
from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.opening.model_folder import load_model, load_tokenizer, reader_config
from torch_linformer.opening.sentence_transformers import document_vectors
from torch_linformer.reporting.files import write_json
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.baselines import BASELINES
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.training.encoder_baselines import CHUNK, embedder_baselines
from torch_linformer.training.task_trainers import trainer_for
from torch_linformer.training.trainer import quiet_arguments

KINDS = {"product": "ES|IS|TS", "academic": "B", "committee": ""}  # how the names of their meetings begin


def main(
    data: Annotated[Path, typer.Option(help="folder of QMSum's tables")],
    output: Annotated[Path, typer.Option(help="folder for tables and results")],
    models: Annotated[str, typer.Option(help="folders of models, comma-separated")] = "",
    lengths: Annotated[str, typer.Option(help="tokens read of a meeting")] = "512,2048,8192,16384",
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Write the tables to learn from, and score models on the questions held out."""
    output.mkdir(parents=True, exist_ok=True)
    write_tables(data, output)
    if not models:
        return
    folders, device = models.split(","), resolve_device(device)
    precision = resolve_precision("auto", device)
    named = DataOptions(document_column="meeting")
    documents = Retrieval.load(str(output / "held_out.parquet"), str(output / "documents.parquet"), named).dataset
    kinds = kinds_of(documents, pd.read_parquet(output / "documents.parquet"))
    first = Retrieval(load_tokenizer(folders[0]))
    baselines = first.baselines(documents, documents, documents, 0) | embedder_baselines(
        folders[0], documents, device, precision
    )
    chunks = first.encoder(CHUNK, overflow="windows", stride=0)(documents["text"][:])["document"]
    vectors = {"beginning_vector": 1.0, "chunk_mean": 1.0, "best_chunk": len(chunks) / len(documents)}
    rows = [
        {"method": BASELINES[name], **scores_of(found, kinds), "vectors": vectors.get(name)}
        for name, found in baselines.items()
    ]
    for folder in folders:
        for length in positive_numbers("--lengths", lengths):
            rows.append(read_and_score(folder, length, documents, kinds, device, precision))
            report(rows, output, device)


def write_tables(data: Path, output: Path) -> None:
    """The tables that the commands read."""
    meetings = pd.read_parquet(data / "qmsum_meetings.parquet")
    queries = pd.read_parquet(data / "qmsum_queries.parquet").query("kind == 'specific'")
    known = queries.split == "train"
    meetings[["meeting", "text"]].to_parquet(output / "documents.parquet")
    learned = meetings.split == "train"
    meetings[learned][["text"]].to_parquet(output / "texts.parquet")
    meetings[~learned][["text"]].to_parquet(output / "held_out_texts.parquet")
    queries[known][["query", "meeting"]].to_parquet(output / "known.parquet")
    queries[~known][["query", "meeting"]].to_parquet(output / "held_out.parquet")


def kinds_of(documents: Dataset, meetings: pd.DataFrame) -> np.ndarray:
    """The kind of meeting that each question is about."""
    names = dict(zip(meetings.text, meetings.meeting, strict=True))
    kinds = [next(kind for kind, begin in KINDS.items() if re.match(begin, names[text])) for text in documents["text"]]
    return np.repeat(kinds, [len(queries) for queries in documents["queries"]])


def scores_of(found: dict[str, Any], kinds: np.ndarray) -> dict[str, float]:
    """nDCG of all questions, of those about each kind of meeting, and recall."""
    each = np.asarray(found["tallies"]["ndcg_at_10"])[:, 0]
    return {
        "ndcg_at_10": found["ndcg_at_10"],
        **{kind: float(each[kinds == kind].mean()) for kind in KINDS if (kinds == kind).any()},
        "recall_at_10": found["recall_at_10"],
    }


def read_and_score(
    folder: str, length: int, documents: Dataset, kinds: np.ndarray, device: str, precision: str
) -> dict[str, Any]:
    """Scores of a model with documents cut at a length, and the seconds that a document takes."""
    model = load_model(folder)
    length = min(length, reader_config(model.config).max_position_embeddings)
    task = task_of(model, load_tokenizer(folder))
    if isinstance(task, Retrieval):
        task.vectors = document_vectors(folder, model.config).to(device)
    with tempfile.TemporaryDirectory() as scratch:
        arguments = quiet_arguments(Path(scratch), batch_size=4, device=device, precision=precision)
        trainer = trainer_for(task, model)(model=model, args=arguments, task=task)
        examples = task.examples(documents, task.encoder(length))
        begin = time.perf_counter()
        found = trainer.scores_of(examples)
        seconds = (time.perf_counter() - begin) / len(documents)
    return {
        "method": f"{Path(folder).name}, {length:,} tokens",
        **scores_of(found, kinds),
        "seconds": seconds,
        "vectors": 1.0,
    }


def report(rows: list[dict[str, Any]], output: Path, device: str) -> None:
    """All that was found, as a table and as JSON."""
    columns = ("", "nDCG@10", *KINDS, "recall@10", "s a meeting", "vectors a meeting")
    cells = [
        (
            row["method"],
            *(f"{row[name]:.3f}" if name in row else None for name in ("ndcg_at_10", *KINDS, "recall_at_10")),
            f"{row['seconds']:.2f}" if "seconds" in row else None,
            f"{row['vectors']:.0f}" if row["vectors"] else None,
        )
        for row in rows
    ]
    write_results(output, [markdown_table(columns, cells)], device)
    write_json(output / "results.json", rows)


if __name__ == "__main__":
    typer.run(main)
