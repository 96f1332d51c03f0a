"""Contenders: outputs against the plain computation, who sees what, and that they differ only in what they compare."""

import math
from dataclasses import replace
from operator import attrgetter

import pytest
import torch
import transformers
from torch import nn
from torch.testing import assert_close
from transformers.utils import logging

from runner.suite import Case, Contender
from runner.timing import Step, time_in_turn
from suites import attention, causal, decoding, least_time
from suites import encoder as encoders
from suites.contenders import call, compiled, sequence_workload
from suites.plain import plain_leaking_attention, plain_linformer_attention
from torch_linformer.functional import reference
from torch_linformer.opening.devices import why_not_compile

CASE = Case(step="training", length=133, k=7, batch=2, width=24, heads=3)
OURS, FULL = attention.ours(), attention.full_attention()
CAUSAL = [contender for contender in causal.contenders() if "leaks" not in contender.name]
ATTENTIONS = [*OURS, *FULL, *CAUSAL]
LAYERS, ENCODERS, DECODERS = encoders.layers(), encoders.encoders(), decoding.contenders()
LAYER_CASE = Case(step="training", length=128, k=16, batch=2, width=24, heads=3, layers=2, feedforward=48)
NAME = {"ids": attrgetter("name")}


def built(contender, base=CASE, **changes):
    """The workload, with no bias of 0, where a lost one goes unseen."""
    workload = contender.build(replace(base, k=base.k if contender.has_slots else 0, **changes))
    with torch.no_grad():
        for name, parameter in workload.module.named_parameters():
            if name.endswith(("bias", "shift", "log_steepness")):
                parameter.normal_()
    return workload


@pytest.mark.parametrize("contender", ATTENTIONS, **NAME)
@pytest.mark.parametrize("length", [133, 128, 7])
def test_the_output_is_the_plain_one(contender, length):
    workload = built(contender, length=length)
    workload.module.double()
    states = workload.inputs[0].detach().double()
    output = workload.run(states)
    assert output.shape == workload.output_shape == (2, length, 24)
    assert_close(output, workload.expected(states), rtol=1e-9, atol=1e-9)


def test_the_plain_computations_are_their_formulas():
    module = built(OURS[0], length=53).module.double()
    states = torch.randn(1, 53, 24, dtype=torch.float64)
    queries, keys, values = (linear(states[0]) for linear in (module.q_proj, module.k_proj, module.v_proj))
    heads = []
    for head in range(3):
        own = slice(8 * head, 8 * head + 8)
        slots_k = module.context.proj_k.weight.T @ keys[:, own]
        slots_v = module.context.proj_v.weight.T @ values[:, own]
        heads.append(torch.softmax(queries[:, own] @ slots_k.T / math.sqrt(8), dim=-1) @ slots_v)
    assert_close(plain_linformer_attention(module, states)[0], module.out_proj(torch.cat(heads, dim=-1)))

    workload = built(CAUSAL[0], length=70, batch=1)
    module, states = workload.module.double(), workload.inputs[0].detach().double()
    linears = (module.q_proj, module.k_proj, module.v_proj)
    heads = [linear(states).unflatten(-1, (3, 8)).transpose(1, 2) for linear in linears]
    running = module.context.running
    weights = torch.exp(8 * torch.tanh(heads[1][0] @ running.address / 8))
    proj = (torch.exp(-running.log_time).clamp(max=0.5), weights)
    mixed = reference.causal_linformer_attention(*heads, proj, score_bias=running.score_bias, window=64)
    assert_close(workload.expected(states), module.out_proj(mixed.transpose(1, 2).flatten(2)))

    leaking = nn.Module().double()  # parameters as linformer-pytorch has them: one head of width 2, three slots
    linear = lambda *sizes, bias=False: nn.ModuleList([nn.Linear(*sizes, bias=bias).double()])  # noqa: E731
    leaking.to_q, leaking.to_k, leaking.to_v = (linear(2, 2) for _ in range(3))
    head, leaking.w_o = nn.Module(), nn.Linear(2, 2).double()
    head.E, head.F = nn.Linear(4, 3).double(), nn.Linear(4, 3).double()
    leaking.heads, x = nn.ModuleList([head]), torch.randn(4, 2, dtype=torch.float64)
    slots_k = head.E.weight @ (x @ leaking.to_k[0].weight.T) + head.E.bias[:, None]
    slots_v = head.F.weight @ (x @ leaking.to_v[0].weight.T) + head.F.bias[:, None]
    found = plain_leaking_attention(leaking, x[None])[0]
    for position, seen in enumerate((1, 2, 3, 3)):
        weights = torch.softmax(slots_k[:seen] @ (leaking.to_q[0].weight @ x[position]) / math.sqrt(2), dim=-1)
        assert_close(found[position], leaking.w_o(weights @ slots_v[:seen]))

    product = least_time.matrix_product().build(Case(step="forward", length=5, k=0, batch=1, width=5, heads=0))
    assert_close(product.run(*product.inputs), product.inputs[0] @ product.module.weight.T)


@pytest.mark.parametrize("contender", ATTENTIONS, **NAME)
def test_a_training_step_reaches_the_input_and_low_precision_keeps_its_tolerance(contender):
    workload = built(contender)
    workload.run(*workload.inputs).sum().backward()
    assert workload.module.training and workload.inputs[0].grad.abs().max() > 0
    workload = built(contender, step="forward", dtype="bfloat16")
    assert not workload.inputs[0].requires_grad
    output, expected = workload.run(*workload.inputs), workload.expected(*workload.inputs)
    assert output.dtype == torch.bfloat16
    assert (output - expected).abs().max() <= 2e-2 * expected.abs().max()
    assert torch.equal(built(OURS[0], dtype="bfloat16").inputs[0], workload.inputs[0])  # the same for everyone


def test_what_would_not_fit_or_take_too_long_is_not_compared():
    large = Case(step="forward", length=2**10, k=2**8, batch=2**10, width=4, heads=2)
    assert OURS[0].build(large).expected is None
    assert CAUSAL[0].build(replace(large, length=2**15, batch=1, k=4)).expected is None


@pytest.mark.parametrize("contender", CAUSAL, **NAME)
def test_nobody_sees_what_comes_later(contender):
    workload = built(contender)
    workload.run(*workload.inputs)[:, 70].sum().backward()
    seen = workload.inputs[0].grad.abs().sum(dim=-1) > 0
    assert not seen[:, 71:].any() and seen[:, 70].all()
    # Without slots there is nothing but the window.
    assert bool(seen[:, 0].any()) == (contender.name != causal.WINDOW_ALONE)


def test_full_attention_fused_and_eager_and_each_form_of_ours_is_what_its_name_says():
    saved = {}
    for contender in FULL:
        workload, shapes = built(contender), []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda x, shapes=shapes: shapes.append(x.shape) or x, lambda x: x
        ):
            workload.run(*workload.inputs)
        saved[contender.name] = any(tuple(shape[-2:]) == (133, 133) for shape in shapes)
    assert saved == {attention.SDPA: False, attention.EAGER: True}  # only the eager one keeps its weights
    contexts = {contender.name: built(contender).module.context for contender in OURS}
    assert contexts["torch-linformer"].proj_v is not None and contexts["torch-linformer, sharing kv"].proj_v is None
    assert contexts["torch-linformer, sharing none"].proj_k.weight.shape == (3, 133, 7)
    for projection in ("random", "conv", "mean", "max"):
        assert contexts[f"torch-linformer, {projection}"].proj_k.projection == projection
    shapes = [
        contexts[f"torch-linformer, dynamic, sharing {name}"].proj_k.weight.shape for name in ("kv", "kv_per_head")
    ]
    assert shapes == [(7, 24), (3, 7, 8)]


@pytest.mark.skipif(why_not_compile("cpu") is not None, reason="no compiler")
@pytest.mark.filterwarnings("ignore")  # of the compiler, about this machine
def test_ours_is_compiled_and_checked_and_what_breaks_the_graph_is_an_error():
    """The one test here that compiles: twenty seconds, most of them the compiler's start."""

    class Breaking(nn.Linear):
        def forward(self, states):
            torch._dynamo.graph_break()
            return super().forward(states)

    small = Case(step="training", length=12, k=4, batch=2, width=8, heads=2)
    broken = Contender(name="broken", build=lambda case: sequence_workload(Breaking(8, 8), case, call))
    ours, graphs = compiled(attention.ours()[0])
    row, failed = time_in_turn([(ours, small), (compiled(broken)[0], small)], 2, 1.0)
    assert (row.contender, row.error, row.repeats) == ("torch-linformer, compiled", None, 2)
    assert row.first > row.seconds and failed.seconds is None and "graph_break" in failed.error
    with pytest.raises(ValueError, match="CUDA graphs need a CUDA device, not cpu"):
        graphs.build(small)


# Decoding

PAST = Case(step="decoding", length=133, k=7, batch=2, width=24, heads=3, layers=2, feedforward=48)
DECODER, TWIN = DECODERS


def step_of(contender, **changes):
    return Step(contender, replace(PAST, k=PAST.k if contender.has_slots else 0, **changes))


@pytest.mark.parametrize("contender", DECODERS, **NAME)
@pytest.mark.parametrize("piece", [50, 1024])
def test_a_token_behind_a_past_is_scored_as_in_one_pass_and_every_step_begins_at_it(contender, piece, monkeypatch):
    monkeypatch.setattr(decoding, "PIECE", piece)
    for dtype in ("float32", "bfloat16"):
        step = step_of(contender, dtype=dtype)
        output = step.run()
        step.check(output)
        assert step.workload.expected is not None and output.shape == (2, 1, decoding.VOCABULARY)
        assert torch.equal(output, step.run())
    alone = step.workload.module(*step.workload.inputs, use_cache=False).logits
    assert (output - alone).abs().max() > 1e-3  # the past is seen
    monkeypatch.setattr(decoding, "LONGEST_PASS", 132)
    assert step_of(contender).workload.expected is None


def test_what_decoders_keep_and_how_they_differ():
    """Ours: K means of keys and values with a mass each, 63 recent tokens, a count; the twin: every token."""
    numbers_of_heads = 7 * (2 * 8 + 1) + 63 * 2 * 8
    for length in (70, 133):
        assert step_of(DECODER, length=length).workload.cache == 2 * 2 * (3 * 4 * numbers_of_heads + 8)
        assert step_of(TWIN, length=length).workload.cache == 2 * 2 * length * 3 * 4 * 2 * 8
    ours, twin, longer = (step_of(DECODER), step_of(TWIN), step_of(DECODER, length=70))
    ours, twin, longer = (step.workload.module for step in (ours, twin, longer))
    one, other = ours.config.to_dict(), twin.config.to_dict()
    assert {name for name in one if one[name] != other[name]} == {"attention", "k", "window"}
    assert all(torch.equal(x, y) for x, y in zip(ours.parameters(), longer.parameters(), strict=True))


# Encoders and layers


def encoder(name, **changes):
    return built(next(each for each in ENCODERS if each.name.startswith(name)), LAYER_CASE, **changes)


@pytest.mark.parametrize("contender", [*LAYERS, *ENCODERS], **NAME)
def test_every_encoder_trains_without_dropout_in_the_width_and_depth_of_the_case(contender):
    workload = built(contender, LAYER_CASE)
    output = workload.run(*workload.inputs)
    output.sum().backward()
    assert output.shape == workload.output_shape == (2, 128, 24) and output.isfinite().all()
    assert workload.module.training and any(parameter.grad is not None for parameter in workload.module.parameters())
    assert torch.equal(output, workload.run(*workload.inputs))
    if contender in ENCODERS:
        config = workload.module.config
        assert (config.hidden_size, config.num_hidden_layers, config.vocab_size) == (24, 2, 1000)
        assert contender.name.startswith("FNet") or config.num_attention_heads == 3
        assert contender.name in (encoders.OURS, encoders.TWIN) or transformers.__version__ in contender.name


def test_encoders_and_layers_differ_only_in_the_attention():
    ours, twin = (encoder(name).module.config.to_dict() for name in (encoders.OURS, encoders.TWIN))
    assert {name for name in ours if ours[name] != twin[name]} == {"attention", "k"} and ours["k"] == 16
    assert all(encoder(name).module.config._attn_implementation == "sdpa" for name in ("BERT", "ModernBERT"))
    assert encoder("ModernBERT").module.config.intermediate_size == 32  # three matrices: two thirds of the width
    ours, fused, eager = (built(contender, LAYER_CASE) for contender in LAYERS)
    eager.module.load_state_dict(fused.module.state_dict())
    assert_close(fused.run(*fused.inputs), eager.run(*fused.inputs))
    more = set(ours.module.state_dict()) - set(fused.module.state_dict())
    assert more == {"self_attn.context.proj_k.weight"}


def test_peers_are_quiet_and_sparse_where_they_can_be(capfd):
    logging.set_verbosity_warning()
    for name, length, kind in (
        ("BigBird", 704, "original_full"),
        ("BigBird", 768, "block_sparse"),
        ("Longformer", 192, None),
        ("ModernBERT", 192, None),
    ):
        workload = encoder(name, length=length, step="forward")
        workload.run(*workload.inputs)  # which would change the kind, and say so, where it cannot
        assert kind is None or workload.module.config.attention_type == workload.module.attention_type == kind
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
        encoder(name, **changes)
