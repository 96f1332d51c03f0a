"""Make your embedder read 16,384 tokens, and search meetings with it: one vector a document, whatever its length.

Install: pip install "torch-linformer[minilm]"
Run: python examples/lessons/search_meetings.py
With your own: --documents meetings.jsonl --queries questions.jsonl --minutes 30
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from sklearn.feature_extraction.text import TfidfVectorizer
from transformers import AutoModel, AutoTokenizer

from shared import described_modules
from torch_linformer import distill, encoder_folder, linearize

parser = argparse.ArgumentParser()
parser.add_argument("--documents", type=Path, help='lines of JSON: {"id": ..., "text": ...}, at least 80 of them')
parser.add_argument("--queries", type=Path, help='lines of JSON: {"query": ..., "document": the id of its answer}')
parser.add_argument("--embedder", default="minilm", help="folder or hub name of an embedding model, or minilm")
parser.add_argument("--max-length", type=int, default=16_384, help="tokens")
parser.add_argument("--number", type=int, default=40, help="documents, where none are given")
parser.add_argument("--minutes", type=float, default=1.0, help="for the distillation")
parser.add_argument("--characters", type=int, default=6000, help="of each text that it learns from")
options = parser.parse_args()
if (options.documents is None) != (options.queries is None):
    parser.error("--documents and --queries belong together: give both, or neither")

# 1. The collection. Transcripts of meetings are yours, and not in the repository. In their place stand the longest
# modules of Python, each without the description at its head; the description is the query that should find it.
if options.documents is None:
    modules, others = described_modules(options.number), described_modules(options.number + 80)[options.number :]
    documents = [{"id": name, "text": text} for name, text, _ in modules]
    queries = [{"query": query, "document": name} for name, _, query in modules]
    texts_to_learn_from = [text for _, text, _ in others]
else:
    documents = [json.loads(line) for line in options.documents.read_text(encoding="utf-8").splitlines()]
    queries = [json.loads(line) for line in options.queries.read_text(encoding="utf-8").splitlines()]
    texts_to_learn_from = [document["text"] for document in documents]
texts, names = [document["text"] for document in documents], [document["id"] for document in documents]
asked = [query["query"] for query in queries]
wanted = np.array([names.index(query["document"]) for query in queries])
print("documents:", len(texts))

# 2. The adaptation. Attention over all tokens becomes K slots, a window of 64 tokens, and [CLS] and [SEP]; then the
# model learns to give the vector that the original gives as the mean over windows of its own length, without labels.
# One minute, of texts that are cut at 6,000 characters, is a beginning: take whole documents and half an hour, as
# docs/adapt.md did, by --characters 100000 --minutes 30. linformer adapt does the same, with a report.
source, length = encoder_folder(options.embedder), options.max_length
original, tokenizer = AutoModel.from_pretrained(source).eval(), AutoTokenizer.from_pretrained(source)
beginnings = [text[: options.characters] for text in texts_to_learn_from]
linear = linearize(original, k=min(256, length // 4), window=64, max_length=length)
adapted = distill(linear, original, tokenizer, beginnings, batch_size=2, minutes=options.minutes, test=0.25)


# 3. The search. A score means something only compared with the simple ways: the original, which cuts each document; the
# mean of its vectors of all pieces; the best piece, which needs an index of many vectors a document; and the words.
@torch.inference_mode()
def vectors(model, some, tokens):
    """Vectors of length 1 of the first tokens of texts, by mean pooling, as all-MiniLM-L6-v2 was trained."""
    means = []
    for text in some:
        ids = tokenizer(text, truncation=True, max_length=tokens, return_tensors="pt")
        means.append(model(ids["input_ids"], attention_mask=ids["attention_mask"]).last_hidden_state.mean(dim=1))
    return torch.nn.functional.normalize(torch.cat(means), dim=1).numpy()


def pieces_of(text, tokens):
    """A text of at most ``length`` tokens in pieces."""
    ids = tokenizer(text, add_special_tokens=False, truncation=True, max_length=length)["input_ids"]
    return [tokenizer.decode(ids[start : start + tokens - 2]) for start in range(0, len(ids), tokens - 2)]


def report(what, similarities):
    ranks = 1 + (similarities > similarities[np.arange(len(wanted)), wanted][:, None]).sum(axis=1)
    print(f"{what}, mean reciprocal rank: {(1 / ranks).mean():.3f}")
    print(f"{what}, found first: {(ranks == 1).mean():.3f}", flush=True)


ours = vectors(adapted, texts, length)
report(f"adapted, {length} tokens", vectors(adapted, asked, 256) @ ours.T)
of_queries = vectors(original, asked, 256)
report("original, first 256 tokens", of_queries @ vectors(original, texts, 256).T)
pieces = [pieces_of(text, 256) for text in texts]
of_pieces = vectors(original, [piece for each in pieces for piece in each], 256)
starts = np.cumsum([0, *map(len, pieces)])[:-1]
means = np.add.reduceat(of_pieces, starts)
means /= np.linalg.norm(means, axis=1, keepdims=True)
report("original, mean of pieces", of_queries @ means.T)
report("original, best piece", np.maximum.reduceat(of_queries @ of_pieces.T, starts, axis=1))
words = TfidfVectorizer(sublinear_tf=True).fit(texts)
report("TF-IDF", (words.transform(asked) @ words.transform(texts).T).toarray())
print("cosine of the adapted vectors to the mean of pieces:", round(float((ours * means).sum(axis=1).mean()), 3))
