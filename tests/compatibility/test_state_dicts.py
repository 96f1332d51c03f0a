"""Parameters and buffers keep their names and shapes, so that every saved state dict can be loaded."""

import json

import pytest
from module_cases import CASES
from recorded import STATE_DICTS


@pytest.fixture(scope="module")
def recorded():
    return json.loads(STATE_DICTS.read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", CASES)
def test_names_and_shapes_are_those_recorded(recorded, name):
    state = CASES[name].module().state_dict()
    assert {key: list(tensor.shape) for key, tensor in state.items()} == recorded[name]


def test_every_record_has_its_case(recorded):
    assert set(recorded) == set(CASES)
