"""The sets of documents: their sizes and labels, and a small run of the command."""

import re

import numpy as np
import pandas as pd
import pytest

from documents import SETS, main


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Files of the names and columns of the real ones."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)

    def reviews(number):
        labels = draw.choice(["neg", "pos"], number)
        words = {"neg": ["bad", "dull"], "pos": ["good", "fine"]}
        return pd.DataFrame(
            {"text": [" ".join(draw.choice([*words[x], "film", "the"], 9)) for x in labels], "label": labels}
        )

    for name, number in (("imdb_train", 7000), ("imdb_test", 6000), ("sst2_train", 9000), ("sst2_dev", 100)):
        reviews(number).to_parquet(folder / f"{name}.parquet")
    novels = [
        (author, f"{author}_{title}_18{number}{title}") for number, author in enumerate("ABC") for title in (1, 2, 3)
    ]
    novels.append(("D", "D_alone_1850"))
    texts = [" ".join(f"{author.lower()}{draw.integers(50)}" for _ in range(70_000)) for author, _ in novels]
    pd.DataFrame(novels, columns=["author", "title"]).assign(text=texts).to_parquet(folder / "novels.parquet")
    kinds = [("Bdb001", "train"), ("ES2002a", "train"), ("covid_1", "train"), ("IS1000a", "val"), ("TS3003a", "test")]
    talk = pd.DataFrame(kinds, columns=["meeting", "split"]).assign(text="A: hello")
    talk.to_parquet(folder / "qmsum_meetings.parquet")
    return folder


def test_the_sets(data):
    sets = {name: make(data) for name, make in SETS.items()}
    mixed = sets["mixed-authors"]
    of_python = {name: sets.pop(name) for name in ("docstrings", "python")}  # of whatever version it has
    assert all(len(known) > 50 and set(known.label) == set(held_out.label) for known, held_out in of_python.values())
    assert {name: tuple(map(len, parts)) for name, parts in sets.items() if parts is not mixed} == {
        "imdb": (7000, 6000),
        "imdb-2k": (2000, 2000),
        "skewed": (3000, 2600),
        "sst2": (8000, 100),
        "meetings": (3, 2),
        "authors": (72, 24),
        "years": (72, 24),
    }
    assert all(list(part.columns) == ["text", "label"] for parts in sets.values() for part in parts)
    assert all((part.label == "pos").mean() == 0.1 for part in sets["skewed"])
    assert sets["meetings"][0].label.tolist() == ["academic", "product", "committee"]
    known, held_out = sets["authors"]
    assert set(known.label) == set(held_out.label) == {"A", "B", "C"} and set(map(len, known.text)) == {20_000}
    assert not set(known.text) & set(held_out.text)
    assert set(sets["years"][1].label) == {1803.0, 1813.0, 1823.0}
    for part, passages in zip(mixed, sets["authors"], strict=True):
        assert {1, 2, 3} == set(part.label.map(len)) and part.label.map(len).sum() == 3 * len(passages)  # all thirds
        # The words of each author begin with the author's letter.
        written = part.text.map(lambda text: {word[0].upper() for word in text.split() if word[0].isalpha()})
        assert (written == part.label.map(set)).all()


def test_a_run_and_its_page(data, tmp_path, datasets_cache, plain_encoder):
    main(data, tmp_path / "out", "authors", source=str(plain_encoder))
    page = (tmp_path / "out" / "results.md").read_text()
    assert re.search(r"\| authors \| \d+ \+ \d+ \| 24 \| 1 \| 1 \|", page) and "- `authors`, " in page
    before = (tmp_path / "out" / "authors" / "metrics.json").stat().st_mtime_ns
    main(data, tmp_path / "out", "authors", source=str(plain_encoder))
    assert (tmp_path / "out" / "authors" / "metrics.json").stat().st_mtime_ns == before
