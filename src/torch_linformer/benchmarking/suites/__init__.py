"""The benchmarks there are."""

from torch_linformer.benchmarking.suite import Suite

SUITES: dict[str, Suite] = {}
