"""The Johnson-Lindenstrauss bound against values worked out by hand."""

import pytest

from torch_linformer.functional import johnson_lindenstrauss_k


@pytest.mark.parametrize(
    ("n", "d", "eps", "expected"),
    [
        pytest.param(512, 64, 0.5, 125, id="length-decides"),  # 5 ln 512 = 31.19, over 0.25
        pytest.param(1_000_000, 64, 0.1, 6908, id="a-million-tokens"),  # 5 ln 10^6 = 69.078, over 0.01
        pytest.param(512, 2, 0.5, 50, id="width-decides"),  # 9 · 2 ln 2 = 12.48, over 0.25
        pytest.param(1, 64, 0.5, 1, id="one-token"),  # 5 ln 1 = 0, but a slot there must be
        pytest.param(512, 1, 0.5, 1, id="one-channel"),  # 9 ln 1 = 0
    ],
)
def test_slots_that_theorem_2_asks_for(n, d, eps, expected):
    assert johnson_lindenstrauss_k(n, d, eps) == expected


@pytest.mark.parametrize(("n", "d"), [(0, 64), (512, 0), (-1, -1)])
def test_sizes_below_one_are_refused(n, d):
    with pytest.raises(ValueError, match=f"n and d must be at least 1, got n={n} and d={d}"):
        johnson_lindenstrauss_k(n, d, 0.5)


@pytest.mark.parametrize("eps", [0.0, 1.0, -0.5, float("nan")])
def test_errors_outside_zero_to_one_are_refused(eps):
    with pytest.raises(ValueError, match=f"eps must lie strictly between 0 and 1, got {eps}"):
        johnson_lindenstrauss_k(512, 64, eps)
