"""Linear readers beside windows of their original: what a passage is, how it is cut into windows, and the table."""

import numpy as np
import pandas as pd
import torch
from transformers import AutoTokenizer

from linear_readers import NONE, main, windows_of


def test_windows_of_passages():
    windows = windows_of(torch.tensor([[1, 11, 12, 13, 14, 15, 2]]), 5)
    assert windows.tolist() == [[[1, 11, 12, 13, 2], [1, 14, 15, 2, NONE]]]
    assert windows_of(torch.tensor([[1, 11, 12, 13, 2]]), 5).tolist() == [[[1, 11, 12, 13, 2]]]


def test_the_table(tmp_path, save_source, masked_run):
    draw = np.random.default_rng(0)
    data = [tmp_path / "rain.parquet", tmp_path / "sun.parquet"]
    for path, words in zip(data, (["wet", "grey"], ["warm", "sand"]), strict=True):
        pd.DataFrame({"text": [" ".join(draw.choice(words, 30)) for _ in range(9)]}).to_parquet(path)
    tokenizer = AutoTokenizer.from_pretrained(masked_run.folder)
    source = save_source(tmp_path / "small", tokenizer, pooling="mean_tokens")  # reads 16 tokens, and is used with
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 8}')
    names = ",".join(map(str, data))
    main(names, tmp_path / "made", source=str(source), lengths="8,40", number=6)
    table = [line for line in (tmp_path / "made" / "results.md").read_text().splitlines() if line.startswith("|")]
    assert table[0].startswith("| tokens | read by | rain | sun | centered | ten nearest |") and len(table) == 2 + 2 * 3
    short, long = (table[start].split("|") for start in (3, 6))
    assert short[2].strip() == "slots, untrained" and float(short[3]) > 0.999  # read exactly
    assert float(long[3]) < 0.9999
    main(names, tmp_path / "made", source=str(source), train=16)
    assert len(pd.read_parquet(tmp_path / "made" / "texts.parquet")) == 16
