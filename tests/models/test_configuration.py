"""What a configuration refuses, and what it hands on to the model."""

import json
import re

import pytest
import torch
from huggingface_hub.errors import StrictDataclassFieldValidationError
from transformers import AutoConfig

from torch_linformer.models import LinformerConfig, LinformerModel, LinformerSeq2SeqConfig


@pytest.mark.parametrize(
    ("field", "choices"),
    [
        ("attention", "linformer, full"),
        ("projection", "linear, random, conv, mean, max, dynamic"),
        ("sharing", "none, kv_per_head, headwise, kv, layerwise"),
        ("position_embedding", "learned, sinusoidal, rotary, none"),
        ("pooling", "mean, cls, last, max, mean_max"),
        ("activation_memory", "none, checkpoint, reversible"),
    ],
)
def test_an_unknown_choice_is_refused_with_the_choices(tiny, field, choices):
    with pytest.raises(ValueError, match=f"^{field} must be one of {choices}, got 'Linear'$"):
        tiny(**{field: "Linear"})
    for choice in choices.split(", "):
        config = tiny(norm_first=True, causal=choice == "rotary", **{field: choice})
        assert getattr(config, field) == choice


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("windw", ". Did you mean 'window'?"),
        ("hidden_dropout", ". Did you mean 'hidden_dropout_prob'?"),
        ("n_layers", ". Did you mean 'num_hidden_layers'?"),
        ("quux", ""),
    ],
)
def test_a_keyword_that_nobody_knows_is_refused(tiny, name, hint):
    message = f"^LinformerConfig\\(\\) got an unexpected keyword argument {name!r}{re.escape(hint)}$"
    for make in (tiny, LinformerConfig, lambda **field: LinformerSeq2SeqConfig(encoder=field)):
        with pytest.raises(TypeError, match=message):
            make(**{name: 8})
    with pytest.raises(TypeError, match=r"^LinformerSeq2SeqConfig\(\) .* 'memory_size'\. Did you mean 'memory_k'\?$"):
        LinformerSeq2SeqConfig(memory_size=8)


def test_keywords_of_transformers_are_taken(tiny):
    names = {"num_labels": 5, "torch_dtype": "float16", "attn_implementation": "eager", "finetuning_task": "mnli"}
    config = tiny(**names, architectures=["LinformerModel"], name_or_path="here", max_length=20, prefix="a")
    assert (config.num_labels, config.dtype, config._attn_implementation) == (5, torch.float16, "eager")
    assert (config.finetuning_task, config.name_or_path, config.prefix) == ("mnli", "here", "a")


@pytest.mark.parametrize("kind", ["one", "both"])
def test_what_other_libraries_leave_in_a_saved_configuration_stays(tiny, tmp_path, kind):
    one = kind == "one"
    config = tiny() if one else LinformerSeq2SeqConfig(encoder=tiny(), decoder=tiny(causal=True), bos_token_id=1)
    config.save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    fields = json.loads(path.read_text())
    for part in [fields] if one else [fields, fields["encoder"], fields["decoder"]]:
        part["tool_version"] = "2026.1"
    path.write_text(json.dumps(fields))
    opened = AutoConfig.from_pretrained(tmp_path)
    again = type(config)(**opened.to_dict())
    opened.update_from_string("tie_word_embeddings=false")
    for loaded in (opened, again, type(config).from_dict({"tool_version": "2026.1"}) if one else again):
        parts = [loaded] if one else [loaded, loaded.encoder, loaded.decoder]
        assert [part.tool_version for part in parts] == ["2026.1"] * len(parts)


CAUSAL = "causal attention, whose slots are running means"
NAN = float("nan")
ACTIVATIONS = ("hidden_act", "classifier_hidden_act")
IN_RANGE = "k must lie between 1 and max_position_embeddings = 29, got"
REFUSED = [
    ({"causal": True, "projection": "mean"}, f"projection='mean' has no effect on {CAUSAL}: leave it at 'linear'$"),
    ({"causal": True, "sharing": "kv"}, f"sharing='kv' has no effect on {CAUSAL}: leave it at 'headwise'$"),
    ({"causal": True, "exact_last": 1}, "exact_last=1 has no effect on causal attention, "),
    ({"attention": "full", "length_scaling": False}, "length_scaling=False has no effect on full attention: leave it"),
    ({"attention": "full", "slot_bias": True}, "slot_bias=True has no effect on full attention: leave it at False$"),
    (
        {"attention": "full", "window": 5, "causal": True},
        "window=5 has no effect on causal full attention: leave it at",
    ),
    ({"causal": True, "attention": "full", "exact_first": 1}, "exact_first=1 has no effect on causal full attention"),
    (
        {"projection": "mean", "sharing": "none"},
        "sharing='none' has no effect on slots made by projection='mean': leav",
    ),
    ({"projection": "conv", "length_scaling": False}, "length_scaling=False has no effect on slots made by .*'conv'"),
    *(({"k": k}, f"{IN_RANGE} {wrong}$") for k, wrong in ((0, 0), (-1, -1), (30, 30), ([3, 30], 30), ([0, 3], 0))),
    ({"causal": True, "k": 0}, "k=0 leaves nothing to attend to: give window"),
    ({"exact_first": 30}, r"exact_first \+ exact_last = 30 tokens, but the longest sequence has max_"),
    ({"exact_last": -1}, "exact_last must be at least 0 tokens, got -1$"),
    (
        {"slot_mass": "fixed"},
        "slot_mass='fixed' has no effect on slots made by projection='linear': leave it at 'none'$",
    ),
    ({"window": 0}, "window must be at least 1 token, or None for no window, got 0"),
    ({"position_embedding": "rotary"}, "position_embedding='rotary' needs causal=True"),
    ({"num_attention_heads": 4}, "hidden_size 15 is not a multiple of num_attention_heads 4"),
    *(({name: "gleu"}, rf"{name} must be one of .*gelu.*relu.*, got 'gleu'$") for name in ACTIVATIONS),
    ({"pad_token_id": 37}, "pad_token_id 37 lies outside vocab_size 37$"),
    *(({"threshold": number}, f"threshold must lie between 0 and 1, got {number}") for number in (0, 1, -0.5, NAN)),
    ({"max_answer_length": 0}, "max_answer_length must be at least 1, got 0"),
]
ONLY_THE_MODEL_SEES = [
    ({"k": [3, 7], "sharing": "layerwise"}, r"sharing='layerwise' .* k must be one number, got \[3, 7\]"),
    ({"k": [3, 7, 5]}, r"k must be one number or one a layer \(2\), got 3 numbers"),
    ({"num_key_value_heads": 2}, "num_heads 3 is not a multiple of num_kv_heads 2"),
]


@pytest.mark.parametrize(("fields", "message"), REFUSED, ids=str)
def test_what_no_model_can_be_is_refused(tiny, fields, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        tiny(**fields)


@pytest.mark.parametrize(("fields", "message"), ONLY_THE_MODEL_SEES, ids=str)
def test_what_only_the_model_can_see_is_refused_there(tiny, fields, message):
    config = tiny(**fields)
    with pytest.raises(ValueError, match=message):
        LinformerModel(config)


def test_the_last_token_of_the_vocabulary_may_be_padding(tiny):
    assert tiny(pad_token_id=36).pad_token_id == 36


@pytest.mark.parametrize(
    ("changes", "kept"),
    [
        ({"attention": "full"}, {}),
        ({"causal": True}, {"window": 5}),
        ({"projection": "max"}, {"window": 5, "slot_bias": True}),
        ({"projection": "conv"}, {"window": 5, "slot_bias": True, "sharing": "none"}),
    ],
    ids=str,
)
def test_saved_options_that_changed_attention_does_not_have_are_left_out(tiny, changes, kept):
    saved = tiny(window=5, slot_bias=True, sharing="none", length_scaling=False).to_dict()
    fields = dict(saved)
    assert LinformerConfig.from_dict(fields, **changes).to_dict() == tiny(**changes, **kept).to_dict()
    assert fields == saved


def test_a_saved_option_that_its_own_attention_does_not_have_is_refused(tiny):
    with pytest.raises(ValueError, match=r"^window=5 has no effect on full attention"):
        LinformerConfig.from_dict({**tiny(attention="full").to_dict(), "window": 5})


def test_changes_of_a_saved_configuration_are_checked_with_the_rest(build, tmp_path):
    build(LinformerModel, window=5, sharing="kv", projection="random", length_scaling=False).save_pretrained(tmp_path)
    full = LinformerModel.from_pretrained(tmp_path, attention="full").config
    assert (full.attention, full.window, full.sharing, full.projection) == ("full", None, "headwise", "linear")
    mean = LinformerModel.from_pretrained(tmp_path, projection="mean", k=3).config
    assert (mean.projection, mean.k, mean.window, mean.sharing, mean.length_scaling) == ("mean", 3, 5, "headwise", True)
    with pytest.raises(ValueError, match=r"^window=4 has no effect on full attention"):
        LinformerConfig.from_pretrained(tmp_path, attention="full", window=4)
    with pytest.raises(ValueError, match=r"^k must lie between 1 and max_position_embeddings = 29, got 30$"):
        LinformerConfig.from_pretrained(tmp_path, k=30)
    with pytest.raises(ValueError, match=r"^attention must be one of linformer, full, got 'Full'$"):
        LinformerConfig.from_pretrained(tmp_path, attention="Full")


@pytest.mark.parametrize("k", [1, 29, [1, 29]])
def test_k_at_the_ends_of_its_range_is_taken(build, token_ids, k):
    assert build(LinformerModel, k=k)(token_ids(2, 11)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize(
    ("field", "value"),
    [("threshold", "0.5"), ("window", "16"), ("k", [3, 7.5]), ("norm_first", "yes"), ("intermediate_size", 31.0)],
)
def test_a_value_of_another_type_is_refused_by_the_name_of_its_field(tiny, field, value):
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{field}'"):
        tiny(**{field: value})
    config = tiny()
    with pytest.raises(StrictDataclassFieldValidationError, match=f"'{field}'"):
        setattr(config, field, value)


def test_a_whole_number_is_taken_where_a_fraction_may_stand(tiny):
    fractions = ("hidden_dropout_prob", "attention_probs_dropout_prob", "classifier_dropout", "layer_norm_eps")
    config = tiny(**dict.fromkeys(fractions, 0), class_weights=[1, 2.5])
    assert [getattr(config, name) for name in fractions] == [0, 0, 0, 0] and config.class_weights == [1, 2.5]


def test_defaults_have_the_dimensions_of_roberta_base():
    config = LinformerConfig()
    with torch.device("meta"):
        model = LinformerModel(config)
    assert (config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (768, 12, 12)
    assert (config.vocab_size, config.intermediate_size, config.max_position_embeddings) == (
        50265,
        3072,
        4096,
    )
    matrices = [p for p in model.parameters() if p.shape == (4096, 256)]
    assert len(matrices) == 24


def test_k_may_differ_from_layer_to_layer(build, token_ids):
    model = build(LinformerModel, k=[3, 7])
    attentions = model(token_ids(2, 11), output_attentions=True).attentions
    assert [weights.shape for weights in attentions] == [(2, 3, 11, 3), (2, 3, 11, 7)]


def test_nothing_is_shared_between_configurations(tiny):
    first, second = tiny(k=[3, 7], num_labels=5), tiny()
    assert (second.k, second.num_labels, second.class_weights) == (7, 2, None)
    assert first.to_dict() != second.to_dict()


@pytest.mark.parametrize(
    "attention",
    [
        {"sharing": "none", "projection": "conv", "window": 6, "slot_bias": True},
        {"sharing": "layerwise", "projection": "random", "length_scaling": False, "k": 3},
        {"sharing": "kv_per_head", "projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 2},
        {"attention": "full"},
    ],
    ids=str,
)
def test_round_trip_through_a_folder(tiny, tmp_path, attention):
    fields = {
        "num_key_value_heads": 1,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.25,
        "attention_probs_dropout_prob": 0.5,
        "classifier_dropout": 0.125,
        "initializer_range": 0.03125,
        "layer_norm_eps": 1e-6,
        "pad_token_id": 3,
        "tie_word_embeddings": False,
        "k": [3, 7],
        "position_embedding": "sinusoidal",
        "pooling": "mean_max",
        "classifier_hidden_act": "tanh",
        "head_dim": 7,
        "embedding_norm": False,
        "norm_first": True,
        "final_norm": False,
        "gated": True,
        "lm_head_transform": False,
        "activation_memory": "reversible",
        "chunk_size": 5,
        "class_weights": [1.0, 2.5, 0.1],
        "threshold": 0.125,
        "max_answer_length": 40,
        "id2label": {0: "sport", 1: "économie", 2: "文化"},
        "label2id": {"sport": 0, "économie": 1, "文化": 2},
        **attention,
    }
    config = tiny(**fields)
    config.save_pretrained(tmp_path)
    loaded = LinformerConfig.from_pretrained(tmp_path)
    assert {name: getattr(loaded, name) for name in fields} == fields
    assert loaded.num_labels == 3
    assert loaded.to_dict() == config.to_dict()


def test_label_names_stand_in_the_order_of_the_logits(tiny):
    assert tiny(id2label={2: "z", 0: "y", 1: "x"}).label_names == ["y", "x", "z"]
    assert tiny(num_labels=3).label_names == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_the_usual_names_are_numbers(tiny):
    config = tiny(bos_token_id=1, eos_token_id=[2, 3])
    assert (config.num_key_value_heads, config.bos_token_id, config.eos_token_id) == (3, 1, [2, 3])
    assert (tiny().bos_token_id, tiny().eos_token_id) == (None, None)


def test_an_encoder_decoder_has_the_usual_names_of_its_parts(tiny):
    decoder = tiny(
        causal=True,
        hidden_size=20,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=41,
        max_position_embeddings=31,
    )
    config = LinformerSeq2SeqConfig(encoder=tiny(), decoder=decoder, share_embeddings=False)
    names = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads")
    assert [getattr(config, name) for name in names] == [41, 20, 3, 4, 2]
    assert config.max_position_embeddings == 29, "of the source"
    assert config.get_text_config() is config.get_text_config(decoder=True) is decoder
    assert not {*names, "max_position_embeddings"} & {*config.to_dict()}, "in the file they are of the parts"
    for name in names:
        with pytest.raises(ValueError, match=f"^{name} belongs to encoder and decoder: give encoder="):
            LinformerSeq2SeqConfig(**{name: 4})


@pytest.mark.parametrize("shared", [True, False])
def test_the_vocabulary_of_an_encoder_decoder_is_that_of_its_parts(tiny, shared):
    config = LinformerSeq2SeqConfig(
        encoder=tiny(), decoder=tiny(causal=True), share_embeddings=shared, decoder_start_token_id=1
    )
    before = config.encoder.vocab_size
    config.vocab_size = 19
    assert config.decoder.vocab_size == config.vocab_size == 19
    assert config.encoder.vocab_size == (19 if shared else before)
