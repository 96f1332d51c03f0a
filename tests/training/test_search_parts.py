"""The lexical part of vectors is weighed on the validation documents, and kept where they are better for it."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from torch.nn.utils.rnn import pad_sequence

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.tasks.retrieval import Retrieval, judgments_of
from torch_linformer.training.search_parts import fitted_vector, sketches, weigh_vectors
from torch_linformer.training.task_trainers import SCALE

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
            task=task, args=SimpleNamespace(device="cpu"), answers_to=lambda examples: vectors[id(examples)]
        )
        words = fitted_vector(task, collection(0, labels=labels), task.encoder(32), CHANNELS, 256, seed=0)
        return trainer, words, *parts

    task.vectors.lexical = None
    return prepare


def asked_nothing(texts):
    """Documents without queries, from which no weights can be learned."""
    return Dataset.from_list([{"text": text, "queries": []} for text in texts])


def without_a_sketch(words):
    """The same with a column for each token."""
    size = len(words.counts_as)
    exact = LexicalVector(size, CHANNELS, size)
    exact.load_state_dict({**words.state_dict(), "columns": torch.arange(size)})
    return exact


def by_definition(task, examples, words, rest, a, b):
    """The loss of the factors, a query at a time."""
    judgments, documents = judgments_of(examples.documents), len(examples.documents)
    first, losses = 0 if "label" in examples.documents.column_names else documents, []
    for query, group in enumerate(judgments.queries):
        scores = [a * words[first + query] @ words[j] + b * rest[first + query] @ rest[j] for j in range(documents)]
        there = [j for j in range(documents) if j != judgments.itself[query]]
        own = [j for j in there if judgments.members[j, group]]
        losses.append(math.log(sum(math.exp(scores[j]) for j in there) / sum(math.exp(scores[j]) for j in own)))
    return sum(losses) / len(losses)


@pytest.mark.parametrize("labels", [False, True])
def test_the_weights_have_the_least_loss(task, prepared, labels):
    trainer, words, validation, test = prepared(good=1.0, labels=labels)
    found = weigh_vectors(trainer, words, validation, test, always=True)
    known, rest = sketches(words, validation), trainer.answers_to(validation)
    number = len(judgments_of(validation.documents).queries)

    def loss(a, b):
        penalty = ((a / SCALE - 1) ** 2 + (b / SCALE - 1) ** 2) / number
        return by_definition(task, validation, known, rest, a, b) + penalty

    a, b = found.factors
    assert found.losses["both"] == pytest.approx(by_definition(task, validation, known, rest, a, b), rel=1e-5)
    if a > 0 and b > 0:
        least = loss(a, b)
        assert all(loss(a * s, b * t) >= least - 1e-7 for s, t in ((0.9, 1), (1.1, 1), (1, 0.9), (1, 1.1)))
        assert words.share == pytest.approx(a / (a + b))


def test_it_is_kept_where_words_find_what_the_rest_does_not(task, prepared):
    trainer, words, validation, test = prepared()
    found = weigh_vectors(trainer, words, validation, test, always=False)
    assert found.kept and found.helps and task.vectors.lexical is words
    assert found.scores is found.test["both"]
    assert found.scores["ndcg_at_10"] > found.test["rest"]["ndcg_at_10"] + 0.3
    assert found.describe().startswith("lexical part kept, and nothing else")  # random vectors add nothing
    assert found.name("Linformer") == "lexical part only"


def test_it_is_left_out_where_the_rest_finds_all(task, prepared):
    trainer, words, validation, test = prepared(good=100.0)
    found = weigh_vectors(trainer, words, validation, test, always=False)
    assert not found.kept and task.vectors.lexical is None
    assert found.scores is found.test["rest"] and found.describe().startswith("lexical part left out")
    assert weigh_vectors(trainer, words, validation, test, always=True).kept


def test_it_is_left_out_where_the_score_is_worse_by_more_than_chance(task, prepared, monkeypatch):
    trainer, words, validation, test = prepared()
    scores = task.scores

    def worse(vectors, documents):
        """Vectors of both parts find what is farthest away."""
        turned = vectors.shape[1] > 256
        return scores(np.concatenate([vectors[:40] * (-1) ** turned, vectors[40:]]), documents)

    monkeypatch.setattr(task, "scores", worse)
    found = weigh_vectors(trainer, words, validation, test, always=False)
    assert found.helps and not found.kept
    assert "as ndcg@10 on validation, which picks the checkpoint, is worse with it by more th" in found.describe()


def test_the_weights_of_tokens_are_those_of_the_documents(task):
    documents = asked_nothing(["baro dode", "baro", "baro kete kete"])
    words = fitted_vector(task, documents, task.encoder(32), CHANNELS, 256, seed=0)
    special = set(task.tokenizer.all_special_ids)
    having = [{*ids} - special for ids in task.tokenizer(documents["text"][:])["input_ids"]]
    for token in set(range(len(task.tokenizer))) - special:
        counted = int(words.counts_as[token])
        number = sum(any(int(words.counts_as[other]) == counted for other in ids) for ids in having)
        assert counted < 0 or float(words.idf[counted]) == pytest.approx(math.log(4 / (1 + number)))
    assert {float(words.idf[words.counts_as[token]]) for token in set.intersection(*having)} == {0.0}
    assert all(int(words.counts_as[special]) == -1 for special in task.tokenizer.all_special_ids)


def test_tokens_that_weigh_much_share_columns_with_few(task):
    draw, columns = np.random.default_rng(0), 16
    often = 1 / np.arange(1, len(WORDS) + 1)
    texts = [" ".join(draw.choice(WORDS, 12, p=often / often.sum())) for _ in range(40)]
    words = fitted_vector(task, asked_nothing(texts), task.encoder(32), CHANNELS, columns, seed=0)
    exact = without_a_sketch(words)
    rows = [torch.tensor([ids]) for ids in task.tokenizer(texts)["input_ids"]]
    loads = torch.cat([exact.sketch(row) for row in rows]).square().mean(dim=0)
    tokens = words.counts_as.unique()[1:]  # without "nothing"
    sums = torch.zeros(columns).index_add(0, words.columns[tokens], loads[tokens])
    assert int((loads > 0).sum()) > 2 * columns and loads.max() > 4 * loads[loads > 0].min()
    assert sums.max() <= 4 / 3 * max(loads.max(), sums.mean())  # what this order of filling promises
    unseen = tokens[loads[tokens] == 0]
    assert len(unseen) > columns and len(words.columns[unseen].unique()) > columns / 2  # not all in the emptiest


def test_sketches_of_fitted_columns_err_less(task):
    """Than those of hashes: products of the sketches of documents, beside products without a sketch."""
    fitted = fitted_vector(task, collection(0), task.encoder(32), CHANNELS, 64, seed=0)
    exact, hashed = without_a_sketch(fitted), LexicalVector(len(task.tokenizer), CHANNELS, 64)
    hashed.load_state_dict({**fitted.state_dict(), "columns": hashed.columns})
    rows = [torch.tensor([ids]) for ids in task.tokenizer(collection(4)["text"][:])["input_ids"]]
    found = {each: torch.cat([each.sketch(row) for row in rows]) for each in (fitted, hashed, exact)}
    products = {each: sketches @ sketches.T for each, sketches in found.items()}
    errors = [float((products[each] - products[exact]).square().mean()) for each in (fitted, hashed)]
    assert errors[0] < 0.7 * errors[1]


@pytest.mark.parametrize("read", [6, 64])
def test_sketches_are_those_of_the_whole_rows(task, read):
    examples, whole = (task.examples(collection(3), task.encoder(length, whole=True)) for length in (read, 64))
    assert any(examples.windows["whole_ids"][:]) == (read == 6)
    words = LexicalVector(len(task.tokenizer), CHANNELS, 64)
    words.idf.fill_(1.0)
    words.counts_as.copy_(torch.arange(len(task.tokenizer)))
    rows = [torch.tensor(row) for row in whole.windows["input_ids"]]
    padded = pad_sequence([row.flip(0) for row in rows], batch_first=True).flip(1)  # on the other side
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True).flip(1)
    assert np.allclose(sketches(words, examples), words.sketch(padded, mask).numpy(), atol=1e-6)
