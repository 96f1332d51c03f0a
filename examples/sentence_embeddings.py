"""sentence-transformers: a Linformer as the Transformer module of an embedder, trained with a contrastive loss.

Neighbouring pieces of source are the pairs that shall be alike; those of one package become alike with them.
Install: pip install "torch-linformer[train]" sentence-transformers
Run: python examples/sentence_embeddings.py
"""

import tempfile
from itertools import pairwise

import numpy as np
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from transformers import set_seed

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerModel

train, held_out = documents("asyncio", "email")
texts, labels = [row["text"] for row in held_out], np.array([row["label"] for row in held_out])
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)
pairs = [(a["text"], b["text"]) for a, b in pairwise(train) if a["label"] == b["label"]]


def similarity(embedder):
    """Mean cosine of two held-out pieces of one package, minus that of pieces of different packages."""
    vectors = embedder.encode(texts, normalize_embeddings=True)
    cosines, same = vectors @ vectors.T, np.equal.outer(labels, labels)
    return round(float(cosines[same].mean() - cosines[~same].mean()), 4)


with tempfile.TemporaryDirectory() as folder:
    set_seed(0)
    config = LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=128,
        max_position_embeddings=256,
        k=64,
    )
    LinformerModel(config).save_pretrained(f"{folder}/encoder")
    tokenizer.save_pretrained(f"{folder}/encoder")
    encoder = Transformer(f"{folder}/encoder", max_seq_length=256)
    embedder = SentenceTransformer(modules=[encoder, Pooling(config.hidden_size)])
    print("similarity of a package before training:", similarity(embedder))

    trainer = SentenceTransformerTrainer(
        model=embedder,
        args=SentenceTransformerTrainingArguments(
            folder,
            num_train_epochs=1,
            per_device_train_batch_size=16,
            learning_rate=2e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]}),
        loss=MultipleNegativesRankingLoss(embedder),
    )
    trainer.train()
    print("similarity of a package after training:", similarity(embedder))

    embedder.save_pretrained(f"{folder}/embedder")
    loaded = SentenceTransformer(f"{folder}/embedder")
    difference = np.abs(loaded.encode(texts) - embedder.encode(texts)).max()
    print("largest difference of a number once loaded:", float(difference))
