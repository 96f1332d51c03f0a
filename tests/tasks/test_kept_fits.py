"""Results that are kept: for the same arguments, whole or fitted again, and not without end."""

import numpy as np
import pytest

from torch_linformer.data import words
from torch_linformer.tasks import kept_fits


@pytest.fixture
def doubled(monkeypatch, tmp_path):
    """A function that is kept, with the list of the calls that were computed, and its folder."""
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    calls = []

    @kept_fits.kept
    def double(x, *, more=0):
        calls.append(1)
        return 2 * x + more

    return double, calls, tmp_path / "torch_linformer" / "fits"


def test_each_call_is_computed_once(doubled):
    double, calls, folder = doubled
    for x in (np.arange(3), np.arange(3), np.arange(4)):
        np.testing.assert_array_equal(double(x), 2 * x)
    assert double(np.arange(3), more=1).tolist() == [1, 3, 5]
    assert len(calls) == len(list(folder.iterdir())) == 3


def test_other_code_fits_anew(doubled, monkeypatch):
    double, calls, _ = doubled
    double(1)
    monkeypatch.setattr(kept_fits, "_version", lambda: "another")
    assert double(1) == 2 and len(calls) == 2


def test_a_damaged_file_is_written_again(doubled):
    double, calls, folder = doubled
    double(np.arange(99))
    (file,) = folder.iterdir()
    file.write_bytes(file.read_bytes()[:-20])
    for _ in range(2):
        assert double(np.arange(99))[-1] == 196 and len(calls) == 2


def test_what_was_used_least_lately_goes_first(doubled, monkeypatch):
    double, calls, folder = doubled
    arrays = [np.full(1000, number) for number in range(4)]
    monkeypatch.setattr(kept_fits, "MOST_BYTES", 2.5 * arrays[0].nbytes)
    for array in (*arrays[:2], arrays[0], *arrays[2:]):
        double(array)
    assert len(list(folder.iterdir())) == 2 and len(calls) == 4
    double(arrays[3])
    assert len(calls) == 4
    double(arrays[1])
    assert len(calls) == 5


def test_another_way_to_divide_texts_into_words_fits_anew(tmp_path, monkeypatch):
    before = kept_fits._version.__wrapped__()
    (tmp_path / "words.py").touch()
    monkeypatch.setattr(words, "__file__", str(tmp_path / "words.py"))
    assert kept_fits._version.__wrapped__() != before
