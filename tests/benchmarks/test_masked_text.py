"""Perplexity of masked words: the rows are those of all variants, and one small run of the command."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import typer

import masked_text
from masked_text import HELD_OUT, VARIANTS, Corpus, build, main


@pytest.fixture(scope="module")
def novels(tmp_path_factory):
    words = np.array(["rain", "river", "stone", "lamp", "door", "night", "said", "walked", "over", "under"])
    draws = np.random.default_rng(0)
    texts = [" ".join(words[draws.integers(len(words), size=400)]) for _ in range(HELD_OUT + 2)]
    file = tmp_path_factory.mktemp("novels") / "novels.parquet"
    pd.DataFrame({"text": texts}).to_parquet(file)
    return file


def test_every_run_reads_the_same_rows_and_is_scored_on_texts_that_none_learns_from(novels):
    corpus = Corpus(novels)
    first, again, other = (next(corpus.rows(seed, 32, 4)) for seed in (0, 0, 1))
    assert torch.equal(first["input_ids"], again["input_ids"]) and torch.equal(first["labels"], again["labels"])
    assert not torch.equal(first["input_ids"], other["input_ids"])
    held_out = corpus.tokenizer.decode(corpus.held_out)
    assert [held_out.count(text) for text in pd.read_parquet(novels)["text"]] == [0] * 2 + [1] * HELD_OUT
    masks = [batch["labels"] >= 0 for batch in corpus.scored(32)]
    assert 0.12 < torch.cat(masks).float().mean() < 0.18


def test_the_floor_is_the_best_that_can_be_done_without_context(novels):
    corpus = Corpus(novels)
    scored = list(corpus.scored(32))
    counts = np.bincount(corpus.train, minlength=len(corpus.tokenizer)) + 1.0
    frequency = counts / counts.sum()
    asked = [batch["labels"] >= 0 for batch in scored]
    shown = torch.cat([batch["input_ids"][each] for batch, each in zip(scored, asked, strict=True)]).numpy()
    right = torch.cat([batch["labels"][each] for batch, each in zip(scored, asked, strict=True)]).numpy()
    by_frequency, hidden = -np.log(frequency[right]), shown == corpus.tokenizer.mask_token_id
    floor = corpus.without_context(scored)
    assert hidden.mean() * by_frequency[hidden].mean() < floor < by_frequency.mean()
    kept = (~hidden & (shown == right)).sum() / (~hidden).sum()
    assert 0.4 < kept < 0.6
    # No other belief about the words that are shown does better.
    for belief in (0.5, 0.99):
        told = belief * (shown == right) + (1 - belief) * frequency[right]
        assert np.where(hidden, by_frequency, -np.log(told)).mean() > floor


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_window_alone_cannot_see_the_whole_row(variant):
    torch.manual_seed(0)
    model = build(variant, 192, 50)
    words = torch.randn(1, 192, model.config.hidden_size, requires_grad=True)
    model(inputs_embeds=words).logits[:, 0].sum().backward()
    assert words.grad[:, 64].any()
    assert words.grad[:, 65:].any() == (variant != "window")


def test_an_unknown_variant_is_refused(novels, tmp_path):
    with pytest.raises(typer.BadParameter, match="'headwise-3' is none of full, headwise-8"):
        main(novels, tmp_path, variants="headwise-3")


@pytest.mark.parametrize("lengths", ["many", "512,", "4", "-8", "16384"])
def test_a_length_that_cannot_be_is_refused(novels, tmp_path, lengths):
    with pytest.raises(typer.BadParameter, match="is no number from 8 to 8192"):
        main(novels, tmp_path, lengths=lengths)


def test_a_stopped_command_goes_on_and_reports_all_runs(novels, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(masked_text, "SCORED", 256)

    def run() -> tuple[list[dict], str]:
        main(novels, tmp_path, lengths="32,64", variants="full,kv-4", steps=2, tokens=128)
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], capsys.readouterr().out

    runs, _ = run()
    assert [(run["length"], run["batch"], run["variant"]) for run in runs] == [
        (32, 4, "full"),
        (32, 4, "kv-4"),
        (64, 2, "full"),
        (64, 2, "kv-4"),
    ]
    assert all(1 < run["perplexity"] < 1e4 for run in runs)
    table = (tmp_path / "results.md").read_text()
    assert table.count("What is not below that has not used its context.") == 2
    assert "| E = F, key-value | 8 |" in table and "| E = F, key-value | 16 |" in table
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:-1]))
    again, screen = run()
    assert "kv-4 64 0: step 2" in screen and "full" not in screen
    assert [run["perplexity"] for run in again] == [run["perplexity"] for run in runs]
