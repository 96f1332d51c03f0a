"""What a finished benchmark leaves beside ``results.json``: ``results.md``, figures and ``report.html``."""

from pathlib import Path

from torch_linformer.bench.results import Results
from torch_linformer.bench.suite import Measurement, Summary
from torch_linformer.reporting.files import atomic_path, write_text
from torch_linformer.reporting.html import Section, render_report
from torch_linformer.reporting.markdown import render_markdown
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_bytes, format_duration

HOW = (
    "Each time is the median of the rounds, in which the contenders took turns in one process; the spread is the "
    "middle half. Memory is the peak of one step in a fresh process, beyond parameters and inputs."
)
COLUMNS = ("contender", "step", "N", "K", "B", "time", "from", "to", "rounds", "memory", "error")


def write_report(folder: Path, title: str, results: Results, summary: Summary) -> None:
    """Write the tables and figures of a benchmark for people; every file appears whole."""
    sections = [
        *summary.sections,
        Section(heading="All rows", text=HOW, columns=COLUMNS, rows=[_cells(row) for row in results.rows]),
        Section(heading="Settings", columns=("option", "value"), rows=list(results.settings.items())),
        Section(heading="Machine and versions", columns=("", ""), rows=list(results.machine.items())),
    ]
    lead = f"Measured on {results.machine['processor']}, begun {results.date}."
    files = {name: f"{name}.png" for name in summary.figures}
    for name, content in summary.figures.items():
        with atomic_path(folder / files[name]) as path:
            path.write_bytes(content)
    command, headlines = results.command, summary.headlines
    text = render_markdown(title, sections, command, lead=lead, headlines=headlines, figures=files)
    write_text(folder / "results.md", text)
    page = render_report(title, sections, command, lead=lead, headlines=headlines)
    write_text(folder / "report.html", page)


def show_summary(summary: Summary, output: Path, screen: Screen) -> None:
    """The suite's tables at the end of a run, and where everything lies."""
    for section in summary.sections:
        if section.columns:
            screen.table(section.heading, section.columns, section.rows)
    screen.say(f"results.json, results.md and report.html are in {output}")


def _cells(row: Measurement) -> tuple[object, ...]:
    case, (lower, upper) = row.case, row.spread or (None, None)
    times = (None if seconds is None else format_duration(seconds) for seconds in (row.seconds, lower, upper))
    memory = None if row.memory is None else format_bytes(row.memory)
    return (row.contender, case.step, case.length, case.k or None, case.batch, *times, row.repeats, memory, row.error)
