"""What a finished benchmark leaves beside ``results.json``: ``results.md``, figures and ``report.html``."""

from pathlib import Path

from torch_linformer.bench.results import Results
from torch_linformer.bench.suite import Measurement, Summary
from torch_linformer.reporting.files import write_bytes, write_text
from torch_linformer.reporting.html import render_html
from torch_linformer.reporting.markdown import render_markdown
from torch_linformer.reporting.report import Report, Section
from torch_linformer.reporting.tables import format_bytes, format_duration

HOW = (
    "Each time is the median of the rounds, in which the contenders took turns; the spread is the "
    "middle half. Memory is the peak of one step in a fresh process, beyond parameters and inputs; it is not measured "
    "of what is compiled. The first step of that is compiled in the time given, which no round contains."
)
COLUMNS = ("contender", "step", "N", "K", "B", "time", "from", "to", "rounds", "memory", "compiled in", "error")


def write_report(folder: Path, title: str, results: Results, summary: Summary) -> Report:
    """Write the tables and figures of a benchmark, every file whole or not at all; returns what they show."""
    rows = [_cells(row) for row in results.rows]
    report = Report(
        title=title,
        lead=f"Measured on {results.machine['processor']}, begun {results.date}.",
        headlines=summary.headlines,
        sections=[*summary.sections, Section(heading="All rows", text=HOW, columns=COLUMNS, rows=rows, detail=True)],
        settings=results.settings,
        machine=results.machine,
        command=results.command,
        figures=summary.figures,
    )
    for name, content in report.figures.items():
        write_bytes(folder / f"{name}.png", content)
    write_text(folder / "results.md", render_markdown(report))
    write_text(folder / "report.html", render_html(report))
    return report


def _cells(row: Measurement) -> tuple[object, ...]:
    case, (lower, upper) = row.case, row.spread or (None, None)
    times = (None if seconds is None else format_duration(seconds) for seconds in (row.seconds, lower, upper))
    memory = None if row.memory is None else format_bytes(row.memory)
    name = f"{row.contender}, {case.ranks} processes" if case.ranks else row.contender
    first = None if row.first is None else format_duration(row.first)
    return (name, case.step, case.length, case.k or None, case.batch, *times, row.repeats, memory, first, row.error)
