"""What the tests of the mathematics share."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def surroundings(one_thread):
    """Tensors this small gain nothing from threads."""
