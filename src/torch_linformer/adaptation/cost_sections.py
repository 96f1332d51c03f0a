"""What a report says of the time and the memory of a forward pass: a table, and lines by length."""

from collections.abc import Callable, Mapping

from torch_linformer.adaptation.adaptation_costs import Pair
from torch_linformer.reporting.lines import Line, LogLogChart
from torch_linformer.reporting.report import Section
from torch_linformer.reporting.tables import format_bytes, format_count, format_duration
from torch_linformer.training.step_costs import StepCost, compare_costs, cost_cells

NAMES = ("linear attention", "full attention")  # of a pair


def cost_sections(costs: Mapping[int, Pair]) -> list[Section]:
    """A table of the costs by length; where more than one could be measured also its charts."""
    if not costs:
        return []
    rows = []
    for length, (ours, full) in costs.items():
        (speed, memory), (full_speed, full_memory) = cost_cells(ours), cost_cells(full)
        faster, more = compare_costs(ours, full)
        rows.append((format_count(length), speed, full_speed, faster, memory, full_memory, more))
    table = Section(
        "Cost of a forward pass",
        text="One text of as many tokens as the model reads, and one of the median of the test texts; the adapted "
        "model and the same model with full attention (SDPA) in turn, each in its own process. Peak memory is that of "
        "the pass, without parameters and input.",
        columns=("tokens", "ours, tokens/s", "full, tokens/s", "ours is", "ours, MB", "full, MB", "ours takes"),
        rows=rows,
    )
    if sum(any(isinstance(cost, StepCost) for cost in pair) for pair in costs.values()) < 2:
        return [table]
    return [
        table,
        *_chart("Time", "time of a text", format_duration, costs, lambda n, cost: n / cost.tokens_per_second),
        *_chart("Memory", "peak memory", format_bytes, costs, lambda n, cost: 1e6 * cost.peak_memory_mb),
    ]


def _chart(
    title: str,
    label: str,
    shown: Callable[[float], str],
    costs: Mapping[int, Pair],
    measure: Callable[[int, StepCost], float],
) -> list[Section]:
    """What the two models take by length; a pass that failed, or took nothing that could be measured, has no mark."""
    lines = []
    for number, name in enumerate(NAMES):
        of_lengths = ((length, pair[number]) for length, pair in costs.items())
        measured = {length: measure(length, cost) for length, cost in of_lengths if isinstance(cost, StepCost)}
        lines.append(Line(name=name, points=sorted((n, value) for n, value in measured.items() if value > 0)))
    if not any(line.points for line in lines):
        return []
    heading = f"{title} of a forward pass by length"
    chart = LogLogChart(
        title="Linear and full attention", x_label="tokens of a text", y_label=label, y_format=shown, lines=lines
    )
    return [Section(heading, figure=chart.svg(), caption="Both axes are logarithmic.", detail=True)]
