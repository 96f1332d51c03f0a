"""What the commands make of folders of linear encoders of transformers, of every family and with every head."""

import json

import numpy as np
import pytest
import torch
from pyarrow import parquet
from torch.nn import functional as F
from transformers import AutoModel

from torch_linformer.data.reading.streamed import Document
from torch_linformer.inference.embed import EmbedSettings, embed_files
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.inference.predictor import Predictor
from torch_linformer.models.pooling import pool
from torch_linformer.opening.model_folder import load_model, load_tokenizer
from torch_linformer.serving.served_model import load_served

FAMILIES = ("Bert", "Roberta", "DistilBert", "ModernBert")
LABELED = {"id2label": {0: "rain", 1: "snow", 2: "sun"}}
TAGS = {"id2label": {0: "O", 1: "B-LOC", 2: "I-LOC"}}
# Read exactly, by slots, and cut.
TEXTS = ["wet mud", "ice " * 15, "naïve sand and sea", "the sand of the warm sea " * 8, "cold white ice and grey mud"]


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A function: a file of rows."""
    folder = tmp_path_factory.mktemp("rows")

    def write(name, rows):
        file = folder / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    return write


@torch.no_grad()
def hidden_states(folder, text):
    """Last hidden states ``(1, n, C)`` of a text by itself, as transformers has them."""
    ids = load_tokenizer(str(folder))(text, truncation=True, max_length=96, return_tensors="pt").input_ids
    return AutoModel.from_pretrained(folder)(input_ids=ids).last_hidden_state


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_each_text_alone(linear_folder, files, tmp_path, family):
    folder = linear_folder(family)
    settings = EmbedSettings(model=str(folder), files=(files("t", [{"text": x} for x in TEXTS]),), precision="fp32")
    said = embed_files(settings, tmp_path / "out.npy", device="cpu", batch_size=3)
    assert said == "5 documents embedded, 1 cut at 96 tokens"
    for vector, text in zip(np.load(tmp_path / "out.npy"), TEXTS, strict=True):
        wanted = F.normalize(hidden_states(folder, text).mean(dim=1), dim=-1)[0]
        np.testing.assert_allclose(vector, wanted.numpy(), atol=2e-5)


HEADS = {
    "Model": {},
    "ForMaskedLM": {},
    "ForSequenceClassification": LABELED,
    "ForTokenClassification": TAGS,
    "ForQuestionAnswering": {},
}


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("family", FAMILIES)
def test_programs(linear_folder, tmp_path, family, head):
    """Each is compared with its model as it is written, on short rows, long ones, and both in a batch."""
    folder = linear_folder(family, head, **HEADS[head])
    assert export_model(str(folder), tmp_path / "program", "torch") < 1e-5
