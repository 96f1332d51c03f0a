"""Contenders of layers and encoders: sizes, shapes, and that nothing is said or changed around them."""

from dataclasses import replace
from operator import attrgetter

import pytest
import torch
import transformers
from transformers.utils import logging

from runner.suite import Case
from suites import encoder as encoders

NAME = attrgetter("name")
CASE = Case(step="training", length=128, k=16, batch=2, width=24, heads=3, layers=2, feedforward=48)
LAYERS = encoders.layers()
ENCODERS = encoders.encoders()


def case_for(contender, **changes):
    return replace(CASE, k=CASE.k if contender.has_slots else 0, **changes)


def built(name, **changes):
    contender = next(contender for contender in ENCODERS if contender.name.startswith(name))
    return contender.build(case_for(contender, **changes))


@pytest.mark.parametrize("contender", [*LAYERS, *ENCODERS], ids=NAME)
def test_every_contender_trains(contender):
    workload = contender.build(case_for(contender))
    output = workload.run(*workload.inputs)
    output.sum().backward()
    assert output.shape == workload.output_shape == (2, 128, 24)
    assert output.isfinite().all()
    assert workload.module.training
    assert any(parameter.grad is not None for parameter in workload.module.parameters())


@pytest.mark.parametrize("contender", ENCODERS, ids=NAME)
def test_nothing_drops_out(contender):
    workload = contender.build(case_for(contender))
    assert torch.equal(workload.run(*workload.inputs), workload.run(*workload.inputs))


@pytest.mark.parametrize("contender", ENCODERS, ids=NAME)
def test_every_encoder_has_the_cases_width_and_depth(contender):
    config = contender.build(case_for(contender)).module.config
    assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (24, 2, 1000)
    assert config.max_position_embeddings >= 128
    assert getattr(config, "attention_probs_dropout_prob", 0.0) == config.to_dict().get("hidden_dropout_prob", 0.0) == 0
    assert contender.name.startswith("FNet") or config.num_attention_heads == 3


def test_the_twin_differs_only_in_the_attention():
    ours, twin = (built(name).module.config.to_dict() for name in (encoders.OURS, encoders.TWIN))
    different = {name for name in ours if ours[name] != twin[name]}
    assert different == {"attention", "k"}
    assert built(encoders.OURS).module.config.k == 16


@pytest.mark.parametrize("name", ["BERT", "ModernBERT"])
def test_the_fused_kernel_is_used_where_the_name_says_so(name):
    assert built(name).module.config._attn_implementation == "sdpa"


def test_the_gated_feedforward_costs_what_the_others_do():
    assert built("ModernBERT").module.config.intermediate_size == 32


@pytest.mark.parametrize(("length", "kind"), [(704, "original_full"), (768, "block_sparse")])
def test_bigbird_is_sparse_where_it_can_be(length, kind):
    workload = built("BigBird", length=length, step="forward")
    workload.run(*workload.inputs)  # which would change the kind, and say so, where it cannot
    assert workload.module.config.attention_type == workload.module.attention_type == kind


def test_nothing_is_said_and_the_verbosity_is_the_users(capfd):
    logging.set_verbosity_warning()
    for name in ("Longformer", "BigBird", "ModernBERT"):
        workload = built(name, length=192, step="forward")
        workload.run(*workload.inputs)
        assert logging.get_verbosity() == logging.WARNING
    captured = capfd.readouterr()
    assert captured.out + captured.err == ""


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("Nyströmformer", {"length": 130}, "takes multiples of its 16 landmarks, got 130 tokens"),
        ("Nyströmformer", {"dtype": "bfloat16"}, "only in float32, not in bfloat16"),
        ("FNet", {"dtype": "float16"}, "only in float32, not in float16"),
    ],
)
def test_what_cannot_be_computed_is_one_clear_line(name, changes, message):
    with pytest.raises(ValueError, match=message):
        built(name, **changes)


def test_the_layers_differ_only_in_the_attention():
    ours, fused, eager = (contender.build(case_for(contender)) for contender in LAYERS)
    eager.module.load_state_dict(fused.module.state_dict())
    torch.testing.assert_close(fused.run(*fused.inputs), eager.run(*fused.inputs))
    shared = set(ours.module.state_dict()) & set(fused.module.state_dict())
    assert set(ours.module.state_dict()) - shared == {"self_attn.context.proj_k.weight"}
    assert shared == set(fused.module.state_dict())


def test_names_hold_versions():
    for contender in ENCODERS:
        ours = contender.name in (encoders.OURS, encoders.TWIN)
        assert ours or f"(transformers {transformers.__version__})" in contender.name
