"""Vectors of documents: those of the model by hand, of any model, in both kinds of files, and after an interruption."""

import json

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

from torch_linformer.data import windows
from torch_linformer.errors import InputError
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.models.pooling import pool
from torch_linformer.opening.load import load_model, load_tokenizer

TEXTS = ["wet grey mud", "naïve sand and sea", "ice " * 60, "warm", "cold white ice and mud"] * 3


@pytest.fixture(scope="module")
def texts(tmp_path_factory):
    file = tmp_path_factory.mktemp("texts") / "texts.parquet"
    parquet.write_table(pyarrow.table({"id": list(range(15)), "text": TEXTS}), file)
    return str(file)


@pytest.fixture
def vectors(texts, tmp_path):
    """A function: the vectors of the texts by a model folder, as an array, and what the command says."""

    def call(folder, name="out.npy", **options):
        settings = EmbedSettings(model=str(folder), files=(texts,), precision="fp32", **options)
        said = answer_files(settings, tmp_path / name, device="cpu", batch_size=4)
        return np.load(tmp_path / name) if name.endswith("npy") else parquet.read_table(tmp_path / name), said

    return call


@torch.no_grad()
def by_hand(folder, text, pooling):
    """The vector of the ids that the model reads at once."""
    model, tokenizer = load_model(str(folder)), load_tokenizer(str(folder))
    reader = model.encoder if hasattr(model, "decoder") else model.base_model
    longest = reader.config.max_position_embeddings
    inputs = tokenizer(text, truncation=True, max_length=longest, return_tensors="pt", return_token_type_ids=False)
    return pool(reader(**inputs).last_hidden_state, inputs["attention_mask"], pooling)[0].numpy()


def test_a_classifier_gives_what_its_head_reads(classifier_run, vectors):
    found, said = vectors(classifier_run.folder, normalize=False)
    assert said == "15 documents embedded, 3 cut at 24 tokens"
    assert found.dtype == np.float32 and found.shape == (15, 2 * 128)  # mean and largest
    for vector, text in zip(found, TEXTS, strict=True):
        np.testing.assert_allclose(vector, by_hand(classifier_run.folder, text, "mean_max"), atol=2e-5)
    unit, _ = vectors(classifier_run.folder)
    np.testing.assert_allclose(unit, found / np.linalg.norm(found, axis=1, keepdims=True), atol=1e-6)


@pytest.mark.parametrize("run", ["masked_run", "clm_run", "seq2seq_run"])
def test_any_other_model_gives_what_its_states_pool_to(run, request, vectors):
    folder = request.getfixturevalue(run).folder
    found, _ = vectors(folder, normalize=False, text_column="text")  # whatever it was trained with
    model = load_model(str(folder))
    pooling = (model.encoder if hasattr(model, "decoder") else model).config.pooling
    for number in (0, 1):
        np.testing.assert_allclose(found[number], by_hand(folder, TEXTS[number], pooling), atol=2e-5)


def test_a_folder_of_sentence_transformers_says_how_to_pool(model_copy, vectors):
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling")]
    modules = [{"type": f"sentence_transformers.models.{kind}", "path": path} for kind, path in kinds]
    (model_copy / "modules.json").write_text(json.dumps(modules))
    (model_copy / "1_Pooling").mkdir()
    (model_copy / "1_Pooling" / "config.json").write_text(json.dumps({"pooling_mode_cls_token": True}))
    found, _ = vectors(model_copy, normalize=False)
    np.testing.assert_allclose(found[0], by_hand(model_copy, TEXTS[0], "cls"), atol=2e-5)


def test_windows_of_a_document_are_averaged_by_their_tokens(classifier_run, vectors):
    found, said = vectors(classifier_run.folder, overflow="windows", stride=0, normalize=False)
    assert said == "15 documents embedded"
    cut, _ = vectors(classifier_run.folder, normalize=False)
    assert np.allclose(found[0], cut[0], atol=2e-5) and not np.allclose(found[2], cut[2], atol=1e-3)


def test_a_parquet_file_says_where_each_document_is(classifier_run, vectors, texts):
    table, _ = vectors(classifier_run.folder, "out.parquet")
    array, _ = vectors(classifier_run.folder)
    assert table.column_names == ["document", "id", "embedding", "tokens", "cut"]
    assert table["document"].to_pylist() == [f"{texts}, row {number}" for number in range(1, 16)]
    assert np.array_equal(np.stack(table["embedding"].to_numpy()), array)
    assert table["cut"].to_pylist() == [text.startswith("ice") for text in TEXTS]
    assert [tokens > 24 for tokens in table["tokens"].to_pylist()] == table["cut"].to_pylist()


def test_what_cannot_be_done_is_said_before_the_work(classifier_run, vectors, tmp_path):
    with pytest.raises(InputError, match=r"out\.txt: the name must end with \.parquet or \.npy, or have"):
        vectors(classifier_run.folder, "out.txt")
    settings = EmbedSettings(model=str(classifier_run.folder), files=(str(tmp_path / "none.csv"),))
    with pytest.raises(InputError, match="no such file"):
        answer_files(settings, tmp_path / "x.npy", device="cpu")
    with pytest.raises(InputError, match=r"--max-errors leaves rows out, and those of .*x\.npy have no names: write a"):
        answer_files(settings, tmp_path / "x.npy", device="cpu", max_errors=1)
    assert not list(tmp_path.iterdir())


def test_a_row_without_text_has_a_row_of_nan(classifier_run, tmp_path):
    table = tmp_path / "t.csv"
    table.write_text("key,text\nk0,wet mud\nk1,\nk2,warm sand\n")
    settings = EmbedSettings(model=str(classifier_run.folder), files=(str(table),), id_column="key")
    said = answer_files(settings, tmp_path / "v.npy", device="cpu")
    answer_files(settings, tmp_path / "v.parquet", device="cpu")
    vectors, rows = np.load(tmp_path / "v.npy"), parquet.read_table(tmp_path / "v.parquet")
    assert np.isnan(vectors).all(axis=1).tolist() == np.isnan(vectors).any(axis=1).tolist() == [False, True, False]
    assert rows["id"].to_pylist() == ["k0", "k1", "k2"] and rows["tokens"].to_pylist()[1] == 0
    assert said == "3 documents embedded, 1 without text, whose vectors are NaN"


@pytest.mark.parametrize(
    ("fewest", "rows", "asks"),
    [
        (300, ["wet grey mud"] * 299 + ["mud " * 60] * 9, True),
        (300, ["mud " * 20] * 300, False),  # neither long nor short
        (400, ["wet grey mud"] * 399, False),
        (300, ["mud " * 100] * 150 + ["wet"] * 300, False),
    ],
)
def test_very_many_short_texts_are_a_question(masked_run, tmp_path, monkeypatch, fewest, rows, asks):
    monkeypatch.setattr(windows, "MANY_TEXTS", fewest)
    parquet.write_table(pyarrow.table({"text": rows}), tmp_path / "t.parquet")
    settings, said = EmbedSettings(model=str(masked_run.folder), files=(str(tmp_path / "t.parquet"),)), []
    answer_files(settings, tmp_path / "v.npy", device="cpu", say=said.append)
    questions = [sentence for sentence in said if "is each line a document?" in sentence]
    assert len(questions) == asks and all(question.startswith(f"the first {fewest} texts") for question in questions)
