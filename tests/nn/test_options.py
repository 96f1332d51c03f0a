"""Options of attentions, layers and stacks: declared once, and refused where nothing would read them."""

import inspect
import re
import typing

import pytest
from builders import DECODERS, SELF_ATTENTION, attention, decoder, decoder_layer, encoder, encoder_layer, full_attention

from torch_linformer import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.encoders import LinearOptions
from torch_linformer.models.configuration import FIELDS
from torch_linformer.nn import (
    LinformerAttention,
    LinformerDecoder,
    LinformerDecoderLayer,
    LinformerEncoder,
    LinformerEncoderLayer,
    SequenceProjection,
    options,
)
from torch_linformer.nn.attention import CONTEXTS
from torch_linformer.nn.encoder import Encoder
from torch_linformer.nn.options import DEFAULT_K, AttentionConfig

MODULES = [LinformerAttention, LinformerEncoderLayer, LinformerEncoder, LinformerDecoderLayer, LinformerDecoder]


OPTIONS = AttentionConfig().attention


def test_every_option_has_an_attention_that_reads_it():
    contexts = [context for kind in CONTEXTS.values() for context in kind.values()]
    others = {"num_kv_heads": 2, "head_dim": 3, "projection": "random", "sharing": "kv", "length_scaling": False}
    others |= {"causal": True, "window": 4, "rotary_dim": 2, "slot_bias": True, "slot_mass": "fixed"}
    others |= {"exact_first": 1, "exact_last": 1}
    assert others.keys() == OPTIONS.keys()
    for name, other in others.items():
        chosen = AttentionConfig(**({"projection": "mean"} if name == "slot_mass" else {}), **{name: other})
        assert any(name not in context.unused_options(chosen) for context in contexts), name


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_constructors_name_k_alike_and_take_the_rest_as_options(module):
    parameters = inspect.signature(module).parameters
    assert parameters["k"].default is None
    assert parameters["options"].kind is inspect.Parameter.VAR_KEYWORD
    assert not OPTIONS.keys() & parameters.keys()


def test_a_configuration_has_the_same_defaults():
    config = LinformerConfig()
    assert config.k == DEFAULT_K
    assert {name: getattr(config, name) for name in FIELDS} == {name: OPTIONS[name] for name in FIELDS}


@pytest.mark.parametrize(("max_len", "k"), [(3, 1), (13, 3), (128, 32), (1023, 255), (4096, DEFAULT_K)])
def test_k_follows_from_the_length_where_nobody_chose_it(max_len, k):
    options = {"d_model": 12, "nhead": 4, "max_len": max_len, "device": "meta"}
    layers = [LinformerEncoderLayer(**options).self_attn, LinformerDecoderLayer(**options).self_attn]
    layers += [layer.self_attn for layer in LinformerEncoder(**options, num_layers=2).layers]
    layers += [layer.self_attn for layer in LinformerDecoder(**options, num_layers=2).layers]
    assert {attention.context.k for attention in [*layers, LinformerAttention(12, 4, max_len, device="meta")]} == {k}
    assert SequenceProjection(max_len).k == LinearOptions(max_length=max_len).k == k
    config = LinformerConfig(max_position_embeddings=max_len)
    assert config.k == k and LinformerConfig(**config.to_diff_dict()).k == k
    with pytest.raises(ValueError, match=rf"k must .* max_len .*{max_len}"):
        LinformerAttention(12, 4, max_len, max_len + 1)


def test_a_number_that_was_chosen_is_saved_as_it_is():
    """Also where it is the default of the longest input that a configuration has by default."""
    config = LinformerConfig(max_position_embeddings=512, k=DEFAULT_K)
    assert LinformerConfig(**config.to_diff_dict()).k == DEFAULT_K
    fields = {"max_position_embeddings": 512, "k": DEFAULT_K}
    sides = {"encoder": fields, "decoder": {**fields, "causal": True}}
    both = LinformerSeq2SeqConfig(**sides, bos_token_id=1)
    again = LinformerSeq2SeqConfig(**both.to_diff_dict())
    assert (again.encoder.k, again.decoder.k) == (DEFAULT_K, DEFAULT_K)


RUNNING = "causal attention, whose slots are running means"
CAUSAL = [
    ({"projection": "conv"}, "projection='conv'", RUNNING, "'linear'"),
    ({"sharing": "kv"}, "sharing='kv'", RUNNING, "'headwise'"),
    ({"sharing": "layerwise"}, "sharing='layerwise'", RUNNING, "'headwise'"),
    ({"length_scaling": False}, "length_scaling=False", RUNNING, "True"),
    ({"slot_bias": True}, "slot_bias=True", RUNNING, "False"),
    ({"projection": "dynamic"}, "projection='dynamic'", RUNNING, "'linear'"),
    ({"slot_mass": "fixed"}, "slot_mass='fixed'", RUNNING, "'none'"),
    ({"exact_last": 1}, "exact_last=1", RUNNING, "0"),
]
OF_MAPS = [
    *(
        ({"projection": pooling, "sharing": sharing}, f"sharing={sharing!r}", f"projection={pooling!r}", "'headwise'")
        for pooling in ("mean", "max")
        for sharing in ("none", "kv", "layerwise")
    ),
    *(
        ({"projection": without, "length_scaling": False}, "length_scaling=False", f"projection={without!r}", "True")
        for without in ("mean", "max", "conv", "dynamic")
    ),
    *(
        ({"projection": dense, "slot_mass": mass}, f"slot_mass={mass!r}", f"projection={dense!r}", "'none'")
        for dense in ("linear", "random")
        for mass in ("fixed", "learned")
    ),
]
NOT_CAUSAL = [({"rotary_dim": 2}, "rotary_dim=2", "projection='linear'", "0")]


def message_of(option, context, default):
    context = context if context.startswith(("causal", "full")) else f"slots made by {context}"
    return f"^{re.escape(f'{option} has no effect on {context}: leave it at {default}')}$"


@pytest.mark.parametrize("build", SELF_ATTENTION)
@pytest.mark.parametrize(
    ("options", "option", "context", "default"),
    [*OF_MAPS, *NOT_CAUSAL, *(({"causal": True, **options}, *words) for options, *words in CAUSAL)],
    ids=str,
)
def test_an_option_that_the_slots_do_not_have_is_refused(build, options, option, context, default):
    with pytest.raises(ValueError, match=message_of(option, context, default)):
        build(**options)


@pytest.mark.parametrize("build", DECODERS)
@pytest.mark.parametrize(("options", "option", "context", "default"), OF_MAPS, ids=str)
def test_an_option_that_the_map_of_a_memory_does_not_have_is_refused(build, options, option, context, default):
    with pytest.raises(ValueError, match=message_of(option, context, default)):
        build(**options)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(
    ("options", "default"),
    [
        ({"window": 4}, "None"),
        ({"projection": "mean"}, "'linear'"),
        ({"sharing": "kv"}, "'headwise'"),
        ({"length_scaling": False}, "True"),
        ({"slot_bias": True}, "False"),
        ({"slot_mass": "learned"}, "'none'"),
        ({"exact_first": 1}, "0"),
        ({"exact_last": 1}, "0"),
        ({"rotary_dim": 2}, "0"),
    ],
    ids=str,
)
def test_ordinary_attention_has_only_heads_and_causal_it_turns_by_position(causal, options, default):
    if causal and "rotary_dim" in options:
        assert full_attention(causal=True, **options).context.rotary_dim == 2
        return
    ((name, value),) = options.items()
    context = "causal full attention" if causal else "full attention"
    with pytest.raises(ValueError, match=message_of(f"{name}={value!r}", context, default)):
        full_attention(causal=causal, **options)


@pytest.mark.parametrize("build", [attention, encoder_layer, encoder, decoder_layer, decoder, full_attention])
def test_what_is_no_option_is_named_with_the_module_that_got_it(build):
    name = type(build()).__name__
    others = ["windows", "projection_dim"]
    others += ["attention_dropout", "gated", "chunk_size"] if build in (attention, full_attention) else []
    others += [] if build in (encoder, decoder) else ["final_norm", "activation_memory"]
    for other in others:
        with pytest.raises(TypeError, match=f"^{name} got an unexpected keyword argument '{other}'$"):
            build(**{other: 1})


@pytest.mark.parametrize("build", DECODERS)
@pytest.mark.parametrize("name", ["causal", "slot_bias"])
def test_what_a_decoder_is_in_any_case_is_no_option(build, name):
    with pytest.raises(TypeError, match=f"^a decoder layer takes no {name}: its self-attention is causal, its memory"):
        build(**{name: True})


def test_each_attention_of_a_decoder_gets_the_options_that_it_has():
    options = {"num_kv_heads": 2, "head_dim": 6, "window": 3, "rotary_dim": 4, "attention_dropout": 0.25}
    of_map = {"projection": "random", "sharing": "none", "length_scaling": False}
    for layer in (decoder_layer(**options, **of_map), decoder(**options, **of_map).layers[1]):
        target, memory = layer.self_attn, layer.multihead_attn
        assert [(x.num_kv_heads, x.head_dim, x.dropout) for x in (target, memory)] == [(2, 6, 0.25)] * 2
        assert (target.causal, target.window, target.context.rotary_dim) == (True, 3, 4)
        assert (memory.causal, memory.window, memory.context.rotary_dim) == (False, None, 0)
        maps = memory.context.proj_k, memory.context.proj_v
        assert [(x.projection, x.num_heads, x.length_scaling) for x in maps] == [("random", 2, False)] * 2


def test_layers_of_the_other_kind_are_refused():
    with pytest.raises(ValueError, match=r"^activation_memory='reversible' needs layers of ReversibleEncoderLayer$"):
        Encoder(encoder(norm_first=True).layers, activation_memory="reversible")


@pytest.mark.parametrize("kind", ["Attention", "Layer", "Stack"])
def test_keywords_that_editors_know_are_the_fields(kind):
    config, keywords = getattr(options, f"{kind}Config"), getattr(options, f"{kind}Options")
    assert typing.get_type_hints(keywords) == typing.get_type_hints(config)
