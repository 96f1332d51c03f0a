"""`--k @spectrum.json`: which numbers it means, and what is wrong with a file."""

import dataclasses
import json

import pytest

from torch_linformer.errors import InputError
from torch_linformer.training.sizes import SIZES
from torch_linformer.training.train_settings import TrainSettings

LAYERS = SIZES["small"].layers
KS = list(range(40, 40 + LAYERS))


@pytest.fixture(autouse=True)
def file(tmp_path, monkeypatch):
    """The current folder, with K for two lengths in it."""
    monkeypatch.chdir(tmp_path)
    levels = {"90": {"layers": [7] * LAYERS}, "95": {"layers": KS}, "99": {"layers": [50, None, *KS[2:]]}}
    other = {"95": {"layers": [9] * LAYERS}}
    by_loss = {**other, "loss": {"bound": 0.4, "layers": [11] * LAYERS}}
    none = {**other, "loss": {"bound": 0.4, "layers": [None] * LAYERS}}
    lengths = {128: other, 512: levels, 1024: by_loss, 2048: none}
    record = {"spectra": [{"length": each, "suggested_k": found} for each, found in lengths.items()]}
    (tmp_path / "spectrum.json").write_text(json.dumps(record))
    (tmp_path / "not.json").write_text("{")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "other.json").write_text('{"spectra": [{"length": 512}]}')


def of_training(k, **options):
    return TrainSettings.of(**{"k": k, "size": "small", "max_length": 512, **options})


def test_the_k_of_the_length_and_the_share():
    assert of_training("@spectrum.json").slots == KS
    assert of_training("@spectrum.json:90").slots == [7] * LAYERS
    assert of_training("@spectrum.json", max_length=128).slots == [9] * LAYERS
    assert of_training("@spectrum.json", max_length=1024).slots == [11] * LAYERS
    assert of_training("@spectrum.json:95", max_length=1024).slots == [9] * LAYERS


def test_a_run_is_the_numbers_and_not_the_file():
    found = of_training("@spectrum.json")
    assert found.k == ",".join(map(str, KS))
    assert found == of_training(found.k) == dataclasses.replace(found)


@pytest.mark.parametrize(
    ("k", "options", "message"),
    [
        ("@", {}, "--k @: name a file of linformer spectrum after the @"),
        ("@gone.json", {}, "--k @gone.json: No such file or directory"),
        ("@not.json", {}, "--k @not.json: is no spectrum.json of linformer spectrum"),
        ("@list.json", {}, "--k @list.json: is no spectrum.json of linformer spectrum"),
        ("@other.json", {}, "--k @other.json: is no spectrum.json of linformer spectrum"),
        ("@spectrum.json:80", {}, "--k @spectrum.json:80: has K for 90, 95, 99 % of the energy, not for 80"),
        (
            "@spectrum.json:99",
            {},
            "--k @spectrum.json:99: layer 2 needs more singular values for 99 % than were computed; take a smaller "
            "share, or measure more with linformer spectrum --rank",
        ),
        (
            "@spectrum.json",
            {"max_length": 4096},
            "--k @spectrum.json: has K for 128, 512, 1,024, 2,048 tokens, not for --max-length 4096; measure it with "
            "linformer spectrum --length 4096, or take another --max-length",
        ),
        ("@spectrum.json:80", {"max_length": 1024}, "--k @spectrum.json:80: has K for 95 % of the energy, not for 80"),
        (
            "@spectrum.json",
            {"max_length": 2048},
            "--k @spectrum.json: no K that was tried keeps the loss below 0.4; name a share of the energy, as "
            "@spectrum.json:95",
        ),
        (
            "@spectrum.json",
            {"size": "tiny"},
            f"--k @spectrum.json: has K for {LAYERS} layers, but --size tiny has 1; take another --size",
        ),
    ],
)
def test_what_is_wrong_is_said_in_one_line(k, options, message):
    with pytest.raises(InputError) as error:
        of_training(k, **options)
    assert str(error.value) == message
