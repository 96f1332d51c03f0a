"""One thread, and the folder itself on the path: its tests share the cases and what is recorded of them."""

import sys
from pathlib import Path

import pytest

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)


@pytest.fixture(autouse=True, scope="module")
def surroundings(one_thread):
    """Tensors this small gain nothing from threads."""
