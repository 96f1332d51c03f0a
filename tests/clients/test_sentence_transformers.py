import json
from itertools import pairwise

import numpy as np
import pytest
import torch
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import (
    CachedGISTEmbedLoss,
    GISTEmbedLoss,
    MultipleNegativesRankingLoss,
)
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch.nn import functional as F
from transformers import BertTokenizer

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import run_adaptation
from torch_linformer.inference import Embedder
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.models import LinformerModel
from torch_linformer.training.task_trainers import contrastive_loss
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings


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


def test_a_cached_loss_with_a_guide(config, tokenizer, texts, tmp_path):
    """The guide is given the features that the model's modules have filled already."""
    torch.manual_seed(0)
    LinformerModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    embedders = [
        SentenceTransformer(modules=[Transformer(str(tmp_path), max_seq_length=32), Pooling(24)], device="cpu").eval()
        for _ in range(2)
    ]
    losses = []
    for loss in (GISTEmbedLoss(*embedders), CachedGISTEmbedLoss(*embedders, mini_batch_size=3)):
        features = [embedders[0].preprocess(half) for half in (texts[0][:6], texts[0][6:12])]
        losses.append(loss(features, None))
    assert losses[0].item() == pytest.approx(losses[1].item(), rel=1e-5)


@pytest.mark.parametrize("lexical", ["none", "always"])
def test_a_folder_of_train_task_embed_is_one_of_sentence_transformers(texts, tmp_path, lexical):
    """The vectors that it gives are those of ``linformer embed``; those with words need a class of this package.

    Of a text that is cut, ``linformer embed`` counts all words, sentence-transformers those that it reads.
    """
    pairs = tmp_path / "pairs.jsonl"
    rows = [{"query": f"what is {label}", "document": text} for text, label in zip(*texts, strict=True)]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"max_length": 24, "tokenizer": "bpe:300", "max_steps": 2, "baseline": False, "probe": False, "seed": 1}
    options |= {"lexical": lexical}
    train(TrainSettings(task="embed", data=str(pairs), output=str(tmp_path / "run"), precision="fp32", **options))
    documents = tmp_path / "documents.jsonl"
    documents.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[0]))
    settings = EmbedSettings(model=str(tmp_path / "run"), files=(str(documents),), precision="fp32")
    answer_files(settings, tmp_path / "vectors.npy", device="cpu")
    embedder = SentenceTransformer(str(tmp_path / "run"), device="cpu", trust_remote_code=lexical != "none")
    assert embedder.max_seq_length == 24
    marked = ["wet <mask> mud", "sand</s><pad><pad> and<sep>"]
    read = Embedder(str(tmp_path / "run"), device="cpu", precision="fp32")({"text": marked})
    assert np.allclose(embedder.encode(marked), read["embedding"], atol=1e-5)
    vectors = embedder.encode(texts[0])
    cut = np.array([len(ids) > 24 for ids in embedder.tokenizer(texts[0])["input_ids"]])
    alike = np.isclose(vectors, np.load(tmp_path / "vectors.npy"), atol=1e-5).all(axis=1)
    assert 0 < cut.sum() < len(cut) and np.array_equal(alike, ~cut if lexical == "always" else np.ones_like(cut))
    assert vectors.shape[1] == embedder.get_embedding_dimension()
    embedder.save_pretrained(str(tmp_path / "saved"))
    saved = SentenceTransformer(str(tmp_path / "saved"), device="cpu", trust_remote_code=lexical != "none")
    assert np.allclose(saved.encode(texts[0]), vectors, atol=1e-5)


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("tokenizer_class", [BertTokenizer, None], ids=["bert", "general"])
def test_texts_are_read_by_both_as_an_original_of_sentence_transformers_says(
    save_source, word_tokenizer, tmp_path, tokenizer_class
):
    """In lower case, after its default prompt, of its length, before adapting and after: saved by either, too."""
    special = [f"[{name}]" for name in ("PAD", "UNK", "CLS", "SEP", "MASK")]
    words = [*special, "wet", "Wet", "mud", "Mud", "sea", "ice", "é", "É", "passage", "query", ":", "[", "]"]
    roles = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    tokenizer = word_tokenizer(words, **roles)
    if tokenizer_class is not None:
        tokenizer = tokenizer_class(vocab={word: n for n, word in enumerate(words)}, do_lower_case=False)
    source = save_source(tmp_path / "source", tokenizer, pooling="mean_tokens")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 13, "do_lower_case": true}')
    prompts = {"prompts": {"document": "Passage : ", "query": "query : "}, "default_prompt_name": "document"}
    (source / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    texts = ["Wet Mud ice", "wet mud ice", "sea [SEP] É [MASK] [PAD]", "ice sea " * 20]
    data = tmp_path / "texts.csv"
    data.write_text("text\n" + "".join(f"{words[5 + n % 8]} sea {words[5 + n % 7]}\n" for n in range(250)))
    options = {
        "max_length": 13,
        "k": 4,
        "window": 2,
        "exact_below": 0,
        "steps": 1,
        "device": "cpu",
        "precision": "fp32",
    }
    run_adaptation(str(source), AdaptSettings(data=str(data), output=str(tmp_path / "adapted"), **options))
    original = SentenceTransformer(str(source), device="cpu")
    adapted = SentenceTransformer(str(tmp_path / "adapted"), device="cpu")
    assert adapted.max_seq_length == original.max_seq_length == 13 and adapted.prompts == original.prompts
    plain = [text for text in texts if "[" not in text]  # the original reads special tokens in a text
    read = [embedder.preprocess(plain, prompt="Passage : ")["input_ids"].tolist() for embedder in (original, adapted)]
    assert read[0] == read[1]
    adapted.save_pretrained(str(tmp_path / "saved"))
    for folder in ("adapted", "saved"):
        vectors = SentenceTransformer(str(tmp_path / folder), device="cpu").encode(texts)
        found = Embedder(str(tmp_path / folder), device="cpu", precision="fp32")({"text": texts})
        assert np.allclose(vectors, found["embedding"], atol=1e-5) and np.allclose(vectors[0], vectors[1], atol=1e-6)
        assert not np.allclose(vectors[0], vectors[3], atol=1e-2)


def test_the_loss_is_that_of_sentence_transformers():
    """With one query a document; its gradients too, in float64."""
    generator = torch.Generator().manual_seed(0)
    vectors = [torch.randn(6, 8, generator=generator, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    queries, documents = (F.normalize(each, dim=-1) for each in vectors)
    loss = MultipleNegativesRankingLoss(torch.nn.Identity())
    theirs = loss.compute_loss_from_embeddings([queries, documents], torch.arange(6))
    ours = contrastive_loss(queries, documents, torch.arange(6), torch.arange(6))
    assert ours.item() == pytest.approx(theirs.item(), rel=1e-12)
    gradients = (torch.autograd.grad(each, vectors, retain_graph=True) for each in (theirs, ours))
    for wanted, found in zip(*gradients, strict=True):
        assert torch.allclose(wanted, found, rtol=1e-10, atol=1e-14)
