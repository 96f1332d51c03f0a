"""Reviews for the scripts that learn from labelled documents."""

import numpy as np
import pandas as pd
import pytest


@pytest.fixture(scope="session")
def reviews(tmp_path_factory):
    """Files of the names and columns of the real ones: the label stands at the end of each text."""
    folder, draw = tmp_path_factory.mktemp("data"), np.random.default_rng(0)
    for name, number in (("imdb_train", 400), ("imdb_test", 100), ("sst2_train", 9), ("sst2_dev", 5)):
        labels = draw.choice(["neg", "pos"], number)
        words = {"neg": ["wet", "grey"], "pos": ["warm", "sand"]}
        texts = [
            " ".join([*["the"] * draw.integers(12, 16), *draw.choice(words[label], 9)]) + " " * 40 * (n % 4 == 0)
            for n, label in enumerate(labels)
        ]
        pd.DataFrame({"text": texts, "label": labels}).to_parquet(folder / f"{name}.parquet")
    return folder
