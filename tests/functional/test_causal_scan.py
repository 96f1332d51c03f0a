"""Causal attention by a scan over all chunks: what is its own; test_causal.py has what it shares with the loop."""

import pytest
import torch
from calls import attend_causally, causal_linformer_attention
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_linformer.functional import reference, use_implementation
from torch_linformer.functional.attention.plain_softmax import attend_to_past
from torch_linformer.functional.causal import chunks, running_means
from torch_linformer.functional.causal.running_means import Clock, SlotWeights
from torch_linformer.nn import LinformerAttention

DOUBLE = {"dtype": torch.float64}


def draw_inputs(batch, heads, length, width, v_width, num_slots):
    """Query, key and value, and the weights of keys and of values: float64, all wanting a gradient."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    shapes = [(length, width), (length, width), (length, v_width)]
    sequences = [torch.randn(batch, heads, *shape, generator=generator, **DOUBLE) for shape in shapes]
    projections = [
        SlotWeights(
            torch.rand(heads, num_slots, generator=generator, **DOUBLE),
            torch.randn(heads, length, num_slots, generator=generator, **DOUBLE).exp(),
        )
        for _ in range(2)
    ]
    for tensor in [*sequences, *projections[0], *projections[1]]:
        tensor.requires_grad_()
    return sequences, projections


class CountElements(TorchDispatchMode):
    """The elements of every tensor that an operation gives back, and of the largest."""

    def __init__(self):
        super().__init__()
        self.total = self.largest = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        numbers = [x.numel() for x in tree_leaves(result) if isinstance(x, torch.Tensor)]
        self.total, self.largest = self.total + sum(numbers), max(self.largest, *numbers, 0)
        return result


@pytest.mark.parametrize(
    ("chunk_size", "group", "numbers"),
    [(1, 2, 2**27), (1, 8, 2**27), (1, 3, 1), (3, 2, 600), (64, 3, 2**27)],
    ids=["five levels", "two levels", "chunk by chunk", "in pieces", "one chunk"],
)
@pytest.mark.parametrize("side", [None, "left", "right"])
def test_groups_of_any_size_give_the_definition(gradients, monkeypatch, take_at_once, side, chunk_size, group, numbers):
    """Groups of groups, and pieces of the sequence that memory holds."""
    monkeypatch.setattr(running_means, "GROUP", group)
    take_at_once(monkeypatch, scan_numbers=numbers)
    sequences, projections = draw_inputs(2, 1, 19, 3, 5, 2)
    real = torch.arange(19) < torch.tensor([[19], [11]])
    mask = {None: None, "left": ~real.flip(1), "right": ~real}[side]
    at_tokens = torch.ones(2, 19, dtype=torch.bool) if mask is None else ~mask
    options = {"window": 4, "exact_first": 2, "key_padding_mask": mask}
    output = causal_linformer_attention(*sequences, *projections, chunk_size=chunk_size, impl="scan", **options)
    expected = reference.causal_linformer_attention(*sequences, *projections, **options).transpose(1, 2)[at_tokens]
    actual, wanted = output.transpose(1, 2)[at_tokens], [*sequences, *projections[0], *projections[1]]
    assert_close(actual, expected)
    assert_close(gradients(actual, wanted), gradients(expected, wanted))


@pytest.mark.parametrize("chunks", [1, 2, 8, 9, 64, 65, 200])
@pytest.mark.parametrize("padded", [False, True], ids=["whole", "padded"])
def test_sums_are_carried_as_one_after_another(chunks, padded):
    """With the steepest decay too, of which exp(64) a chunk would leave any range if it were not taken back."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(0)
    real = torch.rand(2, chunks, 5, generator=generator) < 0.7 if padded else None
    decay, start = torch.tensor([[0.0, 0.01, 12.8]], **DOUBLE), torch.randn(2, 1, 3, 4, generator=generator, **DOUBLE)
    added = torch.randn(2, 1, chunks, 3, 4, generator=generator, **DOUBLE)
    clock = Clock(real, (chunks, 5), decay.device, torch.float64, by_scan=True)
    before, after = clock.carry(decay, added, start)
    sums = start
    for chunk in range(chunks):
        assert_close(before[:, :, chunk], sums)
        tokens = torch.full((2,), 5) if real is None else real[:, chunk].sum(dim=-1)
        sums = torch.exp(-decay[..., None] * tokens.view(2, 1, 1, 1)) * (sums + added[:, :, chunk])
    assert_close(after, sums)


def training_step(length, impl, count):
    (query, key, value), projections = draw_inputs(1, 2, length, 4, 4, 3)
    with count:
        output = causal_linformer_attention(query, key, value, *projections, window=5, chunk_size=8, impl=impl)
        output.sum().backward()


def test_a_training_step_grows_with_the_length_and_not_its_square():
    counts = [CountElements() for _ in range(2)]
    for length, count in zip((2048, 4096), counts, strict=True):
        training_step(length, "scan", count)
    assert counts[1].total < 2.1 * counts[0].total


def test_memory_limits_what_is_computed_at_a_time(monkeypatch, take_at_once):
    take_at_once(monkeypatch, scan_numbers=2**12)
    count = CountElements()
    training_step(2048, "scan", count)
    assert count.largest <= max(2048 * 2 * 4, 2**12)  # the sequences themselves are larger


def test_a_rest_of_a_chunk_is_no_segment_of_its_own(monkeypatch):
    calls, attend = [], chunks.attend_segment
    monkeypatch.setattr(chunks, "attend_segment", lambda *x, **y: calls.append(x[0].query.shape[2]) or attend(*x, **y))
    sequences, projections = draw_inputs(1, 2, 2_000, 4, 4, 3)
    causal_linformer_attention(*sequences, *projections, impl="scan")
    assert calls == [2_048]


@torch.no_grad()
def test_a_compiled_graph_has_the_same_result():
    torch._dynamo.reset()
    compiled = torch.compile(causal_linformer_attention, fullgraph=True, dynamic=False, backend="eager")
    sequences, projections = draw_inputs(2, 2, 70, 3, 5, 4)
    expected = causal_linformer_attention(*sequences, *projections, window=3)
    assert_close(compiled(*sequences, *projections, window=3, impl="scan"), expected)
    torch._dynamo.reset()


def test_a_module_reads_pieces_by_it_as_by_the_loop(gradients):
    torch.manual_seed(0)
    attention = LinformerAttention(12, 2, max_len=64, k=4, window=5, causal=True, **DOUBLE)
    x, mask = torch.randn(2, 50, 12, requires_grad=True, **DOUBLE), torch.arange(50) < torch.tensor([[0], [9]])
    results = []
    for name in ("scan", "torch"):
        with use_implementation(name, "torch") as ran:
            output, _ = attention(x, x, x, key_padding_mask=mask)
        assert ran["causal attention"] == {name}
        results.append([output, *gradients(output, [x, *attention.parameters()])])
    assert_close(*results)


@pytest.mark.cpu("against all other devices, for which 'meta' stands")
def test_a_cpu_goes_on_as_before_and_other_devices_scan():
    for device, expected in (("cpu", "torch"), ("meta", "scan")):
        x, proj = torch.empty(1, 2, 100, 4, device=device), SlotWeights(torch.zeros(3, device=device))
        with torch.no_grad(), use_implementation("auto") as ran:
            attend_causally(x, x, x, proj)
        assert ran == {"causal attention": {expected}}


def test_ordinary_causal_attention_has_no_scan():
    x = torch.zeros(1, 2, 7, 4)
    with (
        use_implementation("scan"),
        pytest.raises(ValueError, match="scan cannot compute this full causal attention: it has"),
    ):
        attend_to_past(x, x, x)
