import time

import pytest

from torch_linformer.training.probe import Cost, Probe, measure_beside_full_attention

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


def probe(task="mlm", **config):
    return Probe(config={**CONFIG, **config}, task=task, batch_size=2, length=16, device="cpu", precision="fp32")


def test_a_model_that_cannot_run_has_no_cost_and_its_twin_has_one():
    # One K a layer cannot be shared by all layers; full attention has no K.
    ours, full = measure_beside_full_attention(probe(k=[4, 3], sharing="layerwise"))
    assert ours is None
    assert isinstance(full, Cost) and full.tokens_per_second > 0
    assert 50 < full.peak_memory_mb < 20_000  # a process with torch in it, in megabytes


@pytest.mark.usefixtures("no_fresh_process")
def test_without_fresh_processes_there_are_no_costs_and_no_waiting():
    started = time.monotonic()
    assert measure_beside_full_attention(probe("classify")) == (None, None)
    assert time.monotonic() - started < 5
