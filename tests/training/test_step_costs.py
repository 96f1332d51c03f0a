import json
from dataclasses import asdict

import pytest
import torch

from torch_linformer import models
from torch_linformer.models import LinformerConfig, LinformerSeq2SeqConfig
from torch_linformer.training import step_costs
from torch_linformer.training.step_costs import (
    ModelStep,
    build_step,
    measure_beside_full_attention,
    with_full_attention,
)

CONFIG = {
    "vocab_size": 50,
    "hidden_size": 8,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 12,
    "max_position_embeddings": 16,
    "k": 4,
    "attention": "linformer",
}


def a_step(model_class="LinformerForMaskedLM", **config):
    config = config if "encoder" in config else {**CONFIG, **config}
    return ModelStep(model_class=model_class, config=config, batch_size=2, length=16, device="cpu", precision="fp32")


def test_a_model_that_cannot_run_may_have_a_twin_that_can():
    """One K a layer cannot be shared by all layers; full attention has no K."""
    step = a_step(k=[4, 3], sharing="layerwise")
    with pytest.raises(ValueError, match="layerwise"):
        build_step(**asdict(step))
    build_step(**asdict(with_full_attention(step)))()


@pytest.mark.parametrize(
    ("model_class", "config"),
    [
        ("LinformerForMaskedLM", {}),
        ("LinformerForCausalLM", {"causal": True, "window": 4, "position_embedding": "rotary"}),
        ("LinformerForTokenClassification", {}),
        ("LinformerForQuestionAnswering", {}),
        ("LinformerForSequenceClassification", {"num_labels": 3}),
        ("LinformerForSequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
        ("LinformerForSequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
    ],
)
def test_every_model_has_something_to_learn(model_class, config):
    config = LinformerConfig(**{**CONFIG, **config})
    ids = torch.randint(1, 50, (2, 16))
    model = getattr(models, model_class)(config)
    targets = step_costs._targets(model_class, config, ids)
    assert torch.isfinite(model(input_ids=ids, **targets).loss)


def test_an_encoder_decoder_and_its_twin():
    sides = {"encoder": CONFIG, "decoder": {**CONFIG, "max_position_embeddings": 7}}
    config = json.loads(json.dumps(LinformerSeq2SeqConfig(**sides, bos_token_id=1).to_diff_dict()))
    twin = step_costs._with_full_attention(config)
    for fields, attention in ((config, "linformer"), (twin, "full")):
        model, batch = step_costs._build(a_step("LinformerForConditionalGeneration", **fields))
        assert {model.config.encoder.attention, model.config.decoder.attention} == {attention}
        assert batch["labels"].shape == (2, 7) and torch.isfinite(model(**batch).loss)


@pytest.mark.usefixtures("no_fresh_process")
def test_without_fresh_processes_there_are_no_costs():
    assert measure_beside_full_attention(a_step("LinformerForSequenceClassification")) == ("no process started",) * 2
