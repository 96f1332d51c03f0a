import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from torch_linformer.measuring.step import limited_memory

needs_proc = pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's /proc")
MEGABYTES = """
import torch
from torch_linformer.measuring.step import PeakMemory
parameters = [torch.zeros(50, 1_000_000, dtype=torch.uint8) + 1 for _ in range(4)]
del parameters[2:]  # what building left in the allocator hides nothing
for steps in ([], [90], [30, 90, 30]):  # the zeros and the sum are there at once
    peak = PeakMemory("cpu")
    for megabytes in steps:
        kept = torch.zeros(megabytes, 1_000_000, dtype=torch.uint8) + 1
        del kept
    print(peak.bytes() / 1e6)
"""


@needs_proc
def test_the_peak_is_the_height_of_the_steps_beyond_what_was_held():
    done = subprocess.run([sys.executable, "-c", MEGABYTES], capture_output=True, text=True)
    assert [*map(float, done.stdout.split())] == pytest.approx([0, 180, 180], rel=0.1, abs=3), done.stderr


@needs_proc
def test_limited_memory_ends_with_its_block():
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    before = resource.getrlimit(resource.RLIMIT_AS)
    with limited_memory("cpu"), pytest.raises(RuntimeError, match="allocate memory"):
        _ = [torch.empty(int(0.7 * total), dtype=torch.uint8) for _ in range(3)]
    assert resource.getrlimit(resource.RLIMIT_AS) == before
    with limited_memory("cuda"):  # its addresses are many more than its memory
        assert resource.getrlimit(resource.RLIMIT_AS) == before
