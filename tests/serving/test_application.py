"""What no client can bring about over HTTP with a sound model: the model itself fails."""

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from serving.requests import post
from transformers import AutoConfig, AutoTokenizer

from torch_linformer.inference import Embedder
from torch_linformer.models import LinformerForMaskedLM, LinformerForQuestionAnswering
from torch_linformer.serving.answers import ServedModel, load_served
from torch_linformer.serving.application import Application
from torch_linformer.serving.limits import Limits


@pytest.fixture
def ask():
    """A function: status and JSON of a request to a served folder."""

    def call(folder, path, on_failure=print, **content):
        served = folder if isinstance(folder, ServedModel) else load_served(str(folder), device="cpu", precision="fp32")
        return post(Application(served, Limits(), on_failure), path, content)

    return call


def test_an_embedder_reads_texts_as_its_folder_says(prompted_embedder, ask):
    """After its default prompt, in lower case, up to its length: the vectors of ``linformer embed``."""
    folder, text, same = str(prompted_embedder), "Wet MUD", {"device": "cpu", "precision": "fp32"}
    asked = partial(ask, folder, "/v1/embeddings")
    for prompt_name, prompt in ((None, "sea:"), ("query", "ice?")):
        status, content = asked(input=text, prompt_name=prompt_name)
        vector = Embedder(folder, prompt_name=prompt_name, **same)({"text": [text]})["embedding"][0]
        assert status == 200 and content["data"][0]["embedding"] == pytest.approx(vector.tolist(), abs=1e-6)
        tokens = AutoTokenizer.from_pretrained(folder)(f"{prompt} wet mud").input_ids
        assert content["usage"]["prompt_tokens"] == len(tokens)
    status, content = asked(input=text, prompt_name="sea")
    assert status == 400 and content["error"]["message"] == "no prompt 'sea'; this model has 'passage', 'query'"
    status, content = asked(input="wet mud " * 9, truncate=False)
    assert status == 413 and "the 16 that the model reads" in content["error"]["message"]


@pytest.fixture
def broken(model_copy):
    """An application whose model gives numbers that are none; and the errors that it has told."""
    weights = load_file(model_copy / "model.safetensors")
    for tensor in weights.values():
        if tensor.is_floating_point():
            tensor.fill_(float("nan"))
    save_file(weights, model_copy / "model.safetensors", metadata={"format": "pt"})
    failures = []
    return Application(load_served(str(model_copy), device="cpu"), Limits(), failures.append), failures


@pytest.mark.parametrize("path", ["/v1/embeddings", "/predict"])
def test_numbers_that_are_none_are_an_error_of_the_server(broken, path):
    application, failures = broken
    status, content = post(application, path, {"input": "mud"})
    assert status == 500
    assert content["error"]["message"] == "the server failed at this request; its log says why"
    assert [type(failure) for failure in failures] == [ValueError]


def test_an_error_of_the_model_is_told_once_and_not_to_the_client(model_copy):
    failures = []
    application = Application(load_served(str(model_copy), device="cpu"), Limits(), failures.append)
    embeddings = application.model.embedder.encoder.embeddings.word_embeddings
    embeddings.weight.data = embeddings.weight.data[:3]  # ids are beyond it
    status, content = post(application, "/v1/embeddings", {"input": "wet mud"})
    assert status == 500 and content["error"]["code"] == "internal"
    assert [type(failure) for failure in failures] == [IndexError]
    assert b"linformer_failed_batches_total 1.0" in application.counters.text()


def test_a_question_is_asked_of_every_text(model_copy, ask):
    config = AutoConfig.from_pretrained(model_copy)
    config.type_vocab_size = 2
    torch.manual_seed(0)
    LinformerForQuestionAnswering(config).save_pretrained(model_copy)
    served = load_served(str(model_copy), device="cpu")
    assert served.paths == ["/v1/embeddings", "/embed", "/predict"]
    status, content = ask(served, "/predict", input=["wet mud", "the sea"], question="what?")
    records = [(each["index"], each["question"], "answer" in each) for each in content["data"]]
    assert status == 200 and records == [(0, "what?", True), (1, "what?", True)]
    status, content = ask(served, "/predict", input="wet mud")
    assert status == 400 and content["error"]["message"].startswith("question is missing: this model answers one")


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify", "/predict"])
def test_answers_keep_the_ids_of_their_texts(classifier_run, path, ask):
    _, content = ask(classifier_run.folder, path, input=["wet mud", "the sea"], ids=["post 7", "post 9"])
    assert [(answer["index"], answer["id"]) for answer in content["data"]] == [(0, "post 7"), (1, "post 9")]


@pytest.mark.parametrize("says", [{"matryoshka_dimensions": [16]}, {"is_matryoshka": True}, {}], ids=str)
def test_vectors_are_cut_where_the_model_says_so(model_copy, says, ask):
    config = AutoConfig.from_pretrained(model_copy)
    config.update(says)
    config.save_pretrained(model_copy)
    asked = partial(ask, load_served(str(model_copy), device="cpu"))
    whole = asked("/v1/embeddings", input="mud")[1]["data"][0]["embedding"]
    status, content = asked("/v1/embeddings", input="mud", dimensions=16)
    if not says:
        assert status == 400 and content["error"]["message"].endswith("dimensions, not 16; leave dimensions out")
        return
    cut = np.asarray(whole[:16])
    assert content["data"][0]["embedding"] == pytest.approx((cut / np.linalg.norm(cut)).tolist(), abs=1e-6)
    assert asked("/embed", inputs="mud", dimensions=16)[1] == [content["data"][0]["embedding"]]
    assert [asked("/embed", inputs="mud", dimensions=number)[0] for number in (len(whole) + 1, 0)] == [400, 400]


def test_models_that_predict_nothing_say_so(model_copy, ask):
    LinformerForMaskedLM(AutoConfig.from_pretrained(model_copy)).save_pretrained(model_copy)
    status, content = ask(model_copy, "/predict", input="mud")
    assert status == 404 and "LinformerForMaskedLM predicts nothing of a document" in content["error"]["message"]
    assert "this model has /v1/embeddings, /embed" in content["error"]["message"]
    assert ask(model_copy, "/v1/embeddings", input="mud")[0] == 200
