"""What transformers asks of every model, and what padding may not change, asked of each class of ours."""

import pytest
import torch
import transformers
from torch.testing import assert_close

import torch_linformer
from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerModel,
)

AUTO_CLASSES = {
    getattr(torch_linformer, f"Linformer{name}"): getattr(transformers, f"AutoModel{auto or name}")
    for name, auto in {
        "ForCausalLM": "",
        "ForConditionalGeneration": "ForSeq2SeqLM",
        "ForMaskedLM": "",
        "ForMultipleChoice": "",
        "ForQuestionAnswering": "",
        "ForSequenceClassification": "",
        "ForTokenClassification": "",
    }.items()
} | {LinformerModel: transformers.AutoModel}
ENCODERS = [x for x in AUTO_CLASSES if x not in (LinformerForCausalLM, LinformerForConditionalGeneration)]
HEADS = [x for x in AUTO_CLASSES if x is not LinformerModel]
SCORES = ("logits", "start_logits", "end_logits", "last_hidden_state", "encoder_last_hidden_state")
DYNAMIC = {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 2, "window": 3}
ROTARY = {"position_embedding": "rotary", "norm_first": True}
AS_IMPORTED = {
    **dict.fromkeys(("length_scaling", "embedding_norm", "final_norm", "lm_head_transform"), False),
    **{"slot_bias": True, "norm_first": True, "type_vocab_size": 0, "head_dim": 3, "num_key_value_heads": 1},
}
KINDS = {  # every option at least once, beside what each class has by default
    "base-full-sinusoidal": ("Model", {"attention": "full", "position_embedding": "sinusoidal"}),
    "base-layerwise-chunks": ("Model", {"sharing": "layerwise", "chunk_size": 3}),
    "base-no-positions": ("Model", {"position_embedding": "none", "projection": "random"}),
    "base-dynamic": ("Model", {**DYNAMIC, "sharing": "kv_per_head"}),
    "masked-lm": ("ForMaskedLM", {"sharing": "none", "norm_first": True, "gated": True, "hidden_act": "silu"}),
    "masked-lm-dynamic": ("ForMaskedLM", {"projection": "dynamic", "sharing": "layerwise", "slot_mass": "fixed"}),
    "masked-lm-untied": ("ForMaskedLM", {"tie_word_embeddings": False, "projection": "conv", "layer_norm_eps": 1e-3}),
    "masked-lm-as-imported": ("ForMaskedLM", AS_IMPORTED),
    "classifier-mean": ("ForSequenceClassification", {"projection": "mean", "window": 3, "num_labels": 5}),
    "classifier-cls": (
        "ForSequenceClassification",
        {"pooling": "cls", "classifier_hidden_act": "tanh", "projection": "max", "norm_first": True},
    ),
    "classifier-multilabel": (
        "ForSequenceClassification",
        {"pooling": "last", "k": [3, 5], "problem_type": "multi_label_classification", "num_labels": 5},
    ),
    "classifier-regression": (
        "ForSequenceClassification",
        {"pooling": "max", "projection": "conv", "sharing": "none", "problem_type": "regression", "num_labels": 1},
    ),
    "classifier-weighted": (
        "ForSequenceClassification",
        {"pooling": "mean_max", "class_weights": [0.5, 2.0], "activation_memory": "reversible", "norm_first": True},
    ),
    "classifier-causal": ("ForSequenceClassification", {"causal": True, "pooling": "last", "window": 3}),
    "tagger": ("ForTokenClassification", {"activation_memory": "checkpoint", "sharing": "kv", "num_labels": 5}),
    "tagger-only-window": ("ForTokenClassification", {"k": 0, "window": 4, "exact_first": 1}),
    "reader": ("ForQuestionAnswering", {"window": 5, "chunk_size": 4}),
    "chooser": ("ForMultipleChoice", {"projection": "mean", "num_key_value_heads": 1}),
    "causal-lm": ("ForCausalLM", {**ROTARY, "gated": True}),
    "causal-lm-only-window": ("ForCausalLM", {**ROTARY, "k": 0, "window": 4, "partial_rotary_factor": 1.0}),
    "causal-lm-exact-first": ("ForCausalLM", {"window": 3, "exact_first": 2}),
    "causal-lm-only-slots": ("ForCausalLM", {"window": None, "k": [2, 5], "num_key_value_heads": 1, "chunk_size": 4}),
    "causal-lm-full": ("ForCausalLM", {**ROTARY, "attention": "full", "activation_memory": "reversible"}),
    "seq2seq-two-vocabularies": (
        "ForConditionalGeneration",
        {
            **{"share_embeddings": False, "memory_projection": "mean", "memory_k": [2, 5]},
            "decoder": {**ROTARY, "vocab_size": 41, "window": 3, "activation_memory": "checkpoint"},
        },
    ),
    "seq2seq-layerwise": (
        "ForConditionalGeneration",
        {"memory_sharing": "layerwise", "decoder": {"norm_first": True, "lm_head_transform": False}},
    ),
    "seq2seq-dynamic": (
        "ForConditionalGeneration",
        {"memory_projection": "dynamic", "memory_sharing": "kv_per_head", "decoder": {"window": 3}},
    ),
    "seq2seq-full-decoder": ("ForConditionalGeneration", {"decoder": {"attention": "full", "window": None}}),
}
SOURCE_MASK = [[1] * 11, [0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1], [1] * 11]
TARGET_MASK = [[1] * 7, [1] * 5 + [0] * 2, [1] * 7]

every_class = pytest.mark.parametrize("model_class", AUTO_CLASSES)
every_attention = pytest.mark.parametrize("attention", ["linformer", "full"])


@pytest.fixture(params=[*AUTO_CLASSES, *KINDS], ids=lambda x: getattr(x, "__name__", x))
def model(request, build):
    """A model in float64, no number of which is at a special value."""
    name, fields = KINDS.get(request.param, (request.param, {}))
    return build(getattr(torch_linformer, f"Linformer{name}") if isinstance(name, str) else name, **fields)


@pytest.fixture
def batch(model, inputs_of):
    """Three rows, the second with padding before and between its tokens, and after those of a target."""
    inputs = inputs_of(type(model))
    mask = torch.tensor(SOURCE_MASK).view(3, *[1] * (inputs["input_ids"].dim() - 2), 11)
    target = {"decoder_attention_mask": torch.tensor(TARGET_MASK)} if "decoder_input_ids" in inputs else {}
    return {**inputs, "attention_mask": mask.expand_as(inputs["input_ids"]), **target}


def scores(outputs):
    return {name: outputs[name] for name in SCORES if name in outputs}


def real_tokens(tensor, dim):
    """The second row of ``tensor`` at the real tokens of the source or target that lies along ``dim``."""
    row = tensor[1:2]
    for mask in (SOURCE_MASK[1], TARGET_MASK[1]):
        if tensor.dim() > dim and tensor.shape[dim] == len(mask):
            return row.index_select(dim, torch.tensor(mask).nonzero()[:, 0])
    return row


@torch.no_grad()
def test_a_saved_model_answers_as_before(model, batch, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    model.save_pretrained(first)
    opened, report = AUTO_CLASSES[type(model)].from_pretrained(first, output_loading_info=True)
    assert not any(report.values()), report
    assert type(opened) is type(model) and opened.config.architectures == [type(model).__name__]
    assert type(AUTO_CLASSES[type(model)].from_config(opened.config)) is type(model)
    opened.save_pretrained(second)
    assert (second / "config.json").read_text() == (first / "config.json").read_text()
    assert_close(dict(opened.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert_close(scores(opened.eval()(**batch)), scores(model(**batch)), rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_padded_row_is_answered_as_the_row_alone(model, batch):
    alone = {name: real_tokens(tensor, tensor.dim() - 1) for name, tensor in batch.items()}
    padded = {name: real_tokens(output, 1) for name, output in scores(model(**batch)).items()}
    assert_close(padded, scores(model(**alone)), rtol=0, atol=1e-11)


@every_attention
@pytest.mark.parametrize("model_class", [*ENCODERS, LinformerForCausalLM])
@torch.no_grad()
def test_hidden_states_and_attentions(build, inputs_of, model_class, attention):
    model, inputs = build(model_class, attention=attention), inputs_of(model_class)
    outputs = model(**inputs, output_hidden_states=True, output_attentions=True)
    rows = inputs["input_ids"].flatten(0, -2).shape[0]
    assert [tuple(x.shape) for x in outputs.hidden_states] == [(rows, 11, 15)] * 3
    keys = 11 if attention == "full" else 7 + (5 if model_class is LinformerForCausalLM else 0)  # slots and window
    assert [tuple(p.shape) for p in outputs.attentions] == [(rows, 3, 11, keys)] * 2
    assert_close(outputs.attentions[0].sum(-1), torch.ones(rows, 3, 11).double())
    silent = model(**inputs)
    assert silent.hidden_states is None and silent.attentions is None
    assert_close(scores(silent), scores(outputs))


@every_attention
@every_class
@torch.no_grad()
def test_embeddings_types_and_positions_are_read(build, inputs_of, model_class, attention):
    model, inputs = build(model_class, attention=attention), inputs_of(model_class)
    ids, plain = inputs.pop("input_ids"), scores(model(**inputs_of(model_class)))
    embeds = model.get_input_embeddings()(ids)
    assert_close(scores(model(inputs_embeds=embeds, **inputs)), plain, rtol=0, atol=0)
    positions = torch.arange(11).expand_as(ids)
    given = {"input_ids": ids, **inputs}
    assert_close(scores(model(**given, token_type_ids=torch.zeros_like(ids), position_ids=positions)), plain)
    for changed in ({"token_type_ids": ids % 4}, {"position_ids": positions + 1}):
        found = scores(model(**given, **changed))
        assert not any(torch.allclose(found[name], plain[name]) for name in plain)


@every_attention
@pytest.mark.parametrize("model_class", HEADS)
def test_every_parameter_learns_with_and_without_checkpointing(
    enable_checkpointing, build, inputs_of, labels_of, model_class, attention
):
    fields = {"position_embedding": "learned", "classifier_hidden_act": "tanh", "hidden_dropout_prob": 0.2}
    model = build(model_class, attention=attention, **fields).train()
    inputs = inputs_of(model_class)
    batch = {**inputs, "token_type_ids": inputs["input_ids"] % 4, **labels_of(model_class, inputs)}

    def gradients():
        model.zero_grad()
        torch.manual_seed(1)
        model(**batch).loss.backward()
        return {name: parameter.grad for name, parameter in model.named_parameters()}

    expected = gradients()
    assert all(gradient is not None and gradient.isfinite().all() for gradient in expected.values())
    # A softmax takes the bias of keys out again, unless slots weigh it, and what all choices have in common.
    may_be_idle = ("k_proj.bias", *(["classifier.bias"] if model_class is LinformerForMultipleChoice else []))
    idle = {name for name, gradient in expected.items() if not gradient.any()}
    assert all(name.endswith(may_be_idle) for name in idle), idle
    for reentrant in (False, True):
        disable = enable_checkpointing(model, {"use_reentrant": reentrant})
        assert_close(gradients(), expected)
        disable()
    for stack in (x for x in model.modules() if hasattr(x, "activation_memory")):
        stack.activation_memory = "checkpoint"
    assert_close(gradients(), expected)


@every_attention
@every_class
@torch.no_grad()
def test_more_and_fewer_tokens(build, inputs_of, model_class, attention):
    model, inputs = build(model_class, attention=attention), inputs_of(model_class, high=30)
    before = scores(model(**inputs))
    scores_words = model_class in (LinformerForMaskedLM, LinformerForCausalLM, LinformerForConditionalGeneration)
    for size in (41, 30):
        model.resize_token_embeddings(size)
        assert model.config.vocab_size == size and model.get_input_embeddings().num_embeddings == size
        after = scores(model(**inputs))
        if scores_words:
            assert after["logits"].shape[-1] == size
            assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
            tables = [x for x in model.modules() if getattr(x, "weight", None) is model.get_input_embeddings().weight]
            assert {getattr(x, "num_embeddings", size) for x in tables} == {size}
            after, before = ({**x, "logits": x["logits"][..., :30]} for x in (after, before))
        assert_close(after, before)


@every_attention
@every_class
@torch.no_grad()
def test_dtypes_eager_and_sdpa_and_a_device_map(build, inputs_of, tmp_path, model_class, attention):
    model, inputs = build(model_class, attention=attention), inputs_of(model_class)
    model.save_pretrained(tmp_path)
    assert {type(x).__name__ for x in model.modules() if type(x).__name__.endswith("Block")} <= model._no_split_modules
    for options in ({"attn_implementation": "eager"}, {"attn_implementation": "sdpa"}, {"device_map": "auto"}):
        loaded = model_class.from_pretrained(tmp_path, **options).eval()
        moved = {name: x.to(loaded.device) for name, x in inputs.items()}
        assert_close(scores(loaded(**moved)), scores(model(**inputs)), check_device=False)
    halved = model_class.from_pretrained(tmp_path, dtype=torch.bfloat16)
    assert {x.dtype for x in halved.parameters()} == {torch.bfloat16}
    assert all(x.dtype == torch.bfloat16 and x.isfinite().all() for x in scores(halved(**inputs)).values())


@every_class
@torch.no_grad()
def test_outputs_as_a_tuple(build, inputs_of, labels_of, model_class):
    model, inputs = build(model_class), inputs_of(model_class)
    labels = {} if model_class is LinformerModel else labels_of(model_class, inputs)
    inputs = {**inputs, **labels, "output_hidden_states": True, "output_attentions": True, "use_cache": False}
    named = model(**inputs).to_tuple()
    assert_close(model(**inputs, return_dict=False), named, rtol=0, atol=0)
    model.config.return_dict = False
    found = model(**inputs)
    assert type(found) is tuple
    assert_close(found, named, rtol=0, atol=0)


@every_class
@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("atention_mask", ". Did you mean 'attention_mask'?"),
        ("output_hiden_states", ". Did you mean 'output_hidden_states'?"),
        ("head_mask", ""),
        ("quux", ""),
    ],
)
def test_a_misspelt_argument_is_refused(build, inputs_of, model_class, name, hint):
    with pytest.raises(TypeError) as error:
        build(model_class)(**inputs_of(model_class), **{name: None})
    assert str(error.value) == f"{model_class.__name__}.forward() got an unexpected keyword argument {name!r}{hint}"


@every_class
@torch.no_grad()
def test_what_others_hand_to_every_model_changes_nothing(build, inputs_of, model_class):
    model, inputs = build(model_class), inputs_of(model_class)
    shape = inputs["input_ids"].shape
    handed = {
        "output_hidden_states": True,
        "output_attentions": False,
        "cache_position": torch.arange(11),
        "cu_seq_lens_q": None,
        "max_length_k": None,
        "tokenizer": object(),
        "special_tokens_mask": torch.ones(shape, dtype=torch.long),
        "offset_mapping": torch.zeros(*shape, 2, dtype=torch.long),
        "overflow_to_sample_mapping": torch.zeros(shape[0], dtype=torch.long),
        "length": torch.tensor([11, 11, 11]),
        "token_embeddings": torch.ones(*shape, 15),
        "sentence_embedding": torch.ones(shape[0], 15),
    }
    assert_close(scores(model(**inputs, **handed)), scores(model(**inputs)), rtol=0, atol=0)
