"""The documents of many files computed in several processes: the rows of one, and what is left where one is killed."""

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import torch

from torch_linformer.errors import InputError
from torch_linformer.inference import output_parts
from torch_linformer.inference.answer_files import PredictSettings, answer_files
from torch_linformer.inference.engines import Engine, in_processes

NUMBER = 400
SAME = {"device": "cpu", "batch_size": 1}  # sixteen documents at once
START = (
    "from torch_linformer.inference import output_parts; from torch_linformer.cli import main; "
    "output_parts.PART_SECONDS = 0.0; main()"
)
LOADS_FOR_EVER = """
import time
from torch_linformer.inference.engines import in_processes

class LoadsForEver:
    def __reduce__(self):
        return time.sleep, (10_000,)

next(in_processes(2, LoadsForEver(), ({"n": [number]} for number in range(8))))
"""


@pytest.fixture
def two_threads():
    """To be shared by two workers; one process is not to compute with them, as each would wait for the other."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def whole(settings, tmp_path_factory):
    """What one process says and writes."""
    folder = tmp_path_factory.mktemp("whole")
    return answer_files(settings, folder / "whole", max_errors=2, **SAME), folder / "whole"


@pytest.fixture(scope="module")
def given(tmp_path_factory, weather):
    """Two files of documents, with two lines among them that cannot be read."""
    folder = tmp_path_factory.mktemp("posts")
    for name, seed in (("a.jsonl", 5), ("b.jsonl", 6)):
        lines = [json.dumps({"text": text}) for text, _ in weather(NUMBER // 2, seed=seed)]
        (folder / name).write_text("\n".join([*lines[:70], "{", *lines[70:]]))
    return folder


@pytest.fixture(scope="module")
def settings(classifier_run, given):
    return PredictSettings(model=str(classifier_run.folder), files=(str(given),), precision="fp32")


def records_of(folder):
    manifest = json.loads((folder / "_manifest.json").read_text())
    return [json.loads(line) for part in manifest["parts"] for line in (folder / part["file"]).read_text().splitlines()]


def assert_same(records, expected):
    assert [r["document"] for r in records] == [r["document"] for r in expected] and len(records) == NUMBER
    for record, other in zip(records, expected, strict=True):
        assert record["probabilities"] == pytest.approx(other["probabilities"], abs=5e-6)
        assert {**record, "probabilities": 0} == {**other, "probabilities": 0}


def descendants(process):
    """The numbers of the processes below one: workers are copies of a process that has imported all."""
    return [below.pid for below in psutil.Process(process).children(recursive=True)]


def assert_ended(children):
    """That processes end by themselves, which are nobody's now."""
    for _ in range(6_000):
        if not any(Path(f"/proc/{child}").exists() for child in children):
            return
        time.sleep(0.01)
    raise AssertionError([child for child in children if Path(f"/proc/{child}").exists()])


def threads_and_rows(columns):
    """What a worker is asked in a test: in which process, and with how many threads. The last ones take for ever."""
    time.sleep(10_000 if columns["n"][0] >= 6 else 0)
    return {"process": [os.getpid()] * len(columns["n"]), "threads": [torch.get_num_threads()] * len(columns["n"])}


def test_workers_share_the_threads_and_end_when_nobody_waits(two_threads):
    torch.set_num_threads(4)
    results = in_processes(2, threads_and_rows, ({"n": [number]} for number in range(12)))
    found = [next(results) for _ in range(6)]
    assert {columns["threads"][0] for columns in found} == {2}
    workers = multiprocessing.active_children()
    assert {columns["process"][0] for columns in found} <= {worker.pid for worker in workers}
    results.close()
    assert not any(worker.is_alive() for worker in workers)


def test_two_workers_write_the_rows_of_one_process(whole, settings, tmp_path, two_threads):
    said = answer_files(settings, tmp_path / "two", max_errors=2, engine=Engine(workers=2), **SAME)
    assert said == whole[0] and said.startswith("400 documents") and ", 2 left out" in said
    assert_same(records_of(tmp_path / "two"), records_of(whole[1]))
    assert (whole[1] / "_errors.jsonl").read_text() == (tmp_path / "two" / "_errors.jsonl").read_text()


def test_a_killed_worker_ends_the_run_and_another_goes_on(whole, settings, tmp_path, monkeypatch, two_threads):
    monkeypatch.setattr(output_parts, "PART_SECONDS", 0.0)
    workers = []

    def kill(number):
        if number == 20:
            workers.extend(multiprocessing.active_children())
            os.kill(workers[0].pid, signal.SIGKILL)

    with pytest.raises(InputError, match=r"^a worker process was killed, perhaps for lack of memory; .*--resume"):
        answer_files(settings, tmp_path / "out", max_errors=2, engine=Engine(workers=2), on_document=kill, **SAME)
    assert len(workers) == 2 and not any(worker.is_alive() for worker in workers)
    before = records_of(tmp_path / "out")
    assert 0 < len(before) < NUMBER
    torch.set_num_threads(1)
    answer_files(settings, tmp_path / "out", max_errors=2, resume=True, **SAME)
    assert records_of(tmp_path / "out")[: len(before)] == before
    assert_same(records_of(tmp_path / "out"), records_of(whole[1]))


def test_workers_end_with_a_command_that_is_killed(whole, settings, given, tmp_path):
    command = ["predict", settings.model, str(given), "--output", str(tmp_path / "out"), "--max-errors", "2"]
    options = ["--workers", "2", "--device", "cpu", "--precision", "fp32", "--batch-size", "1"]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen([sys.executable, "-c", START, *command, *options], env=environment)
    manifest = tmp_path / "out" / "_manifest.json"
    while not (manifest.exists() and json.loads(manifest.read_text())["parts"]):
        assert process.poll() is None
        time.sleep(0.01)
    workers = descendants(process.pid)
    assert len(workers) >= 3  # two, and what they are copies of
    process.kill()
    process.wait()
    assert_ended(workers)
    answer_files(settings, tmp_path / "out", max_errors=2, resume=True, **SAME)
    assert_same(records_of(tmp_path / "out"), records_of(whole[1]))


def test_workers_end_with_a_command_that_is_killed_while_they_start():
    process = subprocess.Popen([sys.executable, "-c", LOADS_FOR_EVER])
    workers = []
    while len(workers) < 4:  # a tracker of resources, too
        assert process.poll() is None
        workers = descendants(process.pid)
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert_ended(workers)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"workers": 3}, r"--workers 3 cannot share 2 threads \(OMP_NUM_THREADS\): take fewer"),
        ({"workers": 0}, "--workers must be 1 or more, got 0"),
        ({"name": "spark"}, "--engine must be one of local, ray, got 'spark'"),
        ({"ray_address": "auto"}, "--ray-address is for --engine ray"),
        ({"workers": 2, "compile": True}, "--compile is for a single process: leave out --workers and --engine ray"),
        ({"name": "ray", "compile": True}, "--compile is for a single process: leave out --workers and --engine ray"),
    ],
)
def test_an_engine_that_is_not_there_is_refused(settings, tmp_path, options, problem, two_threads):
    compiled = options.pop("compile", False)
    with pytest.raises(InputError, match=f"^{problem}$"):
        answer_files(settings, tmp_path / "out", engine=Engine(**options), compile=compiled, **SAME)
    assert not (tmp_path / "out").exists()
