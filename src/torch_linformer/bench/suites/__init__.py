"""The suites of ``linformer bench``, by name."""

from torch_linformer.bench.suite import Suite
from torch_linformer.bench.suites.attention_suite import AttentionSuite
from torch_linformer.bench.suites.causal_suite import CausalSuite
from torch_linformer.bench.suites.context_suite import ContextSuite
from torch_linformer.bench.suites.encoder_suite import EncoderSuite
from torch_linformer.bench.suites.gpu_suite import GpuSuite
from torch_linformer.bench.suites.scaling_suite import ScalingSuite
from torch_linformer.bench.suites.table3_suite import Table3Suite

SUITES: dict[str, Suite] = {
    suite.name: suite
    for suite in (
        AttentionSuite(),
        EncoderSuite(),
        Table3Suite(),
        ScalingSuite(),
        CausalSuite(),
        ContextSuite(),
        GpuSuite(),
    )
}
