"""A folder of sentence-transformers makes the same vectors in every command: of texts read as it says."""

import json

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import AutoTokenizer

from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference import Embedder
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.inference.document_model import DocumentEmbedder
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.models import LinformerModel
from torch_linformer.models.pooling import embed
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.tasks.retrieval import judgments_of
from torch_linformer.tasks.retrieval_metrics import retrieval_metrics
from torch_linformer.training.encoder_baselines import embedder_baselines

SAME = {"device": "cpu", "precision": "fp32"}
TEXTS = ["Wet MUD", "the naïve sand of the warm sea and the cold white ice"]


@torch.no_grad()
def expected(folder, texts, prompt="sea: "):
    """Vectors of lower-case texts after the prompt, of 16 tokens, by the definition."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), LinformerModel.from_pretrained(folder).eval()
    rows = tokenizer([f"{prompt}{text.lower()}" for text in texts], truncation=True, max_length=16)
    vectors = []
    for ids in map(torch.tensor, rows["input_ids"]):
        mask = torch.ones(1, len(ids), dtype=torch.long)
        vectors.append(embed(model(ids[None], mask).last_hidden_state, mask, "mean")[0].numpy())
    return np.stack(vectors)


def test_vectors_of_texts_as_the_folder_reads_them(prompted_embedder):
    embedder = Embedder(str(prompted_embedder), **SAME)
    found = embedder({"text": TEXTS})
    np.testing.assert_allclose(found["embedding"], expected(prompted_embedder, TEXTS), atol=1e-5)
    assert found["cut"] == [False, True] and embedder.max_length == 16


def test_another_prompt_by_its_name(prompted_embedder, tmp_path):
    (tmp_path / "t.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    files, told = (str(tmp_path / "t.jsonl"),), {"prompt_name": "query", "precision": "fp32"}
    answer_files(EmbedSettings(model=str(prompted_embedder), files=files, **told), tmp_path / "v.npy", device="cpu")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected(prompted_embedder, TEXTS, "ice? "), atol=1e-5)
    message = "--prompt-name 'sea': no such prompt; the model's folder has 'passage', 'query'"
    with pytest.raises(InputError, match=message):
        Embedder(str(prompted_embedder), prompt_name="sea", **SAME)


def test_windows_each_begin_with_the_prompt(prompted_embedder):
    folder, tokenizer = str(prompted_embedder), load_tokenizer(str(prompted_embedder))
    embedder = DocumentEmbedder(folder, load_model(folder), tokenizer, overflow="windows", batch_size=4, **SAME)
    windows = embedder.prepare([Document("", "Wet mud " * 5)])["input_ids"]
    prompt = tokenizer("sea:").input_ids[:-1]
    assert len(windows) > 1 and all(len(ids) <= 16 and ids[: len(prompt)] == prompt for ids in windows)


def test_evaluation_and_what_a_training_must_beat_search_by_these_vectors(prompted_embedder, tmp_path):
    rows = [(f"{TEXTS[1][4 * n :][: 3 + n // 2]} MUD", label) for label in range(3) for n in range(label, 12, 3)]
    data = tmp_path / "d.jsonl"
    data.write_text("".join(json.dumps({"text": text, "label": str(label)}) + "\n" for text, label in rows))
    _, scores = evaluate(str(prompted_embedder), str(data), **SAME)
    texts, labels = zip(*rows, strict=True)
    vectors = expected(prompted_embedder, texts)
    documents = Dataset.from_dict({"text": texts, "label": labels})
    ndcg = retrieval_metrics(lambda begin, end: vectors[begin:end] @ vectors.T, judgments_of(documents))["ndcg_at_10"]
    assert 0.3 < ndcg < 0.99 and scores["ndcg_at_10"] == pytest.approx(ndcg, abs=1e-6)
    baselines = embedder_baselines(str(prompted_embedder), documents, "cpu", "fp32")
    assert baselines["beginning_vector"]["ndcg_at_10"] == pytest.approx(ndcg, abs=1e-6)


def test_a_program_keeps_them(prompted_embedder, tmp_path):
    export_model(str(prompted_embedder), tmp_path / "program", "torch")
    assert sentence_settings(str(tmp_path / "program")) == sentence_settings(str(prompted_embedder))
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "program")
    assert tokenizer.tokenize("MUD") == tokenizer.tokenize("mud")
