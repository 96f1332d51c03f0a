"""Every class with every option at least once: saved and opened it answers as before, and a padded row as if alone."""

import pytest
import torch
from torch.testing import assert_close

import torch_linformer
from torch_linformer import LinformerForConditionalGeneration, LinformerSeq2SeqConfig

DYNAMIC = {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 2, "window": 3}
ROTARY = {"position_embedding": "rotary", "norm_first": True}
AS_IMPORTED = {
    "slot_bias": True,
    "length_scaling": False,
    "embedding_norm": False,
    "norm_first": True,
    "final_norm": False,
    "lm_head_transform": False,
    "type_vocab_size": 0,
    "head_dim": 3,
    "num_key_value_heads": 1,
}
KINDS = {
    "base": ("Model", {}),
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
    "seq2seq": ("ForConditionalGeneration", {}),
    "seq2seq-two-vocabularies": (
        "ForConditionalGeneration",
        {
            "share_embeddings": False,
            "memory_projection": "mean",
            "memory_k": [2, 5],
            "decoder": {**ROTARY, "vocab_size": 41, "window": 3, "activation_memory": "checkpoint"},
        },
    ),
    "seq2seq-layerwise": (
        "ForConditionalGeneration",
        {"memory_sharing": "layerwise", "decoder": {"norm_first": True, "lm_head_transform": False}},
    ),
    "seq2seq-full-decoder": ("ForConditionalGeneration", {"decoder": {"attention": "full", "gated": True}}),
}
OUTPUTS = ("last_hidden_state", "encoder_last_hidden_state", "logits", "start_logits", "end_logits")
SOURCE_MASK = [[1] * 11, [0, 0, 1, 1, 1, 1, 0, 1, 1, 1, 1]]
TARGET_MASK = [[1] * 7, [1] * 5 + [0] * 2]


@pytest.fixture(params=KINDS)
def model(request, build, tiny):
    """A model in float64, no number of which is at a special value."""
    name, fields = KINDS[request.param]
    if name != "ForConditionalGeneration":
        return build(getattr(torch_linformer, f"Linformer{name}"), **fields)
    decoder = {"causal": True, **fields.get("decoder", {})}
    parts = {"encoder": tiny(dtype=torch.float64), "decoder": tiny(dtype=torch.float64, **decoder)}
    torch.manual_seed(0)
    model = LinformerForConditionalGeneration(LinformerSeq2SeqConfig(**{**fields, **parts})).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return model


@pytest.fixture
def batch(model, token_ids):
    """Two rows, the second with padding before and between its tokens, and after those of a target."""
    if isinstance(model, LinformerForConditionalGeneration):
        target = {"decoder_input_ids": token_ids(2, 7), "decoder_attention_mask": torch.tensor(TARGET_MASK)}
    else:
        target = {}
    mask = torch.tensor(SOURCE_MASK)
    if type(model).__name__ == "LinformerForMultipleChoice":
        mask = mask[:, None].expand(2, 3, 11)
    return {"input_ids": token_ids(*mask.shape), "attention_mask": mask, **target}


def answers(model, batch):
    """What a model says, by name."""
    outputs = model(**batch)
    return {name: outputs[name] for name in OUTPUTS if name in outputs}


def real_tokens(tensor, dim):
    """The second row of ``tensor`` at the real tokens of the source or target that lies along ``dim``."""
    row = tensor[1:]
    for mask in (SOURCE_MASK[1], TARGET_MASK[1]):
        if tensor.dim() > dim and tensor.shape[dim] == len(mask):
            return row.index_select(dim, torch.tensor(mask).nonzero()[:, 0])
    return row


@torch.no_grad()
def test_a_saved_model_answers_as_before(model, batch, tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    model.save_pretrained(first)
    opened, report = type(model).from_pretrained(first, output_loading_info=True)
    assert not any(report.values()), report
    opened.save_pretrained(second)
    assert (second / "config.json").read_text() == (first / "config.json").read_text()
    assert_close(dict(opened.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    assert_close(answers(opened.eval(), batch), answers(model, batch), rtol=0, atol=1e-11)


@torch.no_grad()
def test_a_padded_row_is_answered_as_the_row_alone(model, batch):
    alone = {name: real_tokens(tensor, tensor.dim() - 1) for name, tensor in batch.items()}
    padded = {name: real_tokens(output, 1) for name, output in answers(model, batch).items()}
    assert_close(padded, answers(model, alone), rtol=0, atol=1e-11)
