"""The words of a model, and three baselines that others use, each tuned on the same documents.

    python benchmarks/baselines.py --data folder --output baselines

The folder is that of ``documents.py``, with ``qmsum_queries.parquet`` (query, answer, meeting, split, kind) too. The
sets are ``authors``, ``meetings``, ``imdb``, ``skewed`` and ``sst2`` of that file, and:

- ``queries``: is a question about a meeting general or specific?
- ``answers``: what kind of meeting is an answer about?
- ``stdlib``: of which package is a file of Python's standard library? What ``linformer train`` learns without --data.

The three are those that papers compare with: a linear support vector machine on TF-IDF of words and pairs of words,
one on TF-IDF of n-grams of 2 to 5 characters, and one on log-count ratios of words and pairs (NB-SVM). scikit-learn
searches their C, and whether pairs help, on the validation documents, and fits the best to these and the training
documents; our words' part is chosen by cross-validation over both.
results.md has accuracy and macro F1 on held-out documents, and by how many standard errors ours are ahead of the best
of the three.
"""

import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import torch
import typer
from datasets import Dataset, concatenate_datasets
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.feature_extraction.text import CountVectorizer, TfidfVectorizer
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit
from sklearn.multiclass import OneVsRestClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.svm import LinearSVC
from torch.nn import functional as F

from documents import SETS, Parts, of_meetings, write_set
from learning import chosen, run_all, write_results
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.data.windows import DocumentEncoder
from torch_linformer.reporting.report import markdown_table
from torch_linformer.tasks.metrics import paired_difference, tally
from torch_linformer.tasks.whole_documents import Classification
from torch_linformer.tasks.word_features import SHORT, WordCounts
from torch_linformer.training.splits import Splits, load_splits
from torch_linformer.training.train_settings import TrainSettings
from torch_linformer.training.words_and_reader import Targets, fit_words

STDLIB = "stdlib"
OURS = "our words"
COSTS = (0.01, 0.1, 1.0, 10.0)
Found = tuple[list[str], str]  # the label of each held-out document, and what was chosen


def queries(data: Path) -> Parts:
    return of_meetings(
        pd.read_parquet(data / "qmsum_queries.parquet").rename(columns={"query": "text", "kind": "label"})
    )


def answers(data: Path) -> Parts:
    return of_meetings(pd.read_parquet(data / "qmsum_queries.parquet").rename(columns={"answer": "text"}))


LABELED = {
    **{name: SETS[name] for name in ("sst2", "imdb", "skewed", "meetings", "authors")},
    "queries": queries,
    "answers": answers,
}


def splits_of(data: Path, output: Path, name: str, most: int) -> Splits:
    """The three parts of a set; of each some documents at random, if it has more than so many characters."""
    if name == STDLIB:
        splits = load_splits(TrainSettings())
    else:
        known, held_out = write_set(output, name, partial(LABELED[name], data))
        splits = load_splits(TrainSettings(data=str(known), test=str(held_out)))
    parts = {part: _drawn(getattr(splits, part), most) for part in ("train", "validation", "test")}
    return Splits(**parts, names=splits.names)


def _drawn(documents: Dataset, most: int) -> Dataset:
    order = np.random.default_rng(0).permutation(len(documents))
    characters = np.cumsum([len(text) for text in documents.select(order)["text"]])
    return documents.select(order[: int(np.searchsorted(characters, most)) + 1])


class LogCountRatios(TransformerMixin, BaseEstimator):
    """Features times the logarithm of the ratio of their shares under a label and under the others."""

    def fit(self, features: Any, target: Any) -> "LogCountRatios":
        having, without = (np.asarray(features[target == side].sum(axis=0)).ravel() + 1 for side in (1, 0))
        self.ratios_ = np.log(having / having.sum()) - np.log(without / without.sum())
        return self

    def transform(self, features: Any) -> Any:
        return features.multiply(self.ratios_).tocsr()


def rivals() -> dict[str, tuple[Pipeline, dict[str, Any]]]:
    """The methods of others, each with what is searched."""
    counted = {"sublinear_tf": True, "dtype": np.float32}
    pairs = {"features__ngram_range": [(1, 1), (1, 2)]}
    svm = {"classifier__C": COSTS}
    words = Pipeline([("features", TfidfVectorizer(**counted)), ("classifier", LinearSVC(random_state=0))])
    characters = TfidfVectorizer(analyzer="char_wb", ngram_range=(2, 5), min_df=2, **counted)
    by_ratios = OneVsRestClassifier(make_pipeline(LogCountRatios(), LinearSVC(random_state=0)))
    binary = CountVectorizer(binary=True, dtype=np.float32)
    return {
        "word LinearSVC": (words, pairs | svm),
        "character LinearSVC": (Pipeline([("features", characters), ("classifier", words[-1])]), svm),
        "NB-SVM": (
            Pipeline([("features", binary), ("classifier", by_ratios)]),
            pairs | {"classifier__estimator__linearsvc__C": COSTS},
        ),
    }


def rival(name: str, splits: Splits) -> Found:
    """Search on the validation documents, fit to these and those of the training, and label the held-out ones."""
    texts, labels = ([*splits.train[key], *splits.validation[key]] for key in ("text", "label"))
    fold = PredefinedSplit([-1] * len(splits.train) + [0] * len(splits.validation))
    pipeline, searched = rivals()[name]
    with tempfile.TemporaryDirectory() as cache:  # features are counted once
        search = GridSearchCV(pipeline.set_params(memory=cache), searched, cv=fold).fit(texts, labels)
        return search.predict(splits.test["text"][:]).tolist(), str(list(search.best_params_.values()))


def our_words(splits: Splits) -> Found:
    """The words' part of a model, with a tokenizer of its own."""
    tokenizer = build_tokenizer("bpe:8192", splits.train["text"], max_length=2048)
    known = concatenate_datasets([splits.train, splits.validation])
    labels = torch.tensor(Classification(tokenizer, splits.names).known(known))
    ids = DocumentEncoder(tokenizer, 2048).ids([*known["text"], *splits.test["text"]])
    short = sum(map(len, known["text"])) <= SHORT * len(known)
    counts = WordCounts(tokenizer, len(tokenizer), ids, len(known), characters=short)
    found = fit_words(counts, Targets(labels, len(splits.names), lambda z, y: F.cross_entropy(z.float(), y)))
    return [splits.names[label] for label in found.unseen.argmax(dim=1).tolist()], found.chosen


def report(runs: list[dict[str, Any]], output: Path) -> None:
    """Write results.md."""
    rows = []
    for name in dict.fromkeys(run["set"] for run in runs):
        found = {run["method"]: run for run in runs if run["set"] == name}
        others = [run for method, run in found.items() if method != OURS]
        best = max(others, key=lambda run: run["accuracy"], default=None)
        for method, run in found.items():
            ahead = None
            if method == OURS and best is not None:
                gain, error = paired_difference(run["tally"], best["tally"])
                ahead = f"{gain:+.4f} ± {error:.4f}"
            scores = f"{run['accuracy']:.4f}", f"{run['macro_f1']:.4f}"
            counts = f"{run['documents']:,} / {run['held_out']:,}"
            rows.append((name, counts, method, *scores, ahead, f"{run['seconds']:.1f}", run["chosen"]))
    columns = (
        "set",
        "learned / held out",
        "method",
        "accuracy",
        "macro F1",
        "compared with the best of three",
        "CPU s",
        "chosen",
    )
    text = (
        "Accuracy and macro F1 on held-out documents; what is ahead of the best of the three, by accuracy, ± its error."
    )
    write_results(output, [text, markdown_table(columns, rows)], "cpu")


def main(
    data: Annotated[Path, typer.Option(help="folder of the data, see the head of this file")],
    output: Annotated[Path, typer.Option(help="folder of the sets and the results")],
    sets: Annotated[str, typer.Option(help=", ".join([*LABELED, STDLIB]))] = ",".join([*LABELED, STDLIB]),
    most: Annotated[int, typer.Option(help="characters of each part of a set, at most")] = 20_000_000,
) -> None:
    """Fit every method to each set, unless it was done before, and report all of it."""

    def run(setting: dict[str, Any]) -> dict[str, Any]:
        splits = splits_of(data, output, setting["set"], most)
        method = our_words if setting["method"] == OURS else partial(rival, setting["method"])
        begin = time.process_time()
        given, choice = method(splits)
        seconds, known = time.process_time() - begin, splits.test["label"][:]
        return setting | {
            "accuracy": float(np.mean(np.asarray(known) == np.asarray(given))),
            "macro_f1": float(f1_score(known, given, average="macro", zero_division=0)),
            "tally": tally("accuracy", known, given).tolist(),
            "documents": len(splits.train) + len(splits.validation),
            "held_out": len(splits.test),
            "seconds": seconds,
            "chosen": choice,
        }

    names = chosen(sets, [*LABELED, STDLIB], "--sets")
    methods = [OURS, *rivals()]
    settings = [{"set": name, "method": method, "most": most} for name in names for method in methods]
    run_all(settings, run, lambda runs: report(runs, output), output / "runs.jsonl")


if __name__ == "__main__":
    typer.run(main)
