"""`linformer serve` under load, and asked by OpenAI's own client."""

import json
import socket
import subprocess
import sys
import time

import numpy as np
import openai
import pytest
import torch

import serve_clients
from torch_linformer.inference.answer_files import EmbedSettings, answer_files
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification


@pytest.fixture
def folder(config, tokenizer, tmp_path):
    """A classifier that reads 256 tokens."""
    torch.manual_seed(0)
    longer = LinformerConfig(**{**config.to_diff_dict(), "max_position_embeddings": 256, "hidden_size": 240})
    LinformerForSequenceClassification(longer).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("path", ["/v1/embeddings", "/classify"])
def test_a_hundred_clients_at_once(folder, path):
    """For ten seconds; each gets every answer, the server has counted the same, and it ends when it is told to."""
    one, many = serve_clients.measure(str(folder), ["--device", "cpu"], clients=100, seconds=10, words=100, path=path)
    assert set(one.statuses) == set(many.statuses) == {200}
    assert many.statuses[200] == len(many.latencies) > 100
    assert max(many.latencies) < 10


def test_more_clients_than_the_queue_holds(folder):
    """Each request has an answer, 200 or 429."""
    options = ["--device", "cpu", "--max-queue", "20"]
    _, many = serve_clients.measure(str(folder), options, clients=100, seconds=4, words=100, path="/predict")
    assert set(many.statuses) == {200, 429}
    assert many.statuses.total() == len(many.latencies)


def test_a_client_that_does_not_take_its_answer_does_not_keep_the_server(folder):
    """The answer is larger than what the system holds for a connection."""
    command = [sys.executable, "-m", "torch_linformer.cli", "serve", str(folder), "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            port = int(server.stdout.readline().split("127.0.0.1:")[1].split(":")[0])
            body = json.dumps({"input": ["the wet mud"] * 2048}).encode()
            with socket.socket() as connection:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                connection.connect(("127.0.0.1", port))
                head = f"POST /v1/embeddings HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
                connection.sendall(head.encode() + body)
                assert connection.recv(12) == b"HTTP/1.1 200"
                server.terminate()
                begin = time.monotonic()
                assert server.wait(40) == 0
                assert 9 < time.monotonic() - begin < 20
        finally:
            server.kill()


def test_the_client_of_openai(folder, texts, tmp_path):
    """Its vectors are those of `linformer embed`, asked for as floats and, as it does by default, in base64."""
    (tmp_path / "texts.jsonl").write_text("".join(f'{{"text": "{text}"}}\n' for text in texts[0]))
    settings = EmbedSettings(model=str(folder), files=(str(tmp_path / "texts.jsonl"),), precision="fp32")
    answer_files(settings, tmp_path / "vectors.npy", device="cpu")
    command = [sys.executable, "-m", "torch_linformer.cli", "serve", str(folder), "--port", "0", "--device", "cpu"]
    options = ["--precision", "fp32", "--api-key", "secret", "--name", "ours"]
    with subprocess.Popen([*command, *options], stdout=subprocess.PIPE, text=True) as server:
        try:
            where = server.stdout.readline().split(" at ")[1].split(": ")[0]
            with openai.OpenAI(base_url=f"{where}/v1", api_key="secret", max_retries=0) as client:
                for form in ({}, {"encoding_format": "float"}):
                    found = client.embeddings.create(model="ours", input=texts[0], **form)
                    vectors = [each.embedding for each in found.data]
                    np.testing.assert_allclose(vectors, np.load(tmp_path / "vectors.npy"), atol=1e-5)
                assert found.usage.total_tokens == sum(len(text.split()) + 2 for text in texts[0])
                with pytest.raises(openai.NotFoundError, match="no model 'gpt' here"):
                    client.embeddings.create(model="gpt", input="mud")
            stranger = openai.OpenAI(base_url=f"{where}/v1", api_key="wrong", max_retries=0)
            with stranger, pytest.raises(openai.AuthenticationError, match="asks for its key"):
                stranger.embeddings.create(model="ours", input="mud")
        finally:
            server.terminate()
        assert server.wait(20) == 0
