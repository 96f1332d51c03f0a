"""A finished folder is uploaded as huggingface_hub uploads it, here to a server that speaks the hub's HTTP."""

import base64
import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import huggingface_hub
import pytest

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import run_adaptation
from torch_linformer.errors import InputError
from torch_linformer.training.train import train
from torch_linformer.training.train_settings import TrainSettings


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's API as an upload asks for; `server.files` and `server.made` are what came."""

    def do_GET(self):
        name = self.path.removeprefix("/api/models/").partition("/revision/")[0]
        role = self.headers["Authorization"].removeprefix("Bearer hf_")
        if self.path == "/api/whoami-v2" and role in ("write", "read"):
            self.answer({"name": "me", "auth": {"accessToken": {"role": role}}})
        elif self.server.made:
            self.answer({"id": name, "modelId": name, "sha": "0" * 40, "siblings": [], "private": True, "tags": []})
        else:
            self.answer({"error": "Invalid username or password."}, 401)

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"] or 0))
        server, refused = self.server, self.server.refused
        if refused in self.path:
            self.answer({"error": "no room for you"}, 403)
        elif self.path == "/api/repos/create":
            server.made.append(json.loads(body))
            self.answer({"url": f"{server.address}/me/{json.loads(body)['name']}"})
        elif "/preupload/" in self.path:
            files = [{"path": file["path"], "uploadMode": "regular"} for file in json.loads(body)["files"]]
            self.answer({"files": [{**file, "shouldIgnore": False, "oid": None} for file in files]})
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    server.files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            self.answer({"commitUrl": f"{server.address}/me/posts/commit/1", "commitOid": "1" * 40, "success": True})
        else:
            self.answer({})

    def answer(self, content, status=200):
        content = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Error-Message", "no room for you" if status == 403 else "")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *arguments):
        pass


@pytest.fixture
def hub(monkeypatch, datasets_cache):
    """Such a server, which HF_ENDPOINT and HF_TOKEN would name; `refused` is a part of the paths that it refuses."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    server.files, server.made, server.refused = {}, [], "nothing"
    server.address = f"http://127.0.0.1:{server.server_port}"
    for name, value in {"ENDPOINT": server.address, "HF_HUB_OFFLINE": False}.items():
        monkeypatch.setattr(huggingface_hub.constants, name, value)
    monkeypatch.setenv("HF_TOKEN", "hf_write")
    Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def test_a_finished_folder_is_uploaded_as_it_is(hub, train_quickly, tmp_path):
    options = {"max_steps": 1, "baseline": False, "push_to_hub": "posts"}
    shown = train_quickly(tmp_path / "run", **options)
    (made,) = hub.made
    assert made["name"] == "posts" and made["visibility"] == "private"
    written = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir()}
    assert hub.files == written
    assert {"model.safetensors", "tokenizer.json", "README.md", "report.html"} <= written.keys()
    assert shown.endswith(f"uploaded: {hub.address}/me/posts\n")
    hub.files.clear()  # as where the upload had failed: the run is finished, and is uploaded again
    assert "holds this run already" in train_quickly(tmp_path / "run", **options, resume=True)
    assert hub.files == written


def test_a_hub_that_takes_nothing_leaves_the_model(hub, train_quickly, model_copy):
    hub.refused = "/commit/"
    reason = r": http://\S+: [^\n]*no room for you[^\n]*; the model is in "
    again = rf"^--push-to-hub me/posts{reason}{re.escape(str(model_copy))}, and the same command with --resume up"
    with pytest.raises(InputError, match=again):
        train_quickly(model_copy, resume=True, push_to_hub="posts")
    assert (model_copy / "model.safetensors").exists() and (model_copy / "metrics.json").exists()


@pytest.mark.parametrize(
    ("token", "port", "refused", "message"),
    [
        ("", None, "nothing", "no token of the hub is here; log in by hf auth login, or set HF_TOKEN"),
        ("hf_wrong", None, "nothing", r"http://\S+: Invalid user token\.[^\n]*; nothing was trained"),
        ("hf_read", None, "nothing", r"http://\S+: this token may only read; [^\n]*; nothing was trained"),
        ("hf_write", None, "create", r"http://\S+: [^\n]*no room for you[^\n]*; nothing was trained"),
        ("hf_write", 9, "nothing", r"http://127.0.0.1:9: [^\n]*refused[^\n]*; nothing was trained"),
    ],
)
def test_what_keeps_it_from_uploading_is_said_before_anything_is_read(
    hub, monkeypatch, tmp_path, token, port, refused, message
):
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", str(tmp_path / "no token"))
    hub.refused = refused
    if port is not None:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{port}")
    options = {"data": "nowhere.csv", "output": str(tmp_path / "run"), "push_to_hub": "posts", "device": "cpu"}
    for begin in (
        lambda: train(TrainSettings(**options)),
        lambda: run_adaptation("nowhere", AdaptSettings(**options)),
    ):
        with pytest.raises(InputError, match=rf"^--push-to-hub posts: {message}$"):
            begin()
        assert not (tmp_path / "run").exists()
