"""Fits find the coefficients that made the points, and say nothing where there are too few."""

import pytest

from suites.measurements import fit_exponent, fit_quadratic

LENGTHS = [512, 1024, 2048, 4096, 8192]


@pytest.mark.parametrize("terms", [(0.003, 2e-6, 4e-9), (0.0, 0.0, 1e-9), (0.5, 1e-5, 0.0)])
def test_the_quadratic_is_found_and_goes_on(terms):
    constant, linear, quadratic = terms
    fit = fit_quadratic([(n, constant + linear * n + quadratic * n**2) for n in LENGTHS])
    assert tuple(fit.coef) == pytest.approx(terms, rel=1e-6, abs=1e-14)
    assert fit(65536) == pytest.approx(constant + linear * 65536 + quadratic * 65536**2, rel=1e-6)


def test_no_term_is_negative():
    fit = fit_quadratic([(n, 1e-6 * n**2 - 0.1) for n in LENGTHS])
    assert fit.coef.min() >= 0


def test_errors_count_relative_to_the_cost():
    # Ten percent too much at the longest is as bad as ten percent at the shortest, not ten thousand times worse.
    points = [(n, 1e-9 * n**2) for n in LENGTHS[:-1]] + [(8192, 1.1e-9 * 8192**2)]
    fit = fit_quadratic(points)
    assert fit(512) == pytest.approx(points[0][1], rel=0.05)


@pytest.mark.parametrize("points", [[], [(512, 1.0)], [(512, 1.0), (1024, 2.0)], [(512, 1.0), (512, 2.0), (1024, 3.0)]])
def test_three_lengths_are_needed_for_a_quadratic(points):
    assert fit_quadratic(points) is None


@pytest.mark.parametrize("power", [0.0, 1.0, 1.5, 2.0])
def test_the_exponent_is_found(power):
    assert fit_exponent([(n, 3e-5 * n**power) for n in LENGTHS]) == pytest.approx(power)


@pytest.mark.parametrize("points", [[], [(512, 1.0)], [(512, 1.0), (512, 2.0)]])
def test_two_lengths_are_needed_for_an_exponent(points):
    assert fit_exponent(points) is None
