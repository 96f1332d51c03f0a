"""What the tests of the mathematics share."""

import pytest
import torch


@pytest.fixture(autouse=True, scope="module")
def one_thread():
    """Tensors this small gain nothing from threads and lose much by waiting for them on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="session")
def gradients():
    """Function: gradients of an output, weighted by seeded random numbers, to each of some tensors."""

    def gradients_of(output, wanted):
        generator = torch.Generator().manual_seed(0)
        weights = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(output.dtype)
        return torch.autograd.grad(output, wanted, weights)

    return gradients_of
