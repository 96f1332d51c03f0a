"""Default settings on sets of documents that differ in length, labels, balance and size, beside simple methods.

    python benchmarks/documents.py --data folder --output documents

The folder holds ``imdb_train.parquet`` and ``imdb_test.parquet`` (columns text, label), ``sst2_train.parquet`` and
``sst2_dev.parquet`` (the same), ``novels.parquet`` (text, author, title that ends with a year) and
``qmsum_meetings.parquet`` (meeting, split, text). Each set becomes two files, and each run a folder, of the output;
runs that are finished are not repeated. After each run results.md has all of them. The sets:

- ``imdb``: is a review of a film positive? All of it.
- ``imdb-2k``: the same, 2,000 to learn from and 2,000 held out.
- ``skewed``: the same, one in ten is positive.
- ``sst2``: is a phrase of a review positive? 8,000 to learn from.
- ``meetings``: what kind of meeting is it? 162 to learn from, 9,000 words each.
- ``authors``: who of 33 wrote a passage of 20,000 characters? Of a novel that was not learned from.
- ``years``: when was that passage published?
- ``docstrings``: of which module or package of Python's library is a sentence of its documentation?
- ``python``: of which package is a file of it?
- ``mixed-authors``: who of the 33 wrote parts of a document? Of one, two or three of them it has a third of a passage.
"""

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from learning import chosen, write_results
from torch_linformer.data.reading.corpus import stdlib_documents, stdlib_search
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.headlines import HEADLINES
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings

PASSAGE = 20_000  # characters, and so many are left out at both ends of a novel
THIRDS = (0, PASSAGE // 3, PASSAGE // 3 * 2)  # where they begin
OF_A_NOVEL = {"train": 15, "test": 8}  # passages
Parts = tuple[pd.DataFrame, pd.DataFrame]  # to learn from, and held out; columns text and label


def imdb(data: Path) -> Parts:
    return pd.read_parquet(data / "imdb_train.parquet"), pd.read_parquet(data / "imdb_test.parquet")


def few_reviews(data: Path) -> Parts:
    known, held_out = imdb(data)
    return known.sample(frac=1, random_state=0)[:2000], held_out.sample(2000, random_state=0)


def skewed(data: Path) -> Parts:
    """Nine negative reviews for a positive one."""
    known, held_out = imdb(data)
    known, held_out = known.sample(frac=1, random_state=0), held_out.sample(5000, random_state=0)
    return _one_in_ten(known, 3000), _one_in_ten(held_out, 2600)


def _one_in_ten(reviews: pd.DataFrame, number: int) -> pd.DataFrame:
    negative, positive = (reviews[reviews.label == label] for label in ("neg", "pos"))
    both = pd.concat([negative[: number * 9 // 10], positive[: number // 10]])
    return both.sample(frac=1, random_state=1)


def sst2(data: Path) -> Parts:
    known = pd.read_parquet(data / "sst2_train.parquet").sample(8000, random_state=0)
    return known, pd.read_parquet(data / "sst2_dev.parquet")


def docstrings(data: Path) -> Parts:
    files, _ = stdlib_search()
    return _halves([(query, file.group) for file in files for query in file.queries])


def python(data: Path) -> Parts:
    documents, _ = stdlib_documents()
    return _halves([(row.values["text"], row.values["label"]) for row in documents])


def _halves(rows: list[tuple[str, str]]) -> Parts:
    """At random, of the labels that have twenty rows."""
    both = pd.DataFrame(rows, columns=["text", "label"]).drop_duplicates("text")
    both = both[both.groupby("label").text.transform("count") >= 20].sample(frac=1, random_state=0)
    return both[::2], both[1::2]


def meetings(data: Path) -> Parts:
    """QMSum's meetings: of researchers (ICSI), of designers (AMI), of parliaments."""
    return of_meetings(pd.read_parquet(data / "qmsum_meetings.parquet"))


def of_meetings(rows: pd.DataFrame) -> Parts:
    """Texts of meetings, by the kind of meeting unless they have labels."""
    if "label" not in rows:
        academic, product = rows.meeting.str.startswith("B"), rows.meeting.str.match("ES|IS|TS")
        rows["label"] = np.select([academic, product], ["academic", "product"], "committee")
    return rows[rows.split == "train"][["text", "label"]], rows[rows.split != "train"][["text", "label"]]


def authors(data: Path) -> Parts:
    known, held_out = _passages(data)
    return known.drop(columns="year"), held_out.drop(columns="year")


def years(data: Path) -> Parts:
    known, held_out = (part.drop(columns="label").rename(columns={"year": "label"}) for part in _passages(data))
    return known, held_out


def mixed_authors(data: Path) -> Parts:
    draws = np.random.default_rng(0)
    known, held_out = authors(data)
    return _mixed(known, 1000, draws), _mixed(held_out, 300, draws)


def _mixed(passages: pd.DataFrame, number: int, draws: np.random.Generator) -> pd.DataFrame:
    """Documents, each of thirds of passages by as many authors, and the list of these; no third is in two of them."""
    thirds = {
        author: [text[begin : begin + PASSAGE // 3] for text in draws.permutation(texts) for begin in THIRDS]
        for author, texts in passages.groupby("label").text
    }
    rows = []
    while len(rows) < number and (there := [author for author, left in thirds.items() if left]):
        names = draws.choice(there, min(draws.integers(1, 4), len(there)), replace=False).tolist()
        rows.append(("\n".join(thirds[name].pop() for name in names), names))
    return pd.DataFrame(rows, columns=["text", "label"])


def _passages(data: Path) -> Parts:
    """Passages of authors with three novels, of which the last by title is held out; a column year too."""
    draws = np.random.default_rng(0)
    rows: dict[str, list[tuple[str, str, float]]] = {"train": [], "test": []}
    for author, novels in pd.read_parquet(data / "novels.parquet").groupby("author"):
        for number, novel in enumerate(novels.sort_values("title").itertuples() if len(novels) >= 3 else ()):
            begins = range(PASSAGE, len(novel.text) - PASSAGE, PASSAGE)
            part = "train" if number < 2 else "test"
            for place in draws.permutation(len(begins))[: OF_A_NOVEL[part]]:
                passage = novel.text[begins[place] : begins[place] + PASSAGE]
                rows[part].append((passage, author, float(novel.title[-4:])))
    known, held_out = (
        pd.DataFrame(part, columns=["text", "label", "year"]).sample(frac=1, random_state=0) for part in rows.values()
    )
    return known, held_out


SETS: dict[str, Callable[[Path], Parts]] = {
    "imdb": imdb,
    "imdb-2k": few_reviews,
    "skewed": skewed,
    "sst2": sst2,
    "docstrings": docstrings,
    "python": python,
    "meetings": meetings,
    "authors": authors,
    "years": years,
    "mixed-authors": mixed_authors,
}
OTHERS = {  # rows of a run's report, by their names in metrics.json
    "words": "words",
    "reader": "reader",
    "both": "both, where left out",
    "first_window": "first window",
    "tfidf": "TF-IDF + LinearSVC",
    "stack": "scikit-learn's stack",
}
TASKS = {"years": "regress", "mixed-authors": "multilabel"}  # of the others classify


def write_set(output: Path, name: str, make: Callable[[], Parts]) -> list[Path]:
    """The two files of a set, made unless they are there."""
    files = [output / f"{name}-{part}.parquet" for part in ("train", "test")]
    if not all(file.exists() for file in files):
        output.mkdir(parents=True, exist_ok=True)
        for file, part in zip(files, make(), strict=True):
            part.to_parquet(file, index=False)
    return files


def report(output: Path) -> None:
    """Write results.md."""
    rows, verdicts = [], []
    for name in SETS:
        file = output / name / "metrics.json"
        if not file.exists():
            continue
        found = json.loads(file.read_text(encoding="utf-8"))
        task = TASKS.get(name, "classify")
        score = HEADLINES[task][0]
        row = {other: found.get(f"{other}_{score}".lstrip("_")) for other in ("", *OTHERS)}
        rivals = [value for other, value in row.items() if other and value is not None]
        best = (min if task == "regress" else max)(rivals)
        documents = [f"{found['documents'][part]:,}" for part in ("train", "validation", "test")]
        scores = [None if value is None else f"{value:.4g}" for value in row.values()]
        rows.append((name, " + ".join(documents[:2]), documents[2], *scores, f"{row[''] - best:+.4g}"))
        verdicts.append(f"- `{name}`, {found['train_seconds']:.0f} s: {found['verdict']}")
    columns = ("set", "to learn from", "held out", "shipped", *OTHERS.values(), "shipped − best row")
    scores_of = "Accuracy; of `years` the mean squared error, of `mixed-authors` the F1 of all documents and labels."
    text = f"{scores_of} Command and sets: see the head of `benchmarks/documents.py`."
    page = ["# Default settings on sets of documents", text, markdown_table(columns, rows), "\n".join(verdicts)]
    write_results(output, page, "cpu")


def main(
    data: Annotated[Path, typer.Option(help="folder of the data, see the head of this file")],
    output: Annotated[Path, typer.Option(help="folder of the sets, the runs and the results")],
    sets: Annotated[str, typer.Option(help="which of them")] = ",".join(SETS),
    source: Annotated[str | None, typer.Option("--from", help="as that of linformer train")] = None,
) -> None:
    """Train on each set, unless it was done before, and report all of them."""
    for name in chosen(sets, SETS, "--sets"):
        files = write_set(output, name, partial(SETS[name], data))
        settings = TrainSettings.of(
            data=str(files[0]),
            test=str(files[1]),
            task=TASKS.get(name, "classify"),
            from_model=source,
            output=str(output / name),
        )
        train(settings, resume=True)
        report(output)


if __name__ == "__main__":
    typer.run(main)
