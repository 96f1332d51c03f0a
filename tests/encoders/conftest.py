"""What the tests of linear encoders share: silence."""

import pytest


@pytest.fixture(autouse=True, scope="session")
def silence(quiet_transformers):
    """The models are saved and opened without a word."""
