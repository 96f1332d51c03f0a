"""Rotary positions: scores that depend on distance alone, and how exactly."""

import math

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.functional.softmax import rotate

DOUBLE = {"dtype": torch.float64}


def draw(*shape, **options):
    return torch.randn(shape, generator=torch.Generator(torch.get_default_device()).manual_seed(0), **DOUBLE, **options)


def rotate_literally(x, positions, width, theta):
    """Each pair of channels as a complex number, one position at a time."""
    turned = x.clone()
    for row in range(x.shape[0]):
        for index, position in enumerate(positions[row % len(positions)].tolist()):
            for pair in range(width // 2):
                angle = position * theta ** (-2 * pair / width)
                factor = complex(math.cos(angle), math.sin(angle))
                ours, partner = x[row, :, index, pair], x[row, :, index, pair + width // 2]
                number = torch.complex(ours, partner) * factor
                turned[row, :, index, pair] = number.real
                turned[row, :, index, pair + width // 2] = number.imag
    return turned


@pytest.mark.parametrize("theta", [10000.0, 7.0])
@pytest.mark.parametrize("width", [2, 4, 6, 10])
@pytest.mark.parametrize("rows", [1, 2])
def test_output_and_gradient_are_those_of_the_definition(gradients, width, theta, rows):
    x = draw(2, 3, 5, 10, requires_grad=True)
    positions = torch.tensor([[0, 1, 2, 7, 100], [5, 4, 3, -1, 0]])[:rows]
    actual, expected = rotate(x, positions, width, theta), rotate_literally(x, positions, width, theta)
    assert_close(actual, expected)
    assert_close(gradients(actual, [x]), gradients(expected, [x]))


@pytest.mark.parametrize("width", [2, 6, 10])
def test_scores_depend_on_the_distance_of_positions_alone(width):
    query, key = draw(1, 1, 1, 10), draw(1, 1, 1, 10).flip(-1)

    def score(p, q):
        turned = [rotate(x, torch.tensor([[n]]), width) for x, n in ((query, p), (key, q))]
        return (turned[0] * turned[1]).sum()

    assert_close(score(3, 11), score(10_003, 10_011))
    assert_close(score(7, 7), (query * key).sum())
    assert (score(3, 11) - score(3, 12)).abs() > 1e-3
    assert (score(3, 11) - score(11, 3)).abs() > 1e-3


def test_lengths_stay_and_position_zero_is_where_it_was():
    x = draw(2, 3, 5, 6)
    turned = rotate(x, torch.arange(5).unsqueeze(0), 6)
    assert_close(turned.norm(dim=-1), x.norm(dim=-1))
    assert torch.equal(turned[:, :, 0], x[:, :, 0])
    assert not torch.isclose(turned[:, :, 1], x[:, :, 1]).all()


def test_channels_beyond_the_width_are_left_alone():
    x = draw(2, 3, 5, 10)
    positions = torch.arange(5).unsqueeze(0)
    assert torch.equal(rotate(x, positions, 4)[..., 4:], x[..., 4:])
    assert rotate(x, positions, 0) is x


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_angles_of_the_millionth_position_are_those_of_float32(dtype):
    x = draw(1, 1, 4, 8).to(dtype)
    positions = torch.tensor([[1_000_000, 999_999, 65_537, 12]])
    actual, exact = rotate(x, positions, 8), rotate(x.double(), positions, 8)
    assert actual.dtype == dtype
    # An angle is as wrong as its position times the roundings of the turn and of the product.
    allowed = 2 * torch.finfo(torch.float32).eps * positions[0, :, None] + 4 * torch.finfo(dtype).eps
    assert ((actual - exact).abs() <= allowed * x.double().norm(dim=-1, keepdim=True)).all()
