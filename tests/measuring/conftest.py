"""One thread."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def surroundings(one_thread):
    """One thread."""
