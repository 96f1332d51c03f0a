"""The suites of ``linformer bench``, by name."""

from torch_linformer.bench.suite import Suite
from torch_linformer.bench.suites.attention import AttentionSuite
from torch_linformer.bench.suites.causal import CausalSuite
from torch_linformer.bench.suites.encoder import EncoderSuite
from torch_linformer.bench.suites.scaling import ScalingSuite
from torch_linformer.bench.suites.table3 import Table3Suite

SUITES: dict[str, Suite] = {
    suite.name: suite for suite in (AttentionSuite(), EncoderSuite(), Table3Suite(), ScalingSuite(), CausalSuite())
}
