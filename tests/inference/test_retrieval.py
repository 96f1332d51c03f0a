"""From queries and documents to vectors by which the first find the second."""

import json
import random
import re
import shutil
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch.utils.checkpoint import checkpoint
from transformers import AutoTokenizer

from torch_linformer.data.reading.collection import load_collection
from torch_linformer.data.reading.data_options import NO_OPTIONS, DataOptions
from torch_linformer.errors import InputError
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.models import LinformerConfig
from torch_linformer.opening.load import load_config
from torch_linformer.opening.sentence_transformers import document_vectors
from torch_linformer.tasks.retrieval_metrics import Judgments, membership, retrieval_metrics
from torch_linformer.training import encoder_baselines as baselines_module
from torch_linformer.training import task_trainers as trainer_module
from torch_linformer.training.train_settings import LEXICAL_WIDTH

SAME = {"device": "cpu", "precision": "fp32"}
# A query and its document share no word: what finds the document has to be learned.
TOPICS = {"beach": ["warm", "sand", "sea"], "storm": ["wet", "grey", "mud"], "frost": ["ice", "cold", "white"]}


def written(path, columns, rows):
    path.write_text("".join(json.dumps(dict(zip(columns, row, strict=True))) + "\n" for row in rows))
    return str(path)


def vectors_of(run, texts, path):
    """What `linformer embed` writes of some texts."""
    file = written(path.with_suffix(".jsonl"), ("text",), [(text,) for text in texts])
    settings = EmbedSettings(model=str(run.folder), files=(file,), precision="fp32")
    answer_files(settings, path.with_suffix(".npy"), device="cpu")
    return np.load(path.with_suffix(".npy"))


@pytest.fixture(scope="module")
def run(train_quickly, tmp_path_factory):
    """A finished run, its options, and the files of queries and documents. Not to be changed."""
    folder, draw = tmp_path_factory.mktemp("search"), random.Random(0)
    documents, queries = [], {"train": [], "test": []}
    for number in range(90):
        first, second = draw.sample(sorted(TOPICS), 2)
        words = draw.choices(TOPICS[first], k=12) + draw.choices(TOPICS[second], k=4) + [f"n{number}"]
        documents.append((number, " ".join(draw.sample(words, len(words)))))
        part = "train" if number < 80 else "test"
        queries[part] += [(f"{first} then {second}", number), (f"{first} with some {second}", number)]
    files = {part: written(folder / f"{part}.jsonl", ("query", "document_id"), rows) for part, rows in queries.items()}
    options = {
        "task": "embed",
        "data": files["train"],
        "test": files["test"],
        "documents": written(folder / "documents.jsonl", ("id", "text"), documents),
        "max_length": 32,
        "max_steps": 80,
        "learning_rate": 0.01,
        "model": None,
        "batch_size": 16,
    }
    shown = train_quickly(folder / "run", moments=folder / "moments", **options)
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    return SimpleNamespace(
        folder=folder / "run",
        moments=folder / "moments",
        options=options,
        shown=shown,
        metrics=metrics,
        queries=queries,
    )


def test_it_learns_what_no_shared_word_tells(run):
    assert run.metrics["ndcg_at_10"] > run.metrics["tfidf_search_ndcg_at_10"] + 0.2
    assert run.metrics["ndcg_at_10"] > run.metrics["bm25_ndcg_at_10"] + 0.2
    queries = {query for query, _ in run.queries["test"]}  # some ask for two documents
    assert run.metrics["queries"] == len(queries) < 20
    assert run.metrics["verdict"].startswith("Better than ")
    assert f"on {len(queries)} queries, more than chance" in run.shown
    assert run.metrics["documents"]["test"] == 10
    assert f" for validation, {len(queries)} held out" in run.shown
    assert f"warning: {len(queries)} of the {len(queries)} queries of the test documents are also in tr" in run.shown


def test_evaluation_gives_the_same_scores(run):
    data, documents = run.options["test"], run.options["documents"]
    task, scores = evaluate(str(run.folder), data, documents=documents, batch_size=7, **SAME)
    assert task.headline == ("ndcg_at_10", "recall_at_10") and "tallies" not in scores
    assert scores["ndcg_at_10"] == pytest.approx(run.metrics["ndcg_at_10"], rel=1e-4)
    _, of_beginnings = evaluate(str(run.folder), data, documents=documents, max_length=4, **SAME)
    assert of_beginnings["ndcg_at_10"] < scores["ndcg_at_10"] - 0.1
    with pytest.raises(InputError, match=r"--max-length 33: .* reads 32 tokens at most"):
        evaluate(str(run.folder), data, documents=documents, max_length=33, **SAME)


def test_other_tasks_have_no_table_of_documents(classifier_run, quick):
    with pytest.raises(InputError, match="--documents is for --task embed"):
        evaluate(str(classifier_run.folder), quick["data"], documents=quick["data"], **SAME)


def test_the_vectors_that_embed_writes_are_those_that_were_scored(run, tmp_path):
    rows = [json.loads(line) for line in Path(run.options["documents"]).read_text().splitlines()][80:]
    documents = vectors_of(run, [row["text"] for row in rows], tmp_path / "documents")
    asked = list(dict.fromkeys(query for query, _ in run.queries["test"]))
    queries = vectors_of(run, asked, tmp_path / "queries")
    assert np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    own = np.array([(number - 80, asked.index(query)) for query, number in run.queries["test"]])
    members = membership(own[:, 0], own[:, 1], (10, len(asked)))
    judgments = Judgments(members, np.arange(len(asked)), np.full(len(asked), -1))
    scores = retrieval_metrics(lambda begin, end: queries[begin:end] @ documents.T, judgments)
    assert scores["ndcg_at_10"] == pytest.approx(run.metrics["ndcg_at_10"], rel=1e-3)


def test_the_folder_is_one_of_sentence_transformers(run):
    modules = json.loads((run.folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize"]
    pooling = json.loads((run.folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_mean_tokens"] is True and pooling["word_embedding_dimension"] == 128
    assert json.loads((run.folder / "sentence_bert_config.json").read_text())["max_seq_length"] == 32


def test_a_killed_run_ends_as_if_it_had_not_been(run, train_quickly, tmp_path):
    for moment in ("40", "trained"):
        output = tmp_path / moment
        shutil.copytree(run.moments / moment, output)
        train_quickly(output, resume=True, **run.options)
        whole, resumed = (load_file(folder / "model.safetensors") for folder in (run.folder, output))
        assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_long_batches_are_learned_in_turn(run, train_quickly, tmp_path, monkeypatch):
    """Two documents of 32 tokens at once; then the two queries of each of the batch."""
    parts = []

    def counting(embed, ids, *others, **options):
        parts.append(len(ids))
        return checkpoint(embed, ids, *others, **options)

    monkeypatch.setattr(trainer_module.RetrievalTrainer, "most_at_once", 64)
    monkeypatch.setattr(trainer_module, "checkpoint", counting)
    train_quickly(tmp_path / "run", **{**run.options, "max_steps": 1, "baseline": False})
    for _ in range(2):  # after two documents whose step is measured, twice
        parts = parts[parts.index(2, 1) :]
    assert parts[:8] == [2] * 8 and sum(parts[8:]) == 32


def test_a_start_that_is_an_embedder_is_to_be_beaten_too(run, train_quickly, tmp_path):
    options = {**run.options, "max_steps": 1, "from_model": str(run.folder), "freeze": False, "learning_rate": 1e-9}
    options |= {"tokenizer": "bpe:8192", "k": None, "max_length": None}
    shown = train_quickly(tmp_path / "run", **options)
    assert "nothing of it new" in shown and "the embedder's first 512 tokens" in shown
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    # Nothing was learned and nothing is longer than a chunk: all four are the same vectors.
    for way in ("beginning_vector", "chunk_mean", "best_chunk"):
        assert metrics[f"{way}_ndcg_at_10"] == pytest.approx(metrics["ndcg_at_10"], abs=1e-6)


def test_chunks_of_an_embedder(run, tmp_path, monkeypatch):
    """Beside the same from vectors of all chunks as texts of their own."""
    monkeypatch.setattr(baselines_module, "CHUNK", 4)  # two words between the special tokens
    monkeypatch.setattr(baselines_module, "BEGINNING", 32)
    pieces = [" mud ice", " grey sea", " sand cold", " white wet", " warm mud", " sea sand"]
    orders = [0, 1, 1, 2], [3, 4, 3], [5, 5]  # no chunk in two documents, whose best ones would be the same
    texts = ["".join(pieces[number] for number in order) for order in orders]
    queries = ["storm then frost", "frost then beach", "beach then frost"]
    pairs = written(tmp_path / "p.jsonl", ("query", "document"), list(zip(queries, texts, strict=True)))
    documents = load_collection(pairs, options=NO_OPTIONS).dataset
    found = baselines_module.embedder_baselines(str(run.folder), documents, **SAME)

    chunks, wanted = vectors_of(run, pieces, tmp_path / "pieces"), vectors_of(run, queries, tmp_path / "queries")
    best = [(wanted @ chunks[order].T).max(axis=1) for order in orders]
    means = np.stack([chunks[order].mean(axis=0) for order in orders])
    means /= np.linalg.norm(means, axis=1, keepdims=True)
    judgments = Judgments.of_groups(np.arange(3), np.arange(3), np.full(3, -1))
    for way, scores in (("best_chunk", np.stack(best, axis=1)), ("chunk_mean", wanted @ means.T)):
        by_hand = retrieval_metrics(lambda begin, end, scores=scores: scores[begin:end], judgments)
        assert found[way]["tallies"]["ndcg_at_10"].tolist() == by_hand["tallies"]["ndcg_at_10"].tolist()
    read = torch.cat(list(baselines_module.embedder_vectors(str(run.folder), documents, **SAME).chunks)).numpy()
    assert np.abs(read - chunks[[*orders[0], *orders[1], *orders[2]]]).max() < 1e-5


def test_a_classifier_is_no_embedder(classifier_run):
    assert baselines_module.embedder_baselines(str(classifier_run.folder), None, **SAME) == {}


def test_the_original_of_an_adapted_model(tmp_path):
    (tmp_path / "adapted").mkdir()
    (tmp_path / "adapted" / "adaptation.json").write_text(json.dumps({"source": str(tmp_path / "original")}))
    assert baselines_module.original_of(str(tmp_path / "adapted")) == str(tmp_path / "adapted")  # it is gone
    (tmp_path / "original").mkdir()
    assert baselines_module.original_of(str(tmp_path / "adapted")) == str(tmp_path / "adapted")  # it cannot be opened
    (tmp_path / "original" / "config.json").write_text(json.dumps({"model_type": "bert"}))
    assert baselines_module.original_of(str(tmp_path / "adapted")) == str(tmp_path / "original")


def test_texts_with_labels(weather, write_csv, train_quickly, tmp_path):
    data = write_csv(tmp_path / "t.csv", weather(60, seed=4))
    shown = train_quickly(tmp_path / "run", task="embed", data=data, test="0.3", max_steps=30, learning_rate=0.01)
    assert "labels from column 'label'" in shown and "on 18 queries" in shown
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["ndcg_at_10"] > 0.5  # by chance 0.35
    _, scores = evaluate(str(tmp_path / "run"), data, options=DataOptions(label_column="label"), **SAME)
    assert scores["queries"] == 60


@pytest.fixture(scope="module")
def worded(run, train_quickly, tmp_path_factory):
    """A finished run whose vectors have a lexical part: queries that repeat a rare word of their document."""
    folder = tmp_path_factory.mktemp("worded")
    documents = [json.loads(line) for line in Path(run.options["documents"]).read_text().splitlines()]
    rows = {"train": [], "test": []}
    for document in documents:
        part = "train" if document["id"] < 80 else "test"
        rows[part] += [(f"find n{document['id']} there", document["text"])]
    files = {part: written(folder / f"{part}.jsonl", ("query", "document"), each) for part, each in rows.items()}
    options = {**run.options, "data": files["train"], "test": files["test"], "documents": None, "max_steps": 2}
    options |= {"lexical": "always"}
    shown = train_quickly(folder / "run", **options)
    metrics = json.loads((folder / "run" / "metrics.json").read_text())
    return SimpleNamespace(folder=folder / "run", options=options, shown=shown, metrics=metrics, rows=rows["test"])


def test_words_are_a_part_of_a_vector(worded, tmp_path):
    """It is scored, written by embed, and saved."""
    assert "; kept: words by" in worded.shown and worded.metrics["method"].endswith("words only")
    assert worded.metrics["ndcg_at_10"] > worded.metrics["rest_ndcg_at_10"] + 0.2
    assert {"lexical_ndcg_at_10", "tfidf_search_ndcg_at_10"} < set(worded.metrics)
    assert "As good as TF-IDF" in worded.metrics["verdict"]
    assert worded.metrics["ndcg_at_10"] == 1 and "To try next" not in worded.metrics["verdict"]  # nothing is better
    assert re.search(r"TF-IDF and BM25, *", worded.shown) and re.search(r"[+-]\d\.\d{4} \(± \d\.\d{4}\)", worded.shown)
    documents = vectors_of(worded, [text for _, text in worded.rows], tmp_path / "documents")
    queries = vectors_of(worded, [query for query, _ in worded.rows], tmp_path / "queries")
    assert documents.shape == (10, 128 + LEXICAL_WIDTH) and np.allclose(np.linalg.norm(documents, axis=1), 1, atol=1e-5)
    judgments = Judgments.of_groups(np.arange(10), np.arange(10), np.full(10, -1))
    scores = retrieval_metrics(lambda begin, end: queries[begin:end] @ documents.T, judgments)
    # What is written has a sketch of the words, and scores count them one by one.
    assert scores["ndcg_at_10"] == pytest.approx(worded.metrics["ndcg_at_10"], abs=0.1)
    _, again = evaluate(str(worded.folder), worded.options["test"], **SAME)
    assert again["ndcg_at_10"] == pytest.approx(worded.metrics["ndcg_at_10"], rel=1e-4)


def test_words_of_a_document_are_those_of_all_of_it(worded, tmp_path):
    """Where it is cut, beside one that is not, and in windows, of which each has its own."""
    long, short = " ".join(f"n{number} wet mud sand" for number in range(30)), "n3 wet"
    lexical = document_vectors(str(worded.folder), load_config(str(worded.folder))).lexical
    ids = AutoTokenizer.from_pretrained(worded.folder)(long, return_tensors="pt")["input_ids"]
    sketch = (lexical.sketch(ids)[0] * lexical.share**0.5).numpy()
    cut, whole = vectors_of(worded, [long, short], tmp_path / "cut")
    assert ids.shape[1] > worded.options["max_length"] and np.allclose(cut[128:], sketch, atol=1e-6)
    assert np.allclose(whole, vectors_of(worded, [short], tmp_path / "short"), atol=1e-6)
    file = written(tmp_path / "long.jsonl", ("text",), [(long,)])
    settings = EmbedSettings(model=str(worded.folder), files=(file,), overflow="windows", precision="fp32")
    answer_files(settings, tmp_path / "long.npy", device="cpu")
    (vector,) = np.load(tmp_path / "long.npy")
    # But for words that a window cuts.
    assert ((vector[128:] != 0) == (sketch != 0)).mean() > 0.95 and np.linalg.norm(vector) == pytest.approx(1)


def test_a_word_beyond_what_the_model_reads_is_found(worded, train_quickly, tmp_path):
    """By a run whose documents are all cut, and by its folder."""
    cut = {"n" + str(number): "wet mud sand " * 12 + f"n{number}" for number in range(100)}
    rows = [(f"find {name} there", text) for name, text in cut.items()]
    files = {
        part: written(tmp_path / f"{part}.jsonl", ("query", "document"), each)
        for part, each in (("train", rows[:80]), ("test", rows[80:]))
    }
    options = {**worded.options, "data": files["train"], "test": files["test"], "max_length": 16, "k": "6"}
    train_quickly(tmp_path / "run", **options)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["ndcg_at_10"] > 0.95 > 0.5 > metrics["rest_ndcg_at_10"]
    _, again = evaluate(str(tmp_path / "run"), files["test"], **SAME)
    assert again["ndcg_at_10"] == pytest.approx(metrics["ndcg_at_10"], rel=1e-6)


def test_cards_run_with_words_and_without(run, worded, run_card):
    assert "pipeline_tag: sentence-similarity" in (run.folder / "README.md").read_text()
    for folder in (run.folder, worded.folder):
        ran = run_card(folder)
        assert ran.returncode == 0, ran.stderr


def test_modules_of_vectors_with_words(worded):
    modules = json.loads((worded.folder / "modules.json").read_text())
    assert [module["path"] for module in modules] == ["", "1_Pooling", "2_Normalize", "3_LexicalVector"]
    assert modules[3]["type"] == "torch_linformer.models.lexical_vector.LexicalVector"


def test_a_start_with_words_is_measured_with_them(worded, train_quickly, tmp_path):
    """Its chunks too; the new model gets words of its own."""
    options = {**worded.options, "max_steps": 1, "from_model": str(worded.folder), "freeze": False}
    options["learning_rate"] = 1e-9
    options |= {"tokenizer": "bpe:8192", "k": None, "max_length": None}
    train_quickly(tmp_path / "run", **options)
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert metrics["beginning_vector_ndcg_at_10"] == pytest.approx(worded.metrics["ndcg_at_10"], abs=1e-6)
    assert metrics["ndcg_at_10"] == pytest.approx(worded.metrics["ndcg_at_10"], abs=1e-6)


def test_parts_that_were_weighed_at_length_one_keep_it(worded, tmp_path):
    settings = EmbedSettings(model=str(worded.folder), files=(worded.options["test"],), normalize=False)
    with pytest.raises(InputError, match="--no-normalize: a part of these vectors is made of words"):
        answer_files(settings, tmp_path / "v.npy", device="cpu")


def test_a_lexical_part_that_is_damaged(worded, tmp_path):
    folder = shutil.copytree(worded.folder, tmp_path / "model") / "3_LexicalVector"
    settings = EmbedSettings(model=str(folder.parent), files=(worded.options["test"],))
    (folder / "config.json").write_text('{"width": 512}')
    with pytest.raises(InputError, match="3_LexicalVector cannot be read"):
        answer_files(settings, tmp_path / "v.npy", device="cpu")
    (folder / "config.json").unlink()
    with pytest.raises(InputError, match=r"3_LexicalVector lacks config.json or model.safetensors"):
        answer_files(settings, tmp_path / "v.npy", device="cpu")


@torch.no_grad()
def test_an_exported_model_makes_the_same_vectors(worded, tmp_path):
    """For any number of rows, as a folder that goes on being one of sentence-transformers."""
    assert export_model(str(worded.folder), tmp_path / "program", "torch") < 1e-5
    rows = AutoTokenizer.from_pretrained(worded.folder)(
        [text for text, _ in worded.rows], padding=True, return_tensors="pt"
    )
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    _, vectors = program(rows["input_ids"], rows["attention_mask"])
    written_vectors = vectors_of(worded, [text for text, _ in worded.rows], tmp_path / "queries")
    assert np.allclose(vectors, written_vectors, atol=1e-5)
    config = LinformerConfig.from_pretrained(worded.folder)
    assert document_vectors(str(tmp_path / "program"), config).width(128) == 128 + LEXICAL_WIDTH
