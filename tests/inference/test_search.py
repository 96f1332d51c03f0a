"""Search: scores by a plain computation, passages, and a folder that reads what is new and never answers wrongly."""

import json
import shutil
from itertools import pairwise

import numpy as np
import pytest
import torch
from pyarrow import feather
from sklearn.feature_extraction.text import TfidfVectorizer
from torch.nn import functional as F
from transformers import AutoModel, AutoTokenizer

from torch_linformer import Embedder, Searcher
from torch_linformer.errors import InputError
from torch_linformer.inference import search
from torch_linformer.models.pieces import PieceVectors
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.load import load_config
from torch_linformer.opening.sentence_transformers import write_sentence_modules

SAME = {"device": "cpu", "precision": "fp32", "batch_size": 4}
TEXTS = {
    "beach": "warm sand\nand the white sea",
    "code": "def splitName(text):\n    return text.split('_')  # of a longer text, " + "x" * 90,
    "frost": "cold ice, white and cold; cold and white ice",
    "greek": "η θάλασσα είναι ζεστή",
    "kanji": "海は暖かい。砂は白い。",
    "short": "mud",
}
QUERIES = ["white sea", "split a name", "θάλασσα", "暖かい", "nothing of it"]


@torch.no_grad()
def vectors_by_hand(folder, text, most=None):
    """Of windows of 14 bytes, or of their means."""
    model, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    begin, *ids, end = tokenizer(text)["input_ids"]
    windows = [[begin, *ids[at : at + 14], end] for at in range(0, len(ids), 14)]
    states = [model(torch.tensor([window])).last_hidden_state[0] for window in windows]
    pieces = min(most or len(states), len(states))
    together = [
        torch.cat(part)
        for part in ([s for n, s in enumerate(states) if n * pieces // len(states) == p] for p in range(pieces))
    ]
    return F.normalize(torch.stack([part.mean(dim=0) for part in together]), dim=1).numpy()


@pytest.mark.parametrize("most", [None, 1, 2])
def test_scores_are_those_of_a_plain_computation(plain_encoder, most):
    def words(text):
        words = search.search_words(text)
        return [*words, *(f"{one} {two}" for one, two in pairwise(words))]

    tfidf = TfidfVectorizer(analyzer=words, sublinear_tf=True)
    of_documents = tfidf.fit_transform(TEXTS.values()).toarray()
    documents = [vectors_by_hand(plain_encoder, text, most) for text in TEXTS.values()]

    def similarities(query):
        asked = vectors_by_hand(plain_encoder, query, most)
        weights = {word: 1 + np.log(words(query).count(word)) for word in words(query)}
        unknown = 1 + np.log(1 + len(TEXTS))  # the idf of words that no document has, a part of the query's length
        idf = dict(zip(tfidf.get_feature_names_out(), tfidf.idf_, strict=True))
        weights = {word: weight * idf.get(word, unknown) for word, weight in weights.items()}
        length = np.sqrt(sum(weight**2 for weight in weights.values()))
        columns = {word: column for word, column in tfidf.vocabulary_.items() if word in weights}
        said = sum((of_documents[:, column] * weights[word] / length for word, column in columns.items()), np.zeros(6))
        return np.array([(asked @ vectors.T).max() for vectors in documents]), said

    middles = ["and the white sea", "    return text.split('_')  # of a longer text,", *[*TEXTS.values()][2:]]
    of_lines = [
        [np.delete(values, number).std() for values in similarities(line)] for number, line in enumerate(middles)
    ]
    spreads = (np.sum(of_lines, axis=0) + 10 * np.array([0.08, 0.007])) / 16
    found = Searcher(plain_encoder, TEXTS, vectors=most, **SAME).search(QUERIES, top_k=6)
    for query, hits in zip(QUERIES, found, strict=True):
        near, said = similarities(query)
        scores = (near - near.mean()) / spreads[0] + (said - said.mean()) / spreads[1]
        assert [hit.document for hit in hits] == np.argsort(-scores, kind="stable").tolist()
        for hit in hits:
            expected = (scores[hit.document], near[hit.document], said[hit.document])
            np.testing.assert_allclose((hit.score, hit.similarity, hit.words), expected, rtol=1e-3, atol=1e-4)
    assert [hits[0].id for hits in found[:4]] == ["beach", "code", "greek", "kanji"]


def test_passages_are_the_lines_that_match(plain_encoder):
    lines = [f"line {number} says that nothing happened there" for number in range(40)]
    lines[25] = "    the parcel came in splitBoxes"
    searcher = Searcher(plain_encoder, {"long": "\n".join(lines), **TEXTS}, **SAME)
    for query in ("parcel", "boxes of a parcel", "SPLIT boxes", "says"):
        for hit in searcher.search([query], top_k=7)[0]:
            text = searcher.text(hit.document)
            assert text[hit.start :].startswith(hit.passage) and 0 < len(hit.passage) <= 300 and hit.passage.strip()
            if hit.id == "long" and query != "says":
                assert lines[25] in hit.passage
    unbroken = Searcher(plain_encoder, ["海" * 500 + "砂は白い" + "海" * 500], **SAME).search(["砂"])[0][0]
    assert "砂" in unbroken.passage and len(unbroken.passage) <= 300


def test_where_no_word_matches_the_nearest_vector_shows_its_lines(plain_encoder):
    text = "\n".join(["aaaaaaaaaaaaa", "bbbbbbbbbbbbb", "ccccccccccccc"] * 40)  # a window each
    (hit,) = Searcher(plain_encoder, [text], **SAME).search(["bbbbbbbbb bbb"])[0]
    assert hit.words == 0 and hit.passage.startswith("bbbbbbbbbbbbb") and hit.score == 0  # there is nothing else


def test_documents_without_text_twice_and_alone(plain_encoder):
    said, read = [], []
    texts = ["wet mud", "", "warm sand", "wet mud", " \n"]
    searcher = Searcher(plain_encoder, texts, say=said.append, on_document=lambda *at: read.append(at), **SAME)
    assert said[1:] == ["left out 2 documents without text", "reading 2 documents of 3"] and read == [(1, 2), (2, 2)]
    assert [hit.id for hit in searcher.search(["mud"])[0]] == ["0", "3", "2"]
    assert [hit.id for hit in searcher.search(["mud"], top_k=1)[0]] == ["0"]
    assert len(Searcher(plain_encoder, ["mud"], **SAME).search(["mud", "sand"])) == 2
    for wrong, said_of_it in (
        (lambda: searcher.search("mud"), "a list of texts is needed"),
        (lambda: searcher.search(["mud", " "]), "query ' ': has no text"),
        (lambda: searcher.search(["mud"], top_k=0), "--top-k must be at least 1"),
        (lambda: Searcher(plain_encoder, ["", " "], **SAME), "no document with any text"),
        (lambda: Searcher(plain_encoder, ["a", None], **SAME), "document 1: expected a text, got None"),
        (lambda: Searcher(plain_encoder, ["a"], vectors=0, **SAME), "--vectors must be 1 or more"),
    ):
        with pytest.raises(InputError, match=said_of_it):
            wrong()
    assert searcher.search([]) == []


def test_a_query_has_its_own_prompt(prompted_embedder):
    texts = ["ice? wet", "sea: wet"]
    hits = Searcher(prompted_embedder, texts, **SAME).search(["wet"])[0]
    of_query = Embedder(prompted_embedder, prompt_name="query", device="cpu", precision="fp32")(["wet"])[0]
    documents = Embedder(prompted_embedder, device="cpu", precision="fp32")(texts)
    assert {hit.document: pytest.approx(hit.similarity, abs=1e-5) for hit in hits} == dict(
        enumerate(documents @ of_query)
    )


@pytest.fixture
def table(tmp_path):
    """A function: write documents by id into a table; returns its name."""

    def write(documents):
        rows = (json.dumps({"id": name, "text": text}) + "\n" for name, text in documents.items())
        (tmp_path / "t.jsonl").write_text("".join(rows))
        return str(tmp_path / "t.jsonl")

    return write


@pytest.fixture
def open_(plain_encoder):
    """A function: a searcher, what it said, and how many documents it read."""

    def call(model=plain_encoder, documents=None, **options):
        said, read = [], []
        searcher = Searcher(
            model, documents, say=said.append, on_document=lambda *at: read.append(at), **SAME, **options
        )
        return searcher, said, len(read)

    return call


def scores(searcher):
    return [[(hit.id, hit.passage, round(hit.score, 4)) for hit in hits] for hits in searcher.search(QUERIES)]


def test_only_what_is_new_is_read_again(open_, table, tmp_path, plain_encoder):
    first, said, read = open_(documents=table(TEXTS))
    assert read == 6 and first.folder == tmp_path / "t.jsonl.search"
    assert said[-1].startswith(f"{first.folder} keeps what was read (")
    again, said, read = open_(documents=table(TEXTS))
    assert read == 0 and said[-1] == "6 documents, all read before" and scores(again) == scores(first)
    alone, said, read = open_(first.folder)
    assert (read, said) == (0, []) and scores(alone) == scores(first)

    changed = {name: text for name, text in TEXTS.items() if name != "frost"} | {"short": "wet mud", "new": "mud"}
    after, said, read = open_(first.folder, table(changed))  # the text of "new" is known, and that of "short" new
    assert read == 1 and "reading 1 document of 6" in said
    whole = Searcher(plain_encoder, changed, **SAME)
    assert after.ids == list(changed) and scores(after) == scores(whole) == scores(open_(first.folder)[0])
    renamed, _, read = open_(documents=table({f"{name}2": text for name, text in changed.items()}))
    assert read == 0 and renamed.ids == [f"{name}2" for name in changed] == open_(first.folder)[0].ids
    assert len([*first.folder.iterdir()]) == 2  # no file of earlier collections


def test_another_model_and_other_options_read_all_anew(open_, table, plain_encoder, tmp_path):
    folder = open_(documents=table(TEXTS))[0].folder
    _, said, read = open_(documents=table(TEXTS), vectors=1)
    assert read == 6 and f"{folder} is of other options: all documents are read anew" in said
    _, said, read = open_(folder, table(TEXTS))  # whose options they are
    assert read == 0

    model = shutil.copytree(plain_encoder, tmp_path / "model")
    _, said, read = open_(model, table(TEXTS), vectors=1)
    assert read == 0  # another place, the same model
    torch.manual_seed(1)
    changed = AutoModel.from_pretrained(model)
    torch.nn.init.normal_(changed.embeddings.word_embeddings.weight)
    changed.save_pretrained(model)
    with pytest.raises(
        InputError, match=r"t.jsonl.search: is not of .*encoder as it is now; --documents .*t.jsonl reads"
    ):
        written = json.loads((folder / "linformer_search.json").read_text())
        (folder / "linformer_search.json").write_text(json.dumps({**written, "sha256": "0"}))
        open_(folder)
    (folder / "linformer_search.json").write_text(json.dumps(written))
    searcher, said, read = open_(model, table(TEXTS), vectors=1)
    assert read == 6 and f"{folder} is of another model: all documents are read anew" in said
    assert scores(searcher) == scores(Searcher(model, TEXTS, vectors=1, **SAME))


def test_an_interrupted_reading_goes_on(open_, table, tmp_path, plain_encoder, monkeypatch):
    monkeypatch.setattr(search, "SAVED_EVERY", -1.0)
    copies = tmp_path / "copies"

    def stop_at_the_fourth(number, of):
        if number == 4:
            shutil.copytree(tmp_path / "t.jsonl.search", copies)  # as if it were killed here
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Searcher(plain_encoder, table(TEXTS), on_document=stop_at_the_fourth, **SAME)
    for folder, done in ((tmp_path / "t.jsonl.search", 4), (copies, 3)):
        with pytest.raises(InputError, match=rf"interrupted after {done} documents; --documents .*t.jsonl goes on"):
            open_(folder)
        searcher, _, read = open_(folder, table(TEXTS))
        assert read == 6 - done and scores(searcher) == scores(Searcher(plain_encoder, TEXTS, **SAME))


def test_damage_is_told(open_, table):
    folder = open_(documents=table(TEXTS))[0].folder
    (file,) = folder.glob("*.arrow")
    content = file.read_bytes()
    file.write_bytes(content[:-9] + bytes([content[-9] ^ 1]) + content[-8:])
    for documents in (None, table(TEXTS)):
        with pytest.raises(InputError, match=rf"{file.name}: was overwritten; remove {folder}"):
            open_(folder, documents)
    file.unlink()
    with pytest.raises(InputError, match=rf"{file.name}: is missing; remove {folder}"):
        open_(folder)
    (folder / "linformer_search.json").write_text('{"files": {}}')
    with pytest.raises(InputError, match=rf"linformer_search.json: is damaged; remove {folder}"):
        open_(folder)


def test_what_has_no_effect_or_no_place_is_refused(open_, table, tmp_path, plain_encoder, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"encoder: search in what\? Name documents \(--documents\)"):
        open_()
    with pytest.raises(InputError, match="--text-column, --id-column, … are for files of documents"):
        open_(documents=TEXTS, id_column="id")
    folder = open_(documents=table(TEXTS))[0].folder
    with pytest.raises(InputError, match="--vectors and --output are for reading documents"):
        open_(folder, vectors=2)
    with pytest.raises(InputError, match=r"--output other: .*t.jsonl.search keeps what it has read itself"):
        open_(folder, table(TEXTS), output="other")
    with pytest.raises(InputError, match=r"\*.jsonl: where should its vectors lie\? Name a folder with --output"):
        open_(documents="*.jsonl")
    assert len(open_(documents="*.jsonl", output="there")[0]) == len(open_("there")[0]) == 6
    with pytest.raises(InputError, match="encoder: is not empty and holds no vectors of a search"):
        open_(documents=TEXTS, output=plain_encoder)
    with pytest.raises(InputError, match="no such file"):
        open_(documents="none.csv")
    with pytest.raises(InputError, match=r"holds vectors and no documents: linformer search .* searches in them"):
        open_(documents=folder)


def test_vectors_beside_documents_are_no_documents(open_, table, tmp_path):
    open_(documents=table(TEXTS))
    open_(documents=table(TEXTS), output=tmp_path / "kept")
    for documents in (tmp_path, f"{tmp_path}/*"):
        assert open_(documents=documents, output=tmp_path.parent / f"{tmp_path.name}.kept")[0].ids == [*TEXTS]


def test_pieces_of_one_pass_know_where_they_are(linear_folder, tmp_path):
    folder = shutil.copytree(linear_folder(), tmp_path / "pieces")
    config = load_config(str(folder))
    write_sentence_modules(config, folder, DocumentVectors("mean", pieces=PieceVectors(24, 3)))
    text = " ".join(f"word{number}" for number in range(13))  # 80 bytes, two vectors
    searcher = Searcher(folder, [text, "mud", "long " * 40], output=tmp_path / "out", **SAME)
    assert np.bincount(searcher.owners).tolist() == [2, 1, 2]
    # Of 82 tokens, the first of which is a mark; and of the first 94 bytes of the last text.
    (file,) = (tmp_path / "out").glob("*.arrow")
    spans = [[0, 40], [40, 80]], [[0, 3]], [[0, 47], [47, 94]]
    assert feather.read_table(str(file))["spans"].to_pylist() == [*spans]
    assert searcher.search(["mud"])[0][0].id == "1"
    with pytest.raises(InputError, match="--vectors: this model makes the vectors of a document itself"):
        Searcher(folder, [text], vectors=2, **SAME)


def test_a_linear_encoder_reads_windows_of_its_own_length(linear_folder):
    said = []
    searcher = Searcher(linear_folder(), ["sand " * 50, "mud"], say=said.append, **SAME)
    assert said[0].endswith("reads a document in windows of 96 tokens and makes a vector of each")
    assert searcher._spans.tolist() == [[0, 94], [94, 188], [188, 250], [0, 3]]
