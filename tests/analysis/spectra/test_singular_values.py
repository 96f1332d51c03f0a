"""Matrices whose spectrum is known, in closed form where there is one."""

import math

import pytest
import torch

from torch_linformer.analysis.spectra.spectrum import exact_singular_values, randomised_singular_values

N = 101


def triangular(size):
    """Ones on and below the diagonal, and its singular values, largest first."""
    values = [1 / (2 * math.sin((2 * k - 1) * math.pi / (4 * size + 2))) for k in range(1, size + 1)]
    return torch.ones(size, size).tril(), torch.tensor(values, dtype=torch.float64)


def falling(size, rate=0.8):
    """A matrix of random directions whose singular values fall by a factor, and these."""
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.linalg.qr(torch.randn(size, size, generator=generator).double())[0] for _ in range(2))
    values = rate ** torch.arange(size, dtype=torch.float64)
    return left @ torch.diag(values) @ right.mT, values


KNOWN = {
    "uniform": (torch.full((N, N), 1 / N), torch.eye(N, dtype=torch.float64)[0]),
    "identity": (torch.eye(N), torch.ones(N, dtype=torch.float64)),
    "triangular": triangular(N),
    "falling": falling(N),
    "all to one token": (torch.eye(N)[:1].expand(N, N), math.sqrt(N) * torch.eye(N, dtype=torch.float64)[0]),
    "one token": (torch.ones(1, 1), torch.ones(1, dtype=torch.float64)),
}


def attention(size, width=16):
    generator = torch.Generator().manual_seed(1)
    queries, keys = (2 * torch.randn(size, width, generator=generator) for _ in range(2))
    return torch.softmax(queries @ keys.mT / math.sqrt(width), dim=-1)


@pytest.mark.parametrize("name", KNOWN)
def test_exact_values_of_a_known_spectrum(name):
    matrix, expected = KNOWN[name]
    found = exact_singular_values(matrix)
    # The Gram matrix keeps half of float64's digits; what is zero comes out as noise of that size.
    torch.testing.assert_close(found.values, expected, rtol=1e-7, atol=1e-7 * float(expected[0]))
    assert found.energy == pytest.approx(float(expected.square().sum()))
    assert found.total() == pytest.approx((float(expected.sum()),) * 2, rel=1e-5)


def test_exact_values_are_those_of_a_singular_value_decomposition():
    matrix = attention(N)
    expected = torch.linalg.svdvals(matrix.double())
    torch.testing.assert_close(exact_singular_values(matrix).values, expected, rtol=1e-7, atol=1e-7)


@pytest.mark.parametrize("name", ["uniform", "identity", "triangular", "falling", "all to one token"])
def test_randomised_values_of_a_known_spectrum(name):
    matrix, expected = KNOWN[name]
    found = randomised_singular_values(matrix, 20)
    torch.testing.assert_close(found.values, expected[:20], rtol=0.005, atol=1e-5 * float(expected[0]))
    missing = float(expected[20:].square().sum() / expected.square().sum())
    assert found.missing_energy == pytest.approx(missing, abs=0.003)
    lowest, highest = found.total()
    assert lowest <= float(expected.sum()) * 1.001 and highest >= float(expected.sum()) * 0.999


def test_both_methods_agree_on_attention_within_what_the_randomised_one_says_of_itself():
    matrix = attention(307)
    exact, randomised = exact_singular_values(matrix), randomised_singular_values(matrix, 60)
    assert len(randomised.values) == 60
    # Values inside a subspace are never above the true ones; the largest are found best.
    assert (randomised.values <= exact.values[:60] * (1 + 1e-6)).all()
    torch.testing.assert_close(randomised.values[:30], exact.values[:30], rtol=0.01, atol=0)
    assert randomised.energy == pytest.approx(exact.energy)
    truly_missing = float(exact.values[60:].square().sum()) / exact.energy
    assert truly_missing - 1e-6 <= randomised.missing_energy <= truly_missing + 0.01
    lowest, highest = randomised.total()
    assert lowest < exact.total()[0] < highest


def test_a_rank_above_the_size_gives_all_values():
    matrix, expected = triangular(13)
    found = randomised_singular_values(matrix, 50)
    torch.testing.assert_close(found.values, expected, rtol=1e-5, atol=1e-5)
    assert found.missing_energy == pytest.approx(0, abs=1e-6)


def test_the_random_start_is_repeatable_and_nobody_else_s():
    matrix = attention(83)
    torch.manual_seed(3)
    before = torch.random.get_rng_state()
    first = randomised_singular_values(matrix, 10).values
    assert torch.equal(torch.random.get_rng_state(), before)
    assert torch.equal(randomised_singular_values(matrix, 10).values, first)
    assert not torch.equal(randomised_singular_values(matrix, 10, seed=1).values, first)
