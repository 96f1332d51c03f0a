"""How much is computed at a time belongs to the type of device, and a CPU keeps what was measured on it."""

import pytest
import torch
from calls import attend_causally, attend_with_window

from torch_linformer.functional import causal, cpu
from torch_linformer.functional.causal import SlotWeights
from torch_linformer.functional.dynamic import Reach, Scoring, SegmentPrior

pytestmark = pytest.mark.cpu("its sizes, against those of all other devices, for which 'meta' stands")
META = torch.device("meta")  # tensors without numbers, on which whatever is not a CPU's path runs here


def test_what_was_measured_on_a_cpu_is_what_a_cpu_takes():
    assert cpu.sizes_for(torch.device("cpu")) == (64, 2**21, 2**20, 512, 1024)


@pytest.mark.parametrize("device", ["cuda:1", "meta", "mps"])
def test_every_other_device_takes_more_at_a_time(device):
    measured, chosen = cpu.CPU._asdict(), cpu.sizes_for(torch.device(device))._asdict()
    for name, size in chosen.items():
        assert size is None or size > measured[name], name


def counted(monkeypatch, place, name):
    """How often a function is called."""
    calls, function = [], getattr(place, name)
    monkeypatch.setattr(place, name, lambda *inputs, **options: calls.append(inputs) or function(*inputs, **options))
    return calls


def test_a_window_of_another_device_has_wide_blocks_all_at_once(monkeypatch):
    def shapes_of_queries(device):
        query, slots = torch.empty(1, 2, 5_000, 8, device=device), torch.empty(1, 2, 2_000, 8, device=device)
        attend_with_window(query.requires_grad_(), slots, slots, query, query, 32, impl="torch")
        found = [inputs[0].shape for inputs in calls]
        calls.clear()
        return found

    calls = counted(monkeypatch, torch.nn.functional, "scaled_dot_product_attention")
    assert shapes_of_queries(META) == [(40, 2, 128, 8)]
    assert shapes_of_queries("cpu") == [(7, 2, 64, 8)] * 11 + [(2, 2, 64, 8)]


def test_causal_segments_of_another_device_are_longer(monkeypatch):
    calls = counted(monkeypatch, causal, "attend_segment")
    for device, expected in ((META, [4096, 896, 8]), ("cpu", [512] * 9 + [384, 8])):
        calls.clear()
        query = torch.empty(1, 1, 5_000, 4, device=device)
        with torch.no_grad():
            attend_causally(query, query, query, SlotWeights(torch.empty(3, device=device)))
        assert [inputs[0].query.shape[2] for inputs in calls] == expected


def test_pooled_scores_of_another_device_are_one_block():
    def blocks(device):
        queries, scored = torch.rand(2, 300, 4, device=device), torch.rand(3, 2, 5_000, 4, device=device)
        prior, tokens = SegmentPrior.of(*torch.zeros(2, 300, device=device)), torch.tensor([5_000], device=device)
        return len(list(Reach(Scoring(queries, prior, scored, tokens, 0, None)).blocks()))

    assert blocks(META) == 1
    assert blocks("cpu") == 3 * 10


def test_inference_takes_queries_in_pieces_on_a_cpu_only():
    here = torch.device("cpu")
    assert cpu.queries_at_once(1025, here) is None
    with torch.no_grad():
        assert [cpu.queries_at_once(length, here) for length in (1024, 1025)] == [None, 1024]
        assert cpu.queries_at_once(1025, META) is None
