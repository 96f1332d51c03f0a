"""What the commands make of folders of linear encoders of transformers, of every family and with every head."""

import json
import shutil

import numpy as np
import pytest
import torch
from serving import requests
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
)

from torch_linformer.inference import Embedder, Predictor
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.export import export_model
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.load import load_model, load_tokenizer, save_tokenizer
from torch_linformer.opening.sentence_transformers import SentenceSettings, sentence_pooling, write_sentence_modules
from torch_linformer.serving.answers import load_served
from torch_linformer.serving.application import Application
from torch_linformer.serving.limits import Limits

FAMILIES = ("Bert", "Roberta", "DistilBert", "ModernBert")
ROWS, TOKENS, ANSWERS = "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering"
NAMES = {ROWS: {"id2label": {0: "rain", 1: "snow", 2: "sun"}}, TOKENS: {"id2label": {0: "O", 1: "B-LOC", 2: "I-LOC"}}}
# Read exactly, by slots, and cut.
TEXTS = ["wet mud", "ice " * 15, "naïve sand and sea", "the sand of the warm sea " * 8, "cold white ice and grey mud"]
SAME = {"device": "cpu", "precision": "fp32"}


@pytest.fixture(scope="module")
def rows_in_file(tmp_path_factory):
    """A function: the path of a file with some rows."""

    def write(name, rows):
        file = tmp_path_factory.mktemp("rows") / f"{name}.jsonl"
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return str(file)

    return write


@torch.no_grad()
def read_by_hand(folder, text, auto=AutoModel, longest=96):
    """What transformers' own class makes of a text by itself."""
    ids = load_tokenizer(str(folder))(text, truncation=True, max_length=longest, return_tensors="pt").input_ids
    return auto.from_pretrained(folder).eval()(input_ids=ids)


def test_whatever_side_a_folder_pads_on_a_vector_is_that_of_the_text_alone(linear_folder, tmp_path):
    """Learned positions count columns; what is saved again says how it was read."""
    folder = tmp_path / "left"
    shutil.copytree(linear_folder("Bert"), folder)
    padding = {"strategy": "BatchLongest", "direction": "Left", "pad_to_multiple_of": None}
    padding |= {"pad_id": 0, "pad_type_id": 0, "pad_token": "<pad>"}
    for name, fields in (
        ("tokenizer_config.json", {"padding_side": "left", "truncation_side": "left"}),
        ("tokenizer.json", {"padding": padding}),
    ):
        told = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps({**told, **fields}))
    assert AutoTokenizer.from_pretrained(folder).padding_side == "left"
    vectors = Embedder(str(folder), **SAME)
    together, alone = vectors({"text": TEXTS})["embedding"], [vectors({"text": [text]})["embedding"] for text in TEXTS]
    np.testing.assert_allclose((together * np.concatenate(alone)).sum(axis=1), 1, atol=1e-6)
    save_tokenizer(load_tokenizer(str(folder)), load_model(str(folder)), tmp_path / "saved")
    read = {file.name: json.loads(file.read_text()) for file in (tmp_path / "saved").glob("*.json")}
    assert read["tokenizer_config.json"]["padding_side"] == read["tokenizer_config.json"]["truncation_side"] == "right"
    assert read["tokenizer.json"]["padding"]["direction"] == "Right"


@pytest.mark.parametrize("family", FAMILIES)
def test_vectors_are_those_of_each_text_alone(linear_folder, rows_in_file, tmp_path, family):
    folder = linear_folder(family)
    files = (rows_in_file("texts", [{"text": text} for text in TEXTS]),)
    settings = EmbedSettings(model=str(folder), files=files, precision="fp32")
    said = answer_files(settings, tmp_path / "out.npy", device="cpu", batch_size=3)
    assert said == "5 documents embedded, 1 cut at 96 tokens"
    for vector, text in zip(np.load(tmp_path / "out.npy"), TEXTS, strict=True):
        expected = F.normalize(read_by_hand(folder, text).last_hidden_state.mean(dim=1), dim=-1)[0]
        np.testing.assert_allclose(vector, expected.numpy(), atol=2e-5)


@pytest.fixture(scope="module")
def embedder(linear_folder, tmp_path_factory):
    """A folder of sentence-transformers, with a prompt, that reads 40 of the 96 tokens in lower case."""
    folder = tmp_path_factory.mktemp("embedder") / "linear"
    shutil.copytree(linear_folder("Roberta", slots_alone=True, num_hidden_layers=1), folder)
    config = load_model(str(folder)).config
    write_sentence_modules(config, folder, DocumentVectors("cls"))
    (folder / "sentence_bert_config.json").write_text('{"max_seq_length": 40, "do_lower_case": true}')
    prompts = {"prompts": {"query": "ice? ", "passage": ""}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return folder


def test_vectors_as_a_folder_of_sentence_transformers_says(embedder):
    predictor = Embedder(str(embedder), **SAME)
    answers = predictor({"text": ["Wet MUD", *TEXTS[3:4]]})
    assert predictor.max_length == 40 and answers["cut"] == [False, True]
    for vector, text in zip(answers["embedding"], ("wet mud", TEXTS[3]), strict=True):
        expected = read_by_hand(embedder, f"ice? {text}", longest=40).last_hidden_state[0, 0]
        np.testing.assert_allclose(vector, F.normalize(expected, dim=-1).numpy(), atol=2e-5)


def test_the_length_that_a_new_folder_of_sentence_transformers_has(linear_folder, tmp_path):
    """Not that of the table of positions, which is longer in RoBERTa's kin."""
    config = load_model(str(linear_folder("Roberta"))).config
    assert config.max_position_embeddings == 97
    write_sentence_modules(config, tmp_path, DocumentVectors("mean"), SentenceSettings())
    assert json.loads((tmp_path / "sentence_bert_config.json").read_text())["max_seq_length"] == 96


def test_windows_of_a_long_text(linear_folder):
    folder = str(linear_folder("ModernBert"))
    options = {"overflow": "windows", "stride": 0, "normalize": False, **SAME}
    (vector,) = Embedder(folder, **options)({"text": [TEXTS[3]]})["embedding"]
    ids = load_tokenizer(folder)(TEXTS[3]).input_ids[1:-1]
    windows = [torch.tensor([[1, *ids[start : start + 94], 2]]) for start in range(0, len(ids), 94)]
    with torch.no_grad():
        total = sum(load_model(folder)(input_ids=window).last_hidden_state[0].sum(dim=0) for window in windows)
    np.testing.assert_allclose(vector, (total / sum(map(torch.numel, windows))).numpy(), atol=2e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_labels(linear_folder, family):
    folder = linear_folder(family, ROWS, **NAMES[ROWS])
    answers = Predictor(str(folder), batch_size=3, **SAME)({"text": TEXTS})
    for text, label, probabilities in zip(TEXTS, answers["label"], answers["probabilities"], strict=True):
        expected = read_by_hand(folder, text, AutoModelForSequenceClassification).logits[0].softmax(-1)
        assert list(probabilities) == ["rain", "snow", "sun"]
        assert label == list(probabilities)[int(expected.argmax())]
        assert list(probabilities.values()) == pytest.approx(expected.tolist(), abs=1e-4)


@pytest.mark.parametrize("family", FAMILIES)
def test_tags(linear_folder, family):
    folder = linear_folder(family, TOKENS, **NAMES[TOKENS])
    words = [text.split() for text in TEXTS]
    answers = Predictor(str(folder), batch_size=3, **SAME)({"text": words})
    for row, tags in zip(words[:3], answers["tags"][:3], strict=True):
        best = read_by_hand(folder, " ".join(row), AutoModelForTokenClassification).logits[0].argmax(-1)
        starts = np.cumsum([1, *(len(word.encode()) + 1 for word in row[:-1])])
        assert tags == [NAMES[TOKENS]["id2label"][int(best[start])] for start in starts]


@pytest.mark.parametrize(("family", "typed"), [("Bert", True), ("Roberta", False), ("ModernBert", False)])
def test_answers_to_questions(linear_folder, family, typed):
    predictor = Predictor(str(linear_folder(family, ANSWERS)), batch_size=3, **SAME)
    texts = TEXTS[:3]
    answers = predictor({"text": texts, "question": ["where?"] * 3})
    assert predictor.document_model.task.typed is typed
    for number, text in enumerate(texts):
        start, end = answers["start"][number], answers["end"][number]
        assert answers["answer"][number] == text[start:end]
        alone = predictor({"text": [text], "question": ["where?"]})
        assert (alone["answer"], alone["score"]) == ([text[start:end]], pytest.approx([answers["score"][number]]))


def labeled_rows(head):
    """Rows that a model with a head is scored on."""
    if head == TOKENS:
        return [{"tokens": text.split(), "tags": ["O", "B-LOC"] + ["O"] * (len(text.split()) - 2)} for text in TEXTS]
    if head == ANSWERS:
        return [{"context": x, "question": "where?", "answers": {"text": [x[:3]], "answer_start": [0]}} for x in TEXTS]
    if head == ROWS:
        return [{"text": text, "label": label} for text, label in zip(TEXTS, ("rain", "snow", "sun") * 2, strict=False)]
    return [{"text": text, "label": label} for text, label in zip(TEXTS, "aabbb", strict=True)]


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", ROWS, TOKENS, ANSWERS])
@pytest.mark.parametrize("family", ["Roberta", "DistilBert", "ModernBert"])
def test_scores(linear_folder, rows_in_file, family, head):
    """A model has the same ones whatever stands together in a batch."""
    folder, rows = str(linear_folder(family, head, **NAMES.get(head, {}))), rows_in_file(head, labeled_rows(head))
    task, scores = evaluate(folder, rows, batch_size=3, **SAME)
    assert set(task.headline) <= scores.keys() and scores["documents"] == len(TEXTS)
    _, alone = evaluate(folder, rows, batch_size=1, **SAME)
    for name in task.headline:
        assert scores[name] == pytest.approx(alone[name], abs=1e-4)
    if head == ROWS:
        right = zip(Predictor(folder, **SAME)(TEXTS), labeled_rows(head), strict=True)
        assert scores["accuracy"] == np.mean([found["label"] == row["label"] for found, row in right])


@pytest.mark.parametrize(
    ("family", "head", "paths"),
    [
        ("ModernBert", "Model", []),
        ("Bert", ROWS, ["/classify", "/predict"]),
        ("Roberta", TOKENS, ["/predict"]),
        ("DistilBert", ANSWERS, ["/predict"]),
        ("Bert", "ForMaskedLM", []),
    ],
)
def test_served(linear_folder, family, head, paths):
    """The vectors and predictions of the other commands, at the paths that fit the model."""
    folder = str(linear_folder(family, head, **NAMES.get(head, {})))
    served = load_served(folder, **SAME)
    assert served.paths[2:] == paths and served.longest == 96
    texts, question = TEXTS[:3], {"question": "where?"} if head == ANSWERS else {}
    content = post(served, "/v1/embeddings", input=texts)
    vectors = Embedder(folder, **SAME)({"text": texts})["embedding"]
    for answer, vector in zip(content["data"], vectors, strict=True):
        assert answer["embedding"] == pytest.approx(vector.tolist(), abs=1e-5)
    if "/predict" in paths:
        columns = {"text": texts, **({"question": ["where?"] * 3} if question else {})}
        predicted = Predictor(folder, **SAME)(columns)
        for number, answer in enumerate(post(served, "/predict", input=texts, **question)["data"]):
            expected = {name: predicted[name][number] for name in ("label", "entities", "answer") if name in predicted}
            assert {name: without_scores(answer[name]) for name in expected} == without_scores(expected)


def without_scores(answer):
    """The same without the numbers called score, which other batches round otherwise."""
    if isinstance(answer, list):
        return [without_scores(part) for part in answer]
    if isinstance(answer, dict):
        return {name: without_scores(part) for name, part in answer.items() if name != "score"}
    return answer


def post(served, path, **content):
    """The JSON of the answer to a request."""
    status, answer = requests.post(Application(served, Limits(), print), path, content)
    assert status == 200, answer
    return answer


@pytest.mark.parametrize(
    ("family", "head", "shallow"),
    [
        ("Bert", TOKENS, {"num_hidden_layers": 1}),
        ("DistilBert", ANSWERS, {"n_layers": 1, "slots_alone": True}),
        # One layer that reads everything, and one with a window of its own.
        ("ModernBert", ROWS, {"num_hidden_layers": 2, "slots_alone": True}),
    ],
)
def test_programs(linear_folder, tmp_path, family, head, shallow):
    """Each is compared with its model as it is written: with short rows, with long ones, and with both in a batch."""
    folder = linear_folder(family, head, **NAMES.get(head, {}), **shallow)
    assert export_model(str(folder), tmp_path / "program", "torch") < 1e-5
    program = torch.export.load(tmp_path / "program" / "model.pt2").module()
    rows = load_tokenizer(str(tmp_path / "program"))(TEXTS[:3], padding=True, return_tensors="pt")
    types = [torch.zeros_like(rows["input_ids"])] if family == "Bert" else []
    scores = program(rows["input_ids"], rows["attention_mask"], *types)[0]
    for number, text in enumerate(TEXTS[:3]):
        with torch.no_grad():
            alone = load_model(str(folder))(**load_tokenizer(str(folder))(text, return_tensors="pt")).to_tuple()[0]
        part = scores[number] if head == ROWS else scores[number, : alone.shape[1]]
        torch.testing.assert_close(part, alone[0], rtol=0, atol=1e-4)


def test_a_program_of_a_folder_of_sentence_transformers(embedder, tmp_path):
    assert export_model(str(embedder), tmp_path / "program", "torch") < 1e-5
    assert sentence_pooling(str(tmp_path / "program")) == "cls"
    settings = json.loads((tmp_path / "program" / "sentence_bert_config.json").read_text())
    assert settings == {"max_seq_length": 40, "do_lower_case": True}
