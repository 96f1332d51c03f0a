"""The operations that users build with: slots of keys and values; one softmax over slots, exact tokens and window."""

import re

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.functional import (
    Slots,
    Window,
    dynamic_slots,
    implementations,
    linformer_attention,
    pytorch,
    reference,
    segment_slots,
    slot_attention,
    use_implementation,
)
from torch_linformer.nn import LinformerAttention

DOUBLE = {"dtype": torch.float64}
LENGTH, K = 11, 4
MASK = torch.tensor([[False] * LENGTH, [True, False, False, True, True, False, False, False, True, True, True]])


def draw(*shape):
    return torch.randn(*shape, **DOUBLE, generator=torch.Generator(torch.get_default_device()).manual_seed(sum(shape)))


@pytest.fixture
def sequences():
    """Queries of four heads, keys and values of two."""
    return [x.requires_grad_() for x in (draw(2, 4, LENGTH, 3), draw(2, 2, LENGTH, 3), draw(2, 2, LENGTH, 5))]


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("kind", ["mean", "max", "conv"])
def test_segments_are_those_of_the_definition(sequences, kind, mask):
    kernel = draw(3) if kind == "conv" else None
    _, key, value = sequences
    slots = segment_slots(key, value, K, reduce=kind, kernel=kernel, key_padding_mask=mask, mass=True)
    for row in range(2):
        real = reference.real_positions(mask, row, LENGTH)
        tokens = [len(real[3 * slot : 3 * slot + 3]) for slot in range(K)]
        assert slots.padding.mask.expand(2, -1)[row].tolist() == [number == 0 for number in tokens]
        expected_bias = torch.tensor(tokens, **DOUBLE).clamp(min=1).log()
        assert_close(slots.bias.expand(2, -1, -1)[row, 0], expected_bias)
        for made, sequence in ((slots.keys, key), (slots.values, value)):
            for head in range(2):
                if kind == "conv":
                    matrix = reference.banded_matrix(kernel, LENGTH, K)
                    expected = reference.project_row(sequence[row, head], matrix, real, length_scaling=False)
                else:
                    expected = reference.pool_row(sequence[row, head], 3, K, real, kind)
                assert_close(made[row, head], expected)


@pytest.mark.parametrize("mask", [None, MASK], ids=["whole", "padded"])
@pytest.mark.parametrize("per_head", [False, True])
def test_slots_chosen_by_the_input_are_those_of_the_definition(gradients, sequences, per_head, mask):
    _, key, value = sequences
    queries, prior = (draw(2, K, 3) if per_head else draw(K, 3)).requires_grad_(), draw(2, K).requires_grad_()
    slots = dynamic_slots(queries, key, value, shift=prior[0], log_steepness=prior[1], key_padding_mask=mask, mass=True)
    expected = [[], []]
    for row in range(2):
        real = reference.real_positions(mask, row, LENGTH)
        assert_close(slots.bias.expand(2, -1, -1)[row, 0], torch.full((K,), len(real) / K, **DOUBLE).log())
        for head in range(2):
            weight = queries[head] if per_head else queries
            for made, sequence in zip(expected, (key, value), strict=True):
                made.append(reference.dynamic_row(key[row, head], sequence[row, head], weight, *prior, real))
    expected = [torch.stack(made).view(2, 2, K, -1) for made in expected]
    assert_close((slots.keys, slots.values), tuple(expected))
    inputs = [queries, prior, key, value]
    made, whole = (torch.cat(pair, dim=-1) for pair in ((slots.keys, slots.values), expected))
    assert_close(gradients(made, inputs), gradients(whole, inputs))


REFUSED = {
    "slots must have keys (B, Hkv, ·, D)": lambda q, k, v: slot_attention(q, Slots(k, v[:, :, :3])),
    "4 query heads are not a multiple of 3": lambda q, k, v: slot_attention(q, Slots(*[draw(2, 3, 7, 3)] * 2)),
    "4 query heads are not a multiple of 3 key/value": lambda q, k, v: linformer_attention(
        q, *[draw(2, 3, 7, 3)] * 2, *[draw(7, 2)] * 2
    ),
    "slots.padding must be bool (B or 1, 11)": lambda q, k, v: slot_attention(q, Slots(k, v, MASK[:, :3])),
    "slots.bias must be (B or 1, H, K)": lambda q, k, v: slot_attention(q, Slots(k, v, bias=draw(LENGTH))),
    "window.reach must be at least 0": lambda q, k, v: slot_attention(q, Slots(k, v), window=Window(k, v, -1)),
    "window.bias must be (H or 1, 2 reach + 1) = (4 or 1, 5), got (2, 5)": lambda q, k, v: slot_attention(
        q, Slots(k, v), window=Window(k, v, 2, bias=draw(2, 5))
    ),
    "scale must be a finite number other than 0": lambda q, k, v: slot_attention(q, Slots(k, v), scale=0.0),
    "there is nothing to attend to": lambda q, k, v: slot_attention(q, Slots(k[:, :, :0], v[:, :, :0])),
    "query and slots must be (B, H, ·, D)": lambda q, k, v: slot_attention(q[0], Slots(k, v)),
    "impl must be one of auto, torch": lambda q, k, v: slot_attention(q, Slots(k, v), impl="cudnn"),
    "key and value must be (B, H, M, D)": lambda q, k, v: segment_slots(k, v[:, :, :3], 2),
    "k must lie between 1 and 11": lambda q, k, v: segment_slots(k, v, 12),
    "needs a kernel of 3 weights": lambda q, k, v: segment_slots(k, v, K, reduce="conv", kernel=draw(4)),
    "reduce must be one of mean": lambda q, k, v: segment_slots(k, v, K, reduce="sum"),
    "queries, key and value must be (H, K, D)": lambda q, k, v: dynamic_slots(draw(K, 7), k, v),
    "shift must have one number a slot of queries, got (5,) and (4, 3)": lambda q, k, v: dynamic_slots(
        draw(K, 3), k, v, shift=draw(5)
    ),
    "key_padding_mask must be bool": lambda q, k, v: dynamic_slots(draw(K, 3), k, v, key_padding_mask=MASK.long()),
}


@pytest.mark.parametrize("message", REFUSED)
def test_what_does_not_fit_is_named(sequences, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        REFUSED[message](*sequences)


@pytest.fixture
def private_calls(monkeypatch):
    """Names of functions without a public name that were called; those that others import are known by these too."""
    calls = []

    def watch(name, function):
        def watched(*args, **options):
            calls.append(name)
            return function(*args, **options)

        return watched

    for name in ("flash_attention", "onednn_linear"):
        original = getattr(pytorch, name)
        watched = watch(name, original)
        for module in list(__import__("sys").modules.values()):
            if (
                getattr(module, "__name__", "").startswith("torch_linformer.")
                and getattr(module, name, None) is original
            ):
                monkeypatch.setattr(module, name, watched)
    return calls


@pytest.mark.cpu("there are private operators")
@torch.no_grad()
def test_torch_means_what_pytorch_documents(sequences, private_calls):
    query, key, value = (x.float() for x in sequences)
    value = value[..., :3]

    def call():
        slots = dynamic_slots(torch.randn(K, 3), key, value)
        slot_attention(query, slots, window=Window(key, value, 2))

    with use_implementation("torch") as ran:
        call()
    assert private_calls == []
    assert ran == {"slots chosen by the input": {"torch"}, "windowed attention": {"torch"}}
    with use_implementation("flash", "torch") as ran:
        call()
    assert private_calls and set(private_calls) == {"flash_attention"}
    assert ran == {"slots chosen by the input": {"flash"}, "windowed attention": {"flash"}}


@pytest.mark.cpu("there are private operators")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"projection": "mean", "window": 8},
        {"projection": "dynamic", "sharing": "kv_per_head", "window": 8, "slot_mass": "learned", "exact_first": 1},
        {"projection": "dynamic"},
        {"k": 0, "window": 8},
        {"causal": True, "window": 8},
    ],
    ids=str,
)
@torch.no_grad()
def test_a_module_under_torch_runs_nothing_private(private_calls, options, dtype):
    module = LinformerAttention(96, 4, **{"max_len": 2048, "k": 64, **options}, dtype=dtype).eval()
    with use_implementation("torch") as ran:
        module(torch.randn(2, 2000, 96, dtype=dtype))
    assert private_calls == []
    assert not {"onednn", "flash"} & {name for names in ran.values() for name in names}


def test_the_listing_says_what_nobody_has_measured_and_what_is_private():
    rows = {(operation, name): (needs, measured) for operation, name, needs, measured in implementations()}
    assert rows["windowed attention", "flex"][1] == "unmeasured"
    assert "unmeasured" in rows["queries", "at once"][1]
    private = {name for (_, name), (needs, _) in rows.items() if "private to PyTorch" in needs}
    assert private == {"flash"}
