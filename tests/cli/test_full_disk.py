import os
import shutil
import subprocess

import pytest
from transformers import AutoTokenizer

from torch_linformer.cli.app import run

FULL = "linformer: the disk is full: make room, then run the same command again, with --resume where it began a run\n"


@pytest.fixture
def small_disk(tmp_path):
    """A function: mount a file system of so many KB; called again, it changes the size."""
    place = tmp_path / "disk"
    place.mkdir()
    mount = shutil.which("mount")
    if mount is None or os.geteuid() != 0:
        pytest.skip("a small file system can be mounted by root alone")

    def resize(kilobytes):
        options = f"{'remount,' if os.path.ismount(place) else ''}size={kilobytes}k"
        command = [mount, "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"no small file system here: {done.stderr.strip()}")
        return place

    yield resize
    if os.path.ismount(place):
        subprocess.run(["umount", "--lazy", str(place)], check=True)


def outcome(arguments, capfd):
    with pytest.raises(SystemExit) as exit_:
        run([str(argument) for argument in arguments])
    return exit_.value.code, capfd.readouterr().err


@pytest.mark.parametrize("kilobytes", [400, 4_000])  # full in the weights, in the second checkpoint
@pytest.mark.usefixtures("measured_once")
def test_train(small_disk, quick, as_arguments, classifier_run, capfd, kilobytes):
    place = small_disk(kilobytes)
    arguments = ["train", *as_arguments({**quick, "output": place / "run"})]
    assert outcome(arguments, capfd) == (2, FULL)
    assert not (place / "run" / "metrics.json").exists()
    small_disk(50_000)
    assert outcome([*arguments, "--resume"], capfd) == (0, "")
    path = "model.safetensors"
    assert (place / "run" / path).read_bytes() == (classifier_run.folder / path).read_bytes()


@pytest.mark.usefixtures("measured_once")
def test_adapt(small_disk, save_source, classifier_run, tmp_path, write_csv, weather, capfd):
    source = save_source(tmp_path / "small", AutoTokenizer.from_pretrained(classifier_run.folder))
    texts, weights = write_csv(tmp_path / "texts.csv", weather(200, seed=1)), "model.safetensors"
    arguments = [
        "adapt",
        source,
        "--data",
        texts,
        "--k",
        4,
        "--exact-below",
        0,
        "--steps",
        4,
        "--batch-size",
        2,
        "--device",
        "cpu",
    ]
    arguments += ["--no-probe"]
    assert outcome([*arguments, "--output", tmp_path / "whole"], capfd) == (0, "")
    for kilobytes in (100, 700):  # full in the first checkpoint, and in a later one
        output = small_disk(kilobytes) / "run"
        assert outcome([*arguments, "--output", output], capfd) == (2, FULL)
        assert not (output / "adaptation.json").exists()
        small_disk(50_000)
        assert outcome([*arguments, "--output", output, "--resume"], capfd) == (0, "")
        assert (output / weights).read_bytes() == (tmp_path / "whole" / weights).read_bytes()
        shutil.rmtree(output)


def test_predict(small_disk, classifier_run, tmp_path, write_csv, capfd):
    path = write_csv(tmp_path / "t.csv", [("wet mud", i) for i in range(300)], header=("text", "id"))
    place = small_disk(8)
    arguments = ["predict", classifier_run.folder, path, "--output", place / "out.jsonl", "--device", "cpu"]
    status, error = outcome(arguments, capfd)
    assert status == 2 and error.endswith(f"\n{FULL}")
    assert os.listdir(place) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_predict_into_a_device_that_is_full(classifier_run, tmp_path, capfd):
    (tmp_path / "t.txt").write_text("wet mud")
    arguments = ["predict", classifier_run.folder, tmp_path / "t.txt", "--output", "/dev/full", "--device", "cpu"]
    assert outcome(arguments, capfd) == (2, FULL)
