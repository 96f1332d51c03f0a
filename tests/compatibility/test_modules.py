"""Modules give the outputs and gradients that they gave when they were recorded."""

import pytest
from module_cases import CASES, record_module
from recorded import FLOAT64, MODULES
from safetensors.torch import load_file
from torch.testing import assert_close


@pytest.fixture(scope="module")
def recorded():
    return load_file(MODULES)


@pytest.mark.parametrize("name", CASES)
def test_outputs_and_gradients_are_those_recorded(recorded, name):
    expected = {key.partition(".")[2]: tensor for key, tensor in recorded.items() if key.partition(".")[0] == name}
    assert expected, "nothing is recorded of this case: run make_fixture.py"
    assert_close(record_module(CASES[name]), expected, **FLOAT64)


def test_every_record_has_its_case(recorded):
    assert {key.partition(".")[0] for key in recorded} == set(CASES)
