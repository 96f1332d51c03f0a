"""Nothing in these tests touches the user's caches or the network."""

import pytest


@pytest.fixture(autouse=True, scope="module")
def surroundings(datasets_cache, one_thread):
    """Caches of the session's own, the hub switched off, and one thread."""
