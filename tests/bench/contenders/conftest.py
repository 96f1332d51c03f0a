"""Contenders begin with the same weights in every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def surroundings():
    torch.manual_seed(0)
