"""Which of 70 meetings was a question asked about? By one vector a meeting, or a few, and the tokens they are made of.

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
BM25, the original embedder's first 512 tokens, mean of chunks, and best chunk, and the ranks of BM25 and of each of
these together. results.md and results.json have all of it.

``--collection novels`` asks for passages of novels instead (``novels.parquet``: text, title), by sentences that were
taken out of them.
"""

import random
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
from torch_linformer.opening.load import load_model, load_tokenizer, reader_config
from torch_linformer.opening.sentence_transformers import document_vectors
from torch_linformer.reporting.files import write_json
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.baselines import BASELINES
from torch_linformer.tasks.registry import task_of
from torch_linformer.tasks.retrieval import Retrieval, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import (
    Similarities,
    bm25_similarities,
    retrieval_metrics,
    tfidf_similarities,
)
from torch_linformer.training.encoder_baselines import CHUNK, embedder_vectors
from torch_linformer.training.task_trainers import trainer_for
from torch_linformer.training.trainer import quiet_arguments

COLLECTIONS = ("meetings", "novels")
PASSAGE, PASSAGES = 45_000, 2  # characters, about 10,000 tokens, and how many of a novel
SENTENCES = 7  # that ask for a passage
SENTENCE = r"(?<=[.!?] )[A-Z][^.!?\"“”]{120,240}[.!?](?=\s)"
JOINED = "_with_bm25"
RANK = 60  # what a rank is added to where two rankings are joined (Cormack et al. 2009)
KINDS = {"product": "ES|IS|TS", "academic": "B", "committee": ""}  # how the names of their meetings begin


def main(
    data: Annotated[Path, typer.Option(help="folder of QMSum's tables")],
    output: Annotated[Path, typer.Option(help="folder for tables and results")],
    models: Annotated[str, typer.Option(help="folders of models, comma-separated")] = "",
    lengths: Annotated[str, typer.Option(help="tokens read of a meeting")] = "512,2048,8192,16384",
    collection: Annotated[str, typer.Option(help=" or ".join(COLLECTIONS))] = "meetings",
    device: Annotated[str, typer.Option()] = "auto",
) -> None:
    """Write the tables to learn from, and score models on the questions held out."""
    output.mkdir(parents=True, exist_ok=True)
    write_tables(output, *(novels if collection == "novels" else meetings)(data))
    if not models:
        return
    folders, device = models.split(","), resolve_device(device)
    precision = resolve_precision("auto", device)
    named = DataOptions(document_column="meeting")
    documents = Retrieval.load(str(output / "held_out.parquet"), str(output / "documents.parquet"), named).dataset
    kinds = kinds_of(documents, pd.read_parquet(output / "documents.parquet")) if collection == "meetings" else None
    chunks = Retrieval(load_tokenizer(folders[0])).encoder(CHUNK, overflow="windows", stride=0)
    number = len(chunks(documents["text"][:])["document"]) / len(documents)
    vectors = {"beginning_vector": 1.0, "chunk_mean": 1.0, "best_chunk": number}
    rows, judgments = [], judgments_of(documents)
    for name, similarities in baselines_of(folders[0], documents, device, precision).items():
        found = scores_of(retrieval_metrics(similarities, judgments), kinds)
        vector = vectors.get(name.removesuffix(JOINED))
        rows.append({"method": method_of(name), **found, "vectors": vector})
    for folder in folders:
        for length in positive_numbers("--lengths", lengths):
            rows.append(read_and_score(folder, length, documents, kinds, device, precision))
            report(rows, output, device)


def meetings(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The meetings of QMSum and the questions about something in them, both with their part."""
    questions = pd.read_parquet(data / "qmsum_queries.parquet").query("kind == 'specific'")
    return pd.read_parquet(data / "qmsum_meetings.parquet"), questions


def novels(data: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Passages of novels, in the columns of meetings, and sentences that were taken out of them.

    Every third novel is held out.
    """
    passages, sentences = [], []
    for number, novel in enumerate(pd.read_parquet(data / "novels.parquet").itertuples()):
        split, draw = "test" if number % 3 == 0 else "train", random.Random(number)
        for part in range(PASSAGES):
            begin = len(novel.text) * (2 * part + 1) // (2 * PASSAGES)
            text = " ".join(novel.text[begin : begin + PASSAGE].split())
            name, known = f"{novel.title} {part}", sorted({*re.findall(SENTENCE, text)})
            for sentence in draw.sample(known, min(SENTENCES, len(known))):
                text = text.replace(sentence, "")
                sentences.append({"query": sentence, "meeting": name, "split": split})
            passages.append({"meeting": name, "split": split, "text": text})
    return pd.DataFrame(passages), pd.DataFrame(sentences)


def write_tables(output: Path, documents: pd.DataFrame, queries: pd.DataFrame) -> None:
    """The tables that the commands read."""
    learned, known = documents.split == "train", queries.split == "train"
    documents[["meeting", "text"]].to_parquet(output / "documents.parquet")
    documents[learned][["text"]].to_parquet(output / "texts.parquet")
    documents[~learned][["text"]].to_parquet(output / "held_out_texts.parquet")
    queries[known][["query", "meeting"]].to_parquet(output / "known.parquet")
    queries[~known][["query", "meeting"]].to_parquet(output / "held_out.parquet")


def baselines_of(folder: str, documents: Dataset, device: str, precision: str) -> dict[str, Similarities]:
    """What a model must beat: words, the original's vectors, and the ranks of BM25 and of each other one together."""
    texts, queries = documents["text"][:], queries_of(documents)
    alone = {"tfidf_search": tfidf_similarities(texts, queries), "bm25": bm25_similarities(texts, queries)}
    original = embedder_vectors(folder, documents, device, precision)
    if original is not None:
        alone |= zip(("beginning_vector", "chunk_mean", "best_chunk"), original.similarities, strict=True)
    bm25 = alone["bm25"]
    return alone | {name + JOINED: joined(bm25, other) for name, other in alone.items() if name != "bm25"}


def joined(one: Similarities, other: Similarities) -> Similarities:
    """Two rankings together: the sum of 1 / (60 + rank) of both (Cormack, Clarke and Buettcher 2009)."""

    def both(begin: int, end: int) -> np.ndarray:
        orders = (np.argsort(-np.asarray(each(begin, end)), axis=1, kind="stable") for each in (one, other))
        return sum(1 / (RANK + 1 + np.argsort(order, axis=1)) for order in orders)

    return both


def method_of(name: str) -> str:
    """What a baseline is called in the table."""
    return f"BM25 and {BASELINES[name.removesuffix(JOINED)]}" if name.endswith(JOINED) else BASELINES[name]


def kinds_of(documents: Dataset, meetings: pd.DataFrame) -> np.ndarray:
    """The kind of meeting that each question is about."""
    names = dict(zip(meetings.text, meetings.meeting, strict=True))
    kinds = [next(kind for kind, begin in KINDS.items() if re.match(begin, names[text])) for text in documents["text"]]
    return np.repeat(kinds, [len(queries) for queries in documents["queries"]])


def scores_of(found: dict[str, Any], kinds: np.ndarray | None) -> dict[str, float]:
    """nDCG of all questions, of those about each kind of meeting, and recall."""
    each = np.asarray(found["tallies"]["ndcg_at_10"])[:, 0]
    asked = [] if kinds is None else [kind for kind in KINDS if (kinds == kind).any()]
    return {
        "ndcg_at_10": found["ndcg_at_10"],
        **{kind: float(each[kinds == kind].mean()) for kind in asked},
        "recall_at_10": found["recall_at_10"],
    }


def read_and_score(
    folder: str, length: int, documents: Dataset, kinds: np.ndarray | None, device: str, precision: str
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
        "vectors": float(task.vectors.most) if isinstance(task, Retrieval) else 1.0,
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
