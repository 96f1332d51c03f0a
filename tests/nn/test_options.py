"""Options of attentions, layers and stacks: declared once, and refused where nothing would read them."""

import inspect

import pytest

from torch_linformer import LinformerConfig
from torch_linformer.models.configuration import FIELDS
from torch_linformer.nn import (
    LinformerAttention,
    LinformerDecoder,
    LinformerDecoderLayer,
    LinformerEncoder,
    LinformerEncoderLayer,
)
from torch_linformer.nn.attention import ATTENTIONS
from torch_linformer.nn.options import DEFAULT_K, DEFAULTS, AttentionOptions

MODULES = [LinformerAttention, LinformerEncoderLayer, LinformerEncoder, LinformerDecoderLayer, LinformerDecoder]


def test_every_declared_option_has_a_default_and_an_attention_that_reads_it():
    assert DEFAULTS.keys() == AttentionOptions.__annotations__.keys()
    contexts = [context for kind in ATTENTIONS.values() for context in kind.values()]
    others = {"num_kv_heads": 2, "head_dim": 3, "projection": "random", "sharing": "kv", "length_scaling": False}
    others |= {"causal": True, "window": 4, "rotary_dim": 2, "slot_bias": True}
    assert others.keys() == DEFAULTS.keys()
    for name, other in others.items():
        chosen = {**DEFAULTS, name: other}
        assert any(name not in context.unused_options(chosen) for context in contexts), name


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_constructors_name_k_alike_and_take_the_rest_as_options(module):
    parameters = inspect.signature(module).parameters
    assert parameters["k"].default == DEFAULT_K
    assert parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
    assert not DEFAULTS.keys() & parameters.keys()


def test_a_configuration_has_the_same_defaults():
    config = LinformerConfig()
    assert config.k == DEFAULT_K
    assert {name: getattr(config, name) for name in FIELDS} == {name: DEFAULTS[name] for name in FIELDS}
