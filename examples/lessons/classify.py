"""Classify your documents: a table of texts and labels becomes a model, beside what it must beat.

Install: pip install "torch-linformer[minilm]"
Run: python examples/lessons/classify.py
With your own: python examples/lessons/classify.py --data posts.csv --test later_posts.csv
"""

import argparse
import csv
import json
import subprocess
import sys
import tempfile
from pathlib import Path

from shared import linformer, source_files

parser = argparse.ArgumentParser()
parser.add_argument("--data", help="a table with the columns text and label")
parser.add_argument("--test", help="another one, held out")
options = parser.parse_args()
folder = Path(tempfile.mkdtemp())

# 1. The data. A table is enough: one column "text", one column "label". Without one of yours, these are pieces of 60
# lines of five packages of Python. What is held out are pieces of other files, not other pieces of the same files: a
# model that knows a file by heart would otherwise look better than it is.
PACKAGES = ("asyncio", "email", "idlelib", "unittest", "xml")
if options.data is None:
    rows = {"train": [], "test": []}
    for number, (name, text) in enumerate(source_files(*PACKAGES)):
        lines = text.splitlines()
        pieces = ["\n".join(lines[start : start + 60]) for start in range(0, len(lines), 60)]
        rows["test" if number % 4 == 3 else "train"] += [
            (piece, name.split("/")[0]) for piece in pieces if piece.strip()
        ]
    for part, pieces in rows.items():
        with open(folder / f"{part}.csv", "w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([("text", "label"), *pieces])
    options.data, options.test = folder / "train.csv", folder / "test.csv"

# 2. The training. Where there is no table for the final score, a fifth of the documents is held out.
held_out = [] if options.test is None else ["--test", options.test]
run = folder / "run"
linformer("train", "--data", options.data, *held_out, "--output", run)

# 3. The scores, which the screen has shown, are also in a file. The model adds up what words say and what a pretrained
# encoder says, which reads them; TF-IDF and the most frequent label are what it must beat.
scores = json.loads((run / "metrics.json").read_text())
print("documents held out:", scores["documents"]["test"])
print("accuracy:", round(scores["accuracy"], 3))
print("accuracy of its words alone:", round(scores["words_accuracy"], 3))
print("accuracy of its reader alone:", round(scores["reader_accuracy"], 3))
print("accuracy of TF-IDF and LinearSVC:", round(scores["tfidf_accuracy"], 3))
print("accuracy of the most frequent label:", round(scores["majority_accuracy"], 3))

# 4. The use. A text of yours on standard input gives a line of JSON: the label, and the probabilities of all.
print("$ linformer predict", run, "-", flush=True)
text = "class Header:\n    def encode(self, charset):\n        return self.headers['Subject']\n"
command = [sys.executable, "-m", "torch_linformer.cli", "predict", run, "-"]
print(subprocess.run(command, input=text, stdout=subprocess.PIPE, text=True, check=True).stdout)
