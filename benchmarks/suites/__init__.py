"""The suites of `make bench`, by name."""

from runner.suite import Suite
from suites.attention import AttentionSuite
from suites.causal import CausalSuite
from suites.context import ContextSuite
from suites.encoder import EncoderSuite
from suites.gpu import GpuSuite
from suites.scaling import ScalingSuite
from suites.table3 import Table3Suite

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
