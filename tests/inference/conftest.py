"""Nothing in these tests touches the user's caches or the network."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache):
    """Caches of the session's own, and the hub switched off."""
