"""Fields of a configuration set from text, as the ``--config_overrides`` of transformers' scripts do."""

import pytest

from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig


@pytest.mark.parametrize(
    ("text", "fields"),
    [
        ("window=16", {"window": 16}),
        ("causal=true,window=16,k=0", {"causal": True, "window": 16, "k": 0}),
        ("gated=1, norm_first=no", {"gated": True, "norm_first": False}),
        ("chunk_size=512,head_dim=32", {"chunk_size": 512, "head_dim": 32}),
        ("classifier_dropout=0.25", {"classifier_dropout": 0.25}),
        ("classifier_hidden_act=tanh,sharing=kv", {"classifier_hidden_act": "tanh", "sharing": "kv"}),
        ("hidden_dropout_prob=0", {"hidden_dropout_prob": 0.0}),
        ("eos_token_id=7,num_labels=5", {"eos_token_id": 7, "num_labels": 5}),
        ("num_attention_heads=6", {"num_attention_heads": 6, "num_key_value_heads": 6}),
        ("num_attention_heads=6,num_key_value_heads=2", {"num_attention_heads": 6, "num_key_value_heads": 2}),
    ],
)
def test_fields_are_set_from_text(text, fields):
    config = LinformerConfig()
    expected = {**config.to_dict(), **LinformerConfig(**fields).to_dict()}
    config.update_from_string(text)
    assert {name: getattr(config, name) for name in fields} == fields
    assert [type(getattr(config, name)) for name in fields] == [type(value) for value in fields.values()]
    assert config.to_dict() == expected


def test_an_optional_field_is_unset(tiny):
    config = tiny(window=6, num_key_value_heads=1)
    config.update_from_string("window=none,num_attention_heads=5")
    assert (config.window, config.num_attention_heads, config.num_key_value_heads) == (None, 5, 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("windw=16", "^LinformerConfig has no field 'windw': write name=value,name=value$"),
        ("window", r"^window cannot be '': it is int \| None$"),
        ("window=wide", r"^window cannot be 'wide': it is int \| None$"),
        ("causal=perhaps", "^causal cannot be 'perhaps': it is bool$"),
        ("class_weights=3", r"^class_weights cannot be '3': it is list\[float\] \| None$"),
        ("window=6,attention=full", "^window=6 has no effect on full attention: leave it at None$"),
        ("gated=true,k=30", "^k must lie between 1 and max_position_embeddings = 29, got 30$"),
    ],
)
def test_refused_text_leaves_the_configuration_as_it_was(tiny, text, message):
    config = tiny()
    before = config.to_dict()
    with pytest.raises(ValueError, match=message):
        config.update_from_string(text)
    assert config.to_dict() == before


def test_fields_of_an_encoder_decoder():
    config = LinformerSeq2SeqConfig()
    config.update_from_string("memory_k=7,eos_token_id=3,share_embeddings=false")
    assert (config.memory_k, config.eos_token_id, config.share_embeddings) == (7, 3, False)
