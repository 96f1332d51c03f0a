import json

import pytest
import torch

from torch_linformer.models import LinformerSeq2SeqConfig
from torch_linformer.training import step_costs
from torch_linformer.training.step_costs import (
    ModelStep,
    StepCost,
    build_step,
    measure_beside_full_attention,
    measure_steps,
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


def a_step(model_class="LinformerForMaskedLM", length=16, **config):
    config = config if "encoder" in config else {**CONFIG, **config}
    return ModelStep(
        model_class=model_class, config=config, batch_size=2, length=length, device="cpu", precision="fp32"
    )


def test_a_model_and_its_twin_have_costs_and_leave_the_random_numbers_alone():
    state = torch.get_rng_state()
    ours, full = measure_beside_full_attention(a_step())
    assert ours.tokens_per_second > 0 and full.tokens_per_second > 0
    assert torch.equal(torch.get_rng_state(), state)


def test_a_step_that_fails_says_why_and_the_others_have_costs():
    """One K a layer cannot be shared by all layers; full attention has no K."""
    step = a_step(k=[4, 3], sharing="layerwise")
    with pytest.raises(ValueError, match="layerwise"):
        build_step(step)
    failed, full = measure_steps([step, with_full_attention(step)])
    assert failed.startswith("ValueError") and isinstance(full, StepCost)


def test_out_of_memory_is_called_so(monkeypatch):
    def too_large(step):
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")

    monkeypatch.setattr(step_costs, "build_step", too_large)
    assert measure_steps([a_step()]) == ["out of memory"]


def test_a_step_for_which_there_is_no_time_is_not_begun():
    long = a_step(length=4096, max_position_embeddings=4096)
    (cost,) = measure_steps([long], seconds=1e-3)
    assert cost.startswith("TimeoutError: would take over")


SIDES = {"encoder": CONFIG, "decoder": {**CONFIG, "max_position_embeddings": 7}}


@pytest.mark.parametrize(
    ("head", "config"),
    [
        ("MaskedLM", {}),
        ("CausalLM", {"causal": True, "window": 4, "position_embedding": "rotary"}),
        ("TokenClassification", {}),
        ("QuestionAnswering", {}),
        ("SequenceClassification", {"num_labels": 3}),
        ("SequenceClassification", {"num_labels": 3, "problem_type": "multi_label_classification"}),
        ("SequenceClassification", {"num_labels": 1, "problem_type": "regression"}),
        ("ConditionalGeneration", LinformerSeq2SeqConfig(**SIDES, bos_token_id=1).to_diff_dict()),
    ],
)
def test_every_model_and_its_twin_have_something_to_learn(head, config):
    ours = a_step(f"LinformerFor{head}", **json.loads(json.dumps(config)))
    for step, attention in ((ours, "linformer"), (with_full_attention(ours), "full")):
        model, batch = step_costs._build(step)
        sides = [getattr(model.config, side, model.config) for side in ("encoder", "decoder")]
        assert {side.attention for side in sides} == {attention}
        assert torch.isfinite(model(**batch).loss)
        assert head != "ConditionalGeneration" or batch["labels"].shape == (2, 7)
