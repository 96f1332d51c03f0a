"""The paper's figures stand where the paper has them."""

import pytest

from suites.table3 import MEMORY_SAVED, TIME_SAVED


@pytest.mark.parametrize(
    ("length", "k", "time", "memory"),
    [
        (512, 128, 1.5, 1.7),
        (1024, 512, 1.3, 1.8),
        (2048, 1024, 1.3, 2.0),
        (4096, 256, 3.2, 13),
        (8192, 2048, 2.1, 4.5),
        (16384, 512, 7.0, 32),
        (32768, 1024, 8.8, 18),
        (65536, 128, 20, 60),
        (65536, 2048, 7.9, 18),
    ],
)
def test_published_cells(length, k, time, memory):
    assert (TIME_SAVED[length, k], MEMORY_SAVED[length, k]) == (time, memory)


@pytest.mark.parametrize("table", [TIME_SAVED, MEMORY_SAVED])
def test_there_is_a_number_wherever_k_is_at_most_half_of_n(table):
    lengths, ks = [2**power for power in range(9, 17)], [128, 256, 512, 1024, 2048]
    assert set(table) == {(n, k) for n in lengths for k in ks if 2 * k <= n}
