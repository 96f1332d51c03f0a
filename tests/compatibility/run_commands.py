"""The commands whose folders are kept in `runs`, and the documents that they were given."""

import csv
import random
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = "weather.csv"
FIRST = "first"  # the model that both begin with, which is not kept
EXACTLY = ("--device", "cpu", "--precision", "fp32")
PREDICTIONS = "predictions.jsonl"  # of the trained model, about the documents


@dataclass(frozen=True)
class Run:
    """A command as it was given, without `linformer`, the folder it left, and defaults of then that are others now."""

    output: str
    options: str
    defaults: str = ""

    @property
    def arguments(self) -> list[str]:
        return [*self.options.split(), "--output", self.output]


TOKENIZER = Run(  # makes the tokenizer of the first model
    "for-tokenizer",
    f"train --data {DOCUMENTS} --tokenizer bytes --max-steps 1 --max-length 8 --k 2 {' '.join(EXACTLY)}",
)
TRAIN = Run(
    "trained",
    f"train --data {DOCUMENTS} --test {DOCUMENTS} --from {FIRST} --max-steps 40 --learning-rate 0.03 --seed 3 "
    f"{' '.join(EXACTLY)}",
    "--lexical none --patience 0",
)
ADAPT = Run(
    "adapted",
    f"adapt {FIRST} --data {DOCUMENTS} --text-column text --test {DOCUMENTS} --k 4 --window 4 --steps 4 "
    f"{' '.join(EXACTLY)}",
    "--projection mean --slot-mass none --exact-first 0 --exact-last 0 "
    "--learning-rate 1.5e-4 --slot-learning-rate 2e-3",
)


def write_documents(path: Path) -> None:
    """Sixty documents of three labels."""
    words = {"sun": "warm sand sea", "rain": "wet grey mud", "snow": "ice cold white"}
    draw = random.Random(0)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(("text", "label"))
        for number in range(60):
            label = sorted(words)[number % 3]
            writer.writerow((" ".join(draw.choices([*words[label].split(), "the", "of"], k=draw.randint(2, 6))), label))
