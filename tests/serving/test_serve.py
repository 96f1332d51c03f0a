"""`linformer serve` as its clients see it: real processes, real HTTP, a model of one layer."""

import base64
import contextlib
import json
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
from transformers import pipeline

from torch_linformer.data.reading.streamed import Document
from torch_linformer.inference.document_model import DocumentEmbedder, TaskPredictor
from torch_linformer.inference.predictor import Embedder
from torch_linformer.opening.load import load_model, load_tokenizer

from .conftest import begin_request, read_response

TEXTS = ["wet grey mud", "the naïve sand of the warm sea", "ice cold white " * 4, "mud"]
LONG = "ice " * 60
SAME = {"device": "cpu", "precision": "fp32", "batch_size": 16}


@pytest.fixture(scope="module")
def served(start_server, classifier_run):
    """A classifier with narrow limits. Tests must leave no request open."""
    limits = ("--max-body", "20000", "--max-tokens", "300", "--max-queue", "8", "--body-seconds", "1")
    return start_server(classifier_run.folder, *limits, "--name", "weather")


@pytest.fixture(scope="module")
def known(classifier_run):
    """What `linformer embed` and `linformer predict` make of the texts."""
    folder = str(classifier_run.folder)
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    documents = [Document("", text) for text in TEXTS]
    vectors = [answer["embedding"] for answer in DocumentEmbedder(folder, model, tokenizer, **SAME).answers(documents)]
    return np.stack(vectors), list(TaskPredictor(model, tokenizer, **SAME).answers(documents))


def test_embeddings_in_the_form_of_openai(served, known):
    found = served.ask("/v1/embeddings", {"input": TEXTS, "model": "weather", "user": "somebody", "task": ["x"]})
    assert found.status == 200 and list(found.content) == ["object", "data", "model", "usage"]
    assert [(each["object"], each["index"]) for each in found.content["data"]] == [("embedding", n) for n in range(4)]
    np.testing.assert_allclose([each["embedding"] for each in found.content["data"]], known[0], atol=1e-5)
    tokens = sum(record["tokens"] for record in known[1])
    assert found.content["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert (found.content["object"], found.content["model"]) == ("list", "weather")
    coded = served.ask("/v1/embeddings", {"input": TEXTS[1], "encoding_format": "base64", "dimensions": 256})
    vector = np.frombuffer(base64.b64decode(coded.content["data"][0]["embedding"]), "<f4")
    np.testing.assert_allclose(vector, known[0][1], atol=1e-5)


def test_the_form_of_text_embeddings_inference(served, known):
    found = served.ask("/embed", {"inputs": TEXTS, "normalize": True, "truncate": False, "prompt_name": None})
    np.testing.assert_allclose(found.content, known[0], atol=1e-5)
    others = {"truncation_direction": "Right", "input_type": "query", "task": ["x"], "user": 7}  # of other servers
    found = served.ask("/embed", {"inputs": TEXTS[1], **others})
    np.testing.assert_allclose(found.content, known[0][1:2], atol=1e-5)


def test_token_ids_are_read_as_their_text(served, known, classifier_run):
    """Special tokens around them or not, as tokenizers give them."""
    tokenizer = load_tokenizer(str(classifier_run.folder))
    for special in (True, False):
        ids = tokenizer(TEXTS, add_special_tokens=special).input_ids
        found = served.ask("/v1/embeddings", {"input": ids})
        np.testing.assert_allclose([each["embedding"] for each in found.content["data"]], known[0], atol=1e-5)
    found = served.ask("/v1/embeddings", {"input": ids[1]})
    np.testing.assert_allclose([each["embedding"] for each in found.content["data"]], known[0][1:2], atol=1e-5)


def test_the_model_is_listed_as_openai_lists_its_own(served):
    listed = served.ask("/v1/models").content
    assert listed["object"] == "list" and served.ask("/v1/models/weather").content == listed["data"][0]
    assert {**listed["data"][0], "created": 0} == {
        "id": "weather",
        "object": "model",
        "created": 0,
        "owned_by": "torch-linformer",
    }


@pytest.mark.parametrize(("path", "method"), [("/predict", "POST"), ("/v1/models", "GET"), ("/health", "GET")])
def test_another_method_is_told_the_right_one(served, path, method):
    assert served.ask(path, method="DELETE").headers["allow"] == method


def test_special_tokens_in_a_text_are_text(served, classifier_run):
    """As to pipelines that open the folder."""
    text = "wet <mask> mud<sep><pad>"
    (record,) = served.ask("/classify", {"input": text}).content["data"]
    (found,) = pipeline("text-classification", model=str(classifier_run.folder), top_k=None)([text])
    assert record["probabilities"] == pytest.approx({each["label"]: each["score"] for each in found}, abs=5e-6)


@pytest.mark.parametrize("path", ["/classify", "/predict"])
def test_labels_are_those_of_linformer_predict(served, known, path):
    found = served.ask(path, {"input": TEXTS})
    assert found.status == 200
    for number, (record, expected) in enumerate(zip(found.content["data"], known[1], strict=True)):
        assert record.pop("index") == number
        assert record.pop("probabilities") == pytest.approx(expected["probabilities"], abs=5e-6)
        assert record == {name: expected[name] for name in ("label", "tokens", "cut")}


def test_a_long_text_is_refused_or_cut(served):
    status, code, message = served.refused("/predict", {"input": ["mud", LONG]})
    assert (status, code) == (413, "context_length_exceeded")
    assert message == 'input[1] has more tokens than the 24 that the model reads; send less of it, or "truncate": true'
    (record,) = served.ask("/predict", {"input": LONG, "truncate": True}).content["data"]
    assert record["cut"] and record["label"] == "snow" and record["tokens"] == 24


REFUSED = {
    (400, "invalid_json"): [
        ("/v1/embeddings", b'{"input": ', "the body must be JSON: Expecting value"),
        ("/v1/embeddings", b"", "the body must be JSON: Expecting value"),
        ("/v1/embeddings", b'"caf\xe9"', "the body must be JSON in UTF-8"),
        ("/v1/embeddings", b"[" * 15_000, "the body must be JSON: RecursionError"),
        ("/v1/embeddings", b"9" * 5_000, "the body must be JSON: ValueError"),
    ],
    (400, "invalid_value"): [
        ("/v1/embeddings", ["mud"], "the body must be a JSON object, got a list"),
        ("/classify", {}, "input must be a text or a list of texts, got nothing"),
        ("/classify", {"input": []}, "input must have from 1 to 2,048 texts, got 0"),
        ("/predict", {"input": "mud", "ids": ["a", "b"]}, "ids must be a list of texts, one for each"),
        ("/predict", {"input": "mud", "ids": "a"}, "ids must be a list of texts, got 'a'"),
        ("/predict", {"input": " \n"}, "input has no text"),
        ("/predict", b'{"input": "\\ud83d"}', "input has half of a surrogate pair"),
        ("/predict", {"input": "mud", "question": "who?"}, "questions are for models trained"),
        ("/v1/embeddings", {"input": "mud", "dimensions": 3}, "vectors of this model have 256"),
        ("/predict", {"input": "mud", "top_k": 3}, "unknown field 'top_k'; /predict takes model, "),
        ("/classify", {"input": "mud", "question": "who?"}, "unknown field 'question'"),
        ("/v1/embeddings", {"input": [[5, 10_000]]}, "token 10000 is none of this model's"),
        ("/v1/embeddings", {"input": [[5], "mud"]}, "input[1] must be a list of token ids like"),
        ("/v1/embeddings", {"input": [5, -1]}, "input[0] must be a list of token ids like"),
        ("/predict", {"input": [[5, 6]]}, "input[0] must be a text, got a list"),
        ("/embed", {"input": "mud"}, "inputs must be a text or a list of texts, got nothing"),
        ("/embed", {"inputs": "mud", "normalize": False}, "normalize must be true or left out, "),
        ("/embed", {"inputs": "mud", "truncation_direction": "left"}, "truncation_direction must be 'right' or left"),
        ("/v1/embeddings", {"input": "mud", "encoding_format": "int8"}, "encoding_format must be"),
        ("/v1/embeddings", {"input": "mud", "truncate": 1}, "truncate must be true or false, got"),
    ],
    (404, "model_not_found"): [
        ("/v1/embeddings", {"input": "mud", "model": "gpt"}, "no model 'gpt' here"),
        ("/v1/models/gpt", None, "no model 'gpt' here; this server has 'weather'"),
    ],
    (404, "no_such_path"): [
        ("/", None, "no such path; there are /v1/embeddings, /embed, /classify, /predict, "),
        ("/predict/", {"input": "mud"}, "no such path"),
    ],
    (405, "method_not_allowed"): [("/predict", None, "/predict takes POST, not GET")],
    (413, "body_too_large"): [
        ("/v1/embeddings", b"x" * 20_001, "the body has more than 20,000 bytes"),
        ("/v1/embeddings", b"x" * 20_000_000, "the body has more than 20,000 bytes"),
    ],
    (413, "too_many_tokens"): [
        ("/v1/embeddings", {"input": ["mud"] * 301}, "the texts have "),
        ("/v1/embeddings", {"input": [[5, 6]] * 151}, "the texts have more tokens than the 300"),
    ],
}


@pytest.mark.parametrize(
    ("expected", "path", "content", "message"),
    [(expected, *request) for expected, requests in REFUSED.items() for request in requests],
    ids=lambda value: None if isinstance(value, (bytes, dict, list)) else str(value),
)
def test_broken_requests_get_one_line_of_json(served, expected, path, content, message):
    *found, said = served.refused(path, content)
    assert tuple(found) == expected and said.startswith(message)


def test_a_body_that_is_announced_as_too_large_is_not_waited_for(served):
    with served.connect() as connection:
        connection.sendall(b"POST /predict HTTP/1.1\r\nHost: x\r\nContent-Length: 20001\r\n\r\n")
        status, content = read_response(connection)
    assert (status, content["error"]["code"]) == (413, "body_too_large")


def test_a_body_in_pieces_of_unknown_length_is_limited_too(served):
    with served.connect() as connection:
        head = b"POST /predict HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        connection.sendall(head + b"2710\r\n" + b"x" * 10_000 + b"\r\n")
        connection.sendall(b"2711\r\n" + b"x" * 10_001 + b"\r\n")
        status, content = read_response(connection)
    assert (status, content["error"]["code"]) == (413, "body_too_large")


def test_a_slow_client_is_told_and_holds_up_nobody(served):
    with served.connect() as connection:
        begin_request(connection, "/predict", {"input": "mud"}, 5)
        assert served.ask("/predict", {"input": "mud"}).status == 200
        status, content = read_response(connection)
        assert (status, content["error"]["message"]) == (408, "the body did not come within 1 seconds")
        assert connection.recv(1) == b""  # closed, because the rest may still come


def test_more_requests_than_the_queue_holds(served):
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(served.connect()) for _ in range(8)]
        rest = [begin_request(each, "/predict", {"input": "mud"}, 5) for each in connections]
        served.wait_for("linformer_open_requests", 8)
        found = served.ask("/predict", {"input": "mud"})
        assert found.status == 429 and found.headers["retry-after"] == "1"
        assert found.content["error"]["message"].startswith("8 requests are in work already")
        assert served.ask("/health").status == 200
        for connection, part in zip(connections, rest, strict=True):
            connection.sendall(part)
            assert read_response(connection)[0] == 200


def test_every_request_is_counted_once_whatever_became_of_it(served):
    """Answers and refusals of forty clients at once, and clients that close their connection."""
    served.wait_for("linformer_open_requests", 0)
    before, seen = served.counts(), []

    def client(number):
        content = {"input": TEXTS * 3} if number % 2 else {"input": number}
        for _ in range(5):
            seen.append(served.ask("/predict", content).status)

    clients = [threading.Thread(target=client, args=(number,)) for number in range(40)]
    for each in clients:
        each.start()
    for each in clients:
        each.join()
    for _ in range(5):
        with served.connect() as connection:
            begin_request(connection, "/predict", {"input": "mud"}, 5)
            served.wait_for("linformer_open_requests", 1)
        served.wait_for("linformer_open_requests", 0)
        seen.append(499)
    assert {200, 400, 499} <= set(seen) <= {200, 400, 429, 499}
    assert len(seen) == 205
    after = served.counts()
    for status in set(seen):
        name = f'linformer_requests_total{{path="/predict",status="{status}"}}'
        assert after[name] - before.get(name, 0) == seen.count(status), status


def test_health_and_metrics(served):
    found = served.ask("/health").content
    assert found["status"] == "ok" and found["model"] == "weather" and found["max_tokens_per_text"] == 24
    assert found["paths"] == ["/v1/embeddings", "/embed", "/classify", "/predict"]
    counts = served.counts()
    assert counts["linformer_failed_batches_total"] == 0
    assert counts["linformer_batch_windows_count"] > 0 and counts["linformer_tokens_total"] > 0


def test_sigterm_loses_nothing_that_was_accepted(start_server, classifier_run):
    """Its other options, too: a key, windows instead of cutting; without a key nobody but a watcher gets an answer."""
    options = ("--overflow", "windows", "--stride", "4", "--max-connections", "16")
    server = start_server(classifier_run.folder, "--api-key", "secret", *options)
    key = {"Authorization": "Bearer secret"}
    for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Basic secret"}):
        assert server.refused("/predict", {"input": "mud"}, headers=headers)[:2] == (401, "invalid_api_key")
        assert server.refused("/metrics", headers=headers)[0] == 401
    assert server.ask("/health").status == 200
    assert server.refused("/predict", {"input": "mud", "truncate": True}, headers=key)[0] == 400
    (record,) = server.ask("/predict", {"input": LONG}, headers=key).content["data"]
    assert not record["cut"] and record["tokens"] > 24

    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(server.connect()) for _ in range(40)]
        assert server.ask("/health").status == 200
        assert all(connection.recv(1) == b"" for connection in idle[:25])  # the 16 newest were open

    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(12)]
        rest = []
        for connection in connections:
            body = json.dumps({"input": TEXTS}).encode()
            head = f"POST /predict HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer secret\r\nContent-Length: {len(body)}"
            connection.sendall(head.encode() + b"\r\n\r\n" + body[:9])
            rest.append(body[9:])
        while "_open_requests 12.0" not in server.ask("/metrics", headers=key).content:
            pass
        server.process.send_signal(signal.SIGTERM)
        while _takes_clients(server):
            pass
        time.sleep(1)  # a server that waits for nobody would be gone
        for connection, part in zip(connections, rest, strict=True):
            connection.sendall(part)
        found = [read_response(connection) for connection in connections]
    assert [status for status, _ in found] == [200] * 12
    assert [record["label"] for record in found[0][1]["data"]] == ["rain", "sun", "snow", "rain"]
    assert server.process.wait(timeout=20) == 0
    assert server.process.stderr.read() == "every accepted request was answered\n"


def test_as_many_connections_as_descriptors_allow_and_requests_that_are_left_unanswered(start_server, classifier_run):
    """Those that have been idle longest make room; a request that is in work, and the newest, go on.

    A second interrupt ends the server at once; its exit status says that somebody got no answer.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (120, hard))
    try:
        server = start_server(classifier_run.folder)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in range(200)]
        rest = begin_request(connections[-1], "/predict", {"input": "mud"}, 5)
        server.wait_for("linformer_open_requests", 1)
        connections += [stack.enter_context(server.connect()) for _ in range(200)]
        connections[199].sendall(rest)
        assert read_response(connections[199])[0] == 200
        assert begin_request(connections[-1], "/predict", {"input": "mud"}, 1000) == b""
        assert read_response(connections[-1])[0] == 200
        assert all(connection.recv(1) == b"" for connection in connections[:199])

    with server.connect() as connection:
        begin_request(connection, "/predict", {"input": "mud"}, 5)
        server.wait_for("linformer_open_requests", 1)
        server.process.send_signal(signal.SIGINT)
        while _takes_clients(server):
            pass
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(timeout=20) == 1
    first, *lines = server.process.stderr.read().splitlines()
    assert re.fullmatch(r"at most \d+ connections, not 512: ulimit -n allows no more", first)
    assert lines == ["stopped with 1 requests unanswered"]


def test_caches_of_kernels_are_bounded_before_torch_is_loaded():
    """Unless the environment says how large they are."""
    lines = [
        "import os, sys",
        "from torch_linformer.cli.serve import serve",
        "try: serve('nowhere', api_key='')",
        "except ValueError: print(*map(os.environ.get, sys.argv[1:]), 'torch' in sys.modules)",
    ]
    names = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")
    environment = {name: value for name, value in os.environ.items() if name not in names}
    for preset, values in (({}, "64 64"), ({names[1]: "7"}, "64 7")):
        command = [sys.executable, "-c", "\n".join(lines), *names]
        told = subprocess.run(command, env={**environment, **preset}, capture_output=True, text=True, check=True)
        assert told.stdout == f"{values} False\n"


def _takes_clients(server):
    try:
        with socket.create_connection((server.host, server.port), timeout=5):
            return True
    except OSError:
        return False


def test_an_encoder_that_is_not_linear_is_served_in_windows(start_server, plain_encoder):
    server = start_server(plain_encoder)
    texts = ["wet", "the sea is warm and the sand is white"]
    answer = server.ask("/embed", {"inputs": texts})
    vectors = Embedder(plain_encoder, device="cpu", precision="fp32")(texts)
    np.testing.assert_allclose(answer.content, vectors, atol=1e-5)
    server.process.terminate()
    reads = f"{plain_encoder} reads a document in windows of 16 tokens and makes a vector of their mean"
    assert server.process.stderr.read().splitlines()[0] == reads
