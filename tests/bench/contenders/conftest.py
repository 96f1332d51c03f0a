"""Contenders begin with the same weights in every test."""

import pytest
import torch


@pytest.fixture(autouse=True)
def surroundings(one_thread):
    torch.manual_seed(0)
