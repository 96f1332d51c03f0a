"""What the tests of linear encoders share: silence."""

import pytest
from transformers.utils import logging


@pytest.fixture(autouse=True, scope="session")
def quiet_transformers():
    """No progress bars and no load reports."""
    verbosity = logging.get_verbosity()
    logging.disable_progress_bar()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(verbosity)
    logging.enable_progress_bar()
