from itertools import pairwise

import numpy as np
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

from torch_linformer.models import LinformerModel


def likeness(embedder, texts, labels):
    """Mean cosine of texts of one topic, less that of texts of two."""
    vectors = embedder.encode(texts, normalize_embeddings=True)
    cosines, same = vectors @ vectors.T, np.equal.outer(labels, labels)
    return cosines[same].mean() - cosines[~same].mean()


def test_a_linformer_as_the_transformer_of_an_embedder(config, tokenizer, texts, tmp_path):
    torch.manual_seed(0)
    LinformerModel(config).save_pretrained(tmp_path / "encoder")
    tokenizer.save_pretrained(tmp_path / "encoder")
    encoder = Transformer(str(tmp_path / "encoder"), max_seq_length=32)
    embedder = SentenceTransformer(modules=[encoder, Pooling(24)], device="cpu")
    before = likeness(embedder, *texts)
    rain = [text for text, label in zip(*texts, strict=True) if label == 0]
    sun = [text for text, label in zip(*texts, strict=True) if label == 1]
    # Pairs of one topic: the other pairs of a batch are the negatives, about half of them rightly.
    pairs = [*pairwise(rain), *pairwise(sun)]
    trainer = SentenceTransformerTrainer(
        model=embedder,
        args=SentenceTransformerTrainingArguments(
            output_dir=str(tmp_path / "run"),
            max_steps=30,
            per_device_train_batch_size=16,
            learning_rate=5e-3,
            use_cpu=True,
            report_to="none",
            save_strategy="no",
            disable_tqdm=True,
        ),
        train_dataset=Dataset.from_dict({"anchor": [a for a, _ in pairs], "positive": [b for _, b in pairs]}),
        loss=MultipleNegativesRankingLoss(embedder),
    )
    trainer.train()
    after = likeness(embedder, *texts)
    assert after > before + 0.3, (before, after)
    embedder.save_pretrained(str(tmp_path / "saved"))
    loaded = SentenceTransformer(str(tmp_path / "saved"), device="cpu")
    assert np.allclose(loaded.encode(texts[0]), embedder.encode(texts[0]), atol=1e-5)
