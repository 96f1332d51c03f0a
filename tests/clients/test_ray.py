"""A real local Ray of two workers, one of which is killed in the middle: the rows, parts and errors of one process."""

import json
import os
import signal

import psutil
import pytest
import torch

from torch_linformer.errors import InputError
from torch_linformer.inference import Embedder, Predictor, output_parts
from torch_linformer.inference.answer_files import PredictSettings, answer_files
from torch_linformer.inference.engines import Engine
from torch_linformer.models import LinformerForQuestionAnswering
from torch_linformer.opening.load import load_config, load_tokenizer

NUMBER = 600
SAME = {"device": "cpu", "batch_size": 1}  # sixteen documents at once


@pytest.fixture(scope="module")
def cluster():
    """A Ray of two processors."""
    ray = pytest.importorskip("ray", reason="the extra ray is not installed")
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False)
    yield ray
    ray.shutdown()


@pytest.fixture
def two_threads():
    """To be shared by two workers."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def settings(classifier_run, weather, tmp_path_factory):
    """Files of documents, with two lines among them that cannot be read."""
    folder = tmp_path_factory.mktemp("posts")
    for name, seed in (("a.jsonl", 5), ("b.jsonl", 6)):
        lines = [json.dumps({"text": text}) for text, _ in weather(NUMBER // 2, seed=seed)]
        (folder / name).write_text("\n".join([*lines[:70], "{", *lines[70:], '{"text": ""}']))
    return PredictSettings(model=str(classifier_run.folder), files=(str(folder),), precision="fp32")


def records_of(folder):
    manifest = json.loads((folder / "_manifest.json").read_text())
    return [json.loads(line) for part in manifest["parts"] for line in (folder / part["file"]).read_text().splitlines()]


def actors():
    """The processes that have a model."""
    return [
        child for child in psutil.Process().children(recursive=True) if "ray::Predictor" in " ".join(child.cmdline())
    ]


def test_a_killed_worker_changes_no_row(cluster, settings, tmp_path, monkeypatch, two_threads):
    monkeypatch.setattr(output_parts, "PART_SECONDS", 0.0)
    torch.set_num_threads(1)  # two would wait for each other
    said = {"one": answer_files(settings, tmp_path / "one", max_errors=2, **SAME)}
    torch.set_num_threads(2)
    killed = []

    def kill(number):
        if number == 20:
            killed.extend(actors()[:1])
            os.kill(killed[0].pid, signal.SIGKILL)

    engine = Engine(name="ray", workers=2)
    said["ray"] = answer_files(settings, tmp_path / "ray", max_errors=2, engine=engine, on_document=kill, **SAME)
    assert len(killed) == 1 and not killed[0].is_running()
    assert said["ray"] == said["one"] and said["one"].startswith(f"{NUMBER} documents") and ", 2 skipped" in said["one"]
    one, by_ray = (records_of(tmp_path / name) for name in ("one", "ray"))
    assert [record["document"] for record in by_ray] == [record["document"] for record in one] and len(one) == NUMBER
    for record, other in zip(by_ray, one, strict=True):
        assert list(record) == list(other)
        assert record["probabilities"] == pytest.approx(other["probabilities"], abs=5e-6)
        assert {**record, "probabilities": 0} == {**other, "probabilities": 0}
    assert (tmp_path / "ray" / "_errors.jsonl").read_text() == (tmp_path / "one" / "_errors.jsonl").read_text()


def test_an_interrupted_run_goes_on_and_bad_records_end_another(cluster, settings, tmp_path, monkeypatch):
    monkeypatch.setattr(output_parts, "PART_SECONDS", 0.0)
    engine = Engine(name="ray", workers=1)

    def stop(number):
        if number == 100:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        answer_files(settings, tmp_path / "out", max_errors=2, on_document=stop, **SAME)
    before = records_of(tmp_path / "out")
    answer_files(settings, tmp_path / "out", max_errors=2, resume=True, engine=engine, **SAME)
    records = records_of(tmp_path / "out")
    assert records[: len(before)] == before and 0 < len(before) < 100
    assert len(records) == len({record["document"] for record in records}) == NUMBER

    with pytest.raises(
        InputError, match=r"b\.jsonl, line 71: not valid JSON .*; it is one more than --max-errors 1, see"
    ):
        answer_files(settings, tmp_path / "few", max_errors=1, engine=engine, **SAME)


def test_an_error_of_the_input_is_one_line(cluster, settings, tmp_path):
    """One that a worker meets, and no bad record: a model that answers questions, and a text without one."""
    model, tokenizer = LinformerForQuestionAnswering(load_config(settings.model)), load_tokenizer(settings.model)
    model.save_pretrained(tmp_path / "qa")
    tokenizer.save_pretrained(tmp_path / "qa")
    (tmp_path / "letter.txt").write_text("wet mud")
    asked = PredictSettings(model=str(tmp_path / "qa"), files=(str(tmp_path / "letter.txt"),))
    with pytest.raises(InputError, match=r"^\S+letter\.txt: a text without a question; ask one .* with --question$"):
        answer_files(asked, tmp_path / "out", engine=Engine(name="ray"), **SAME)


@pytest.mark.parametrize("kind", [Predictor, Embedder])
def test_a_dataset_of_ray_maps_one(cluster, settings, kind):
    texts = ["wet grey mud", "naïve sand and sea", "ice " * 60]
    data = cluster.data.from_items([{"id": number, "text": text} for number, text in enumerate(texts)])
    arguments = {"fn_constructor_args": (settings.model,), "fn_constructor_kwargs": {"device": "cpu"}}
    mapped = data.map_batches(kind, compute=cluster.data.ActorPoolStrategy(size=1), **arguments)
    rows = sorted(mapped.take_all(), key=lambda row: row["id"])
    alone = kind(settings.model, device="cpu")({"text": texts})
    assert [row["cut"] for row in rows] == [False, False, True] and rows[0].keys() == {"id", *alone}
    name = "embedding" if kind is Embedder else "probabilities"
    for row, values in zip(rows, alone[name], strict=True):
        assert row[name] == pytest.approx(values, abs=1e-5)


def test_more_workers_than_processors_are_refused(cluster, settings, tmp_path):
    with pytest.raises(InputError, match="--workers 3: Ray has 2 processors; take as many at most"):
        answer_files(settings, tmp_path / "out", engine=Engine(name="ray", workers=3, ray_address="local"), **SAME)


def test_a_linear_encoder_of_transformers(cluster, linear_folder):
    """Each worker makes its class of the folder."""
    texts = ["wet mud", "the sand of the warm sea and ice"]
    embedder = Embedder(str(linear_folder("ModernBert")), device="cpu", precision="fp32")
    data = cluster.data.from_items([{"id": number, "text": text} for number, text in enumerate(texts)])
    arguments = {"fn_constructor_args": (embedder.model,), "fn_constructor_kwargs": embedder.options}
    mapped = data.map_batches(Embedder, compute=cluster.data.ActorPoolStrategy(size=1), **arguments)
    rows = sorted(mapped.take_all(), key=lambda row: row["id"])
    for row, vector in zip(rows, embedder(texts), strict=True):
        assert row["embedding"] == pytest.approx(vector, abs=1e-5)
