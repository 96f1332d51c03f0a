"""Where models are small, threads only get in each other's way."""

import pytest
import torch


@pytest.fixture(scope="session")
def randomize():
    """Function: moves every parameter of a module from its first value, so that no bias is 0 and no norm 1."""

    def move(module):
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return module.eval()

    return move
