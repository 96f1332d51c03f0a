"""Perplexity of masked words: the rows are those of all variants, and one small run of the command."""

import json

import numpy as np
import pandas as pd
import pytest
import torch
import typer

import masked_text
from masked_text import HELD_OUT, VARIANTS, Corpus, build, main
from torch_linformer.nn import SequenceProjection


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
    scored = list(corpus.scored(32))
    masks = [batch["labels"] >= 0 for batch in scored]
    assert 0.35 < torch.cat(masks).float().mean() < 0.45
    for batch, masked in zip(scored, masks, strict=True):  # a masked word is hidden and every other stays
        assert (batch["input_ids"] == corpus.tokenizer.mask_token_id).equal(masked)
    whole = torch.where(masked, batch["labels"], batch["input_ids"])[-1].tolist()
    assert whole == corpus.held_out[-32:].tolist()
    right = torch.cat([batch["labels"][batch["labels"] >= 0] for batch in scored])
    counts = torch.bincount(torch.tensor(corpus.train), minlength=len(corpus.tokenizer)) + 1.0
    expected = torch.nn.functional.cross_entropy(counts.log().expand(len(right), -1), right)
    assert corpus.without_context(scored) == pytest.approx(expected.item(), rel=1e-5)


def test_every_layer_begins_with_equal_maps_of_queries_and_keys():
    for variant in ("full", "headwise-4", "dynamic-window-8"):
        for layer in build(variant, 64, 50).linformer.encoder.layers:
            query, key = layer.self_attn.q_proj.weight, layer.self_attn.k_proj.weight
            assert torch.equal(query, key) and query is not key
            assert query.std().item() == pytest.approx(masked_text.ALIKE_STD, rel=0.05)


def test_e_and_f_begin_as_means_of_segments_unless_they_are_drawn():
    x = torch.randn(1, 64, masked_text.WIDTH)
    for variant in ("headwise-8", "headwise-2", "kv-4", "none-4", "layerwise-4"):
        learned = [module for module in build(variant, 64, 50).modules() if isinstance(module, SequenceProjection)]
        assert learned
        for module in learned:
            split = x.unflatten(-1, (masked_text.HEADS, -1)).transpose(1, 2) if module.weight.dim() == 3 else x
            means = split.unflatten(-2, (module.k, -1)).mean(-2)
            torch.testing.assert_close(module(split), means, rtol=1e-5, atol=1e-6)
    drawn = next(module for module in build("headwise-4-drawn", 64, 50).modules() if hasattr(module, "init_std"))
    assert (drawn.weight != 0).all()


@pytest.mark.parametrize("variant", VARIANTS)
def test_only_the_window_alone_cannot_see_the_whole_row(variant):
    torch.manual_seed(0)
    model = build(variant, 192, 50)
    words = torch.randn(1, 192, model.config.hidden_size, requires_grad=True)
    model(inputs_embeds=words).logits[:, 0].sum().backward()
    assert words.grad[:, 64].any()
    assert words.grad[:, 65:].any() == (variant != "window")


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ({"variants": "headwise-3"}, "'headwise-3' is none of full, headwise-8"),
        *(({"lengths": text}, "is no number from 8 to 2048") for text in ("many", "512,", "4", "16384")),
    ],
)
def test_bad_options_are_refused(novels, tmp_path, option, message):
    with pytest.raises(typer.BadParameter, match=message):
        main(novels, tmp_path, **option)


def test_a_stopped_command_goes_on_and_reports_all_runs(novels, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(masked_text, "SCORED", 256)

    def run() -> tuple[list[dict], str]:
        main(novels, tmp_path, lengths="32,64", variants="full,kv-4", steps=2, tokens=128)
        lines = (tmp_path / "runs.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines], capsys.readouterr().out

    runs, _ = run()
    found = [(run["length"], run["batch"], run["variant"]) for run in runs]
    assert found == [(32, 4, "full"), (32, 4, "kv-4"), (64, 2, "full"), (64, 2, "kv-4")]
    assert all(1 < run["perplexity"] < float("inf") for run in runs)
    table = (tmp_path / "results.md").read_text()
    assert table.count("What is not below that has not used its context.") == 2
    assert "| E = F, key-value | 8 |" in table and "| E = F, key-value | 16 |" in table
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    lines = (tmp_path / "runs.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "runs.jsonl").write_text("".join(lines[:-1]))
    again, screen = run()
    assert "kv-4 64 0: step 2" in screen and "full" not in screen
    assert [run["perplexity"] for run in again] == [run["perplexity"] for run in runs]
