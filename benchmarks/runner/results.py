"""The rows of a benchmark, and what is left of them in its folder: results.json, figures, report.html."""

import json
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from runner.suite import Case, Grid, Measurement, Summary
from torch_linformer.reporting.files import write_bytes, write_json, write_text
from torch_linformer.reporting.report import Report, Section, render_html
from torch_linformer.reporting.tables import format_bytes, format_duration

RESULTS_FILE = "results.json"


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a suite is run: what was chosen of it, timed rounds of each contender in each case, and CPU threads."""

    grid: Grid
    repeat: int
    threads: int

    def as_options(self) -> dict[str, str]:
        """The settings as the command's options; an empty one is the suite's own choice."""
        values = {**asdict(self.grid), "repeat": self.repeat, "threads": self.threads}
        values["k"], values["batch"] = values.pop("ks"), values.pop("batches")
        return {f"--{name}": _as_option(value) for name, value in sorted(values.items())}


@dataclass(kw_only=True)
class Results:
    """A benchmark, finished or not.

    Attributes:
        suite: its name.
        settings: the options it was run with.
        machine: facts of the machine and versions of what ran.
        command: the command that started it.
        date: when that was.
        rows: what was measured, in the order of the cases.
        derived: what the suite computed from the rows, once it had all of them.
    """

    suite: str
    settings: Mapping[str, str]
    machine: Mapping[str, str]
    command: str
    date: str
    rows: list[Measurement] = field(default_factory=list)
    derived: Mapping[str, object] = field(default_factory=dict)

    def add(self, row: Measurement, order: Sequence[tuple[Case, str]]) -> None:
        """Put a new row in its place; ``order`` names all rows of the finished benchmark."""
        there = {(each.case, each.contender): each for each in (*self.rows, row)}
        self.rows = [there[pair] for pair in order if pair in there]

    def missing(self, order: Sequence[tuple[Case, str]]) -> list[tuple[Case, str]]:
        """Those of ``order`` that have no row yet."""
        there = {(row.case, row.contender) for row in self.rows}
        return [pair for pair in order if pair not in there]

    def save(self, folder: Path) -> None:
        """Write ``results.json``, whole or not at all."""
        write_json(folder / RESULTS_FILE, asdict(self))

    @classmethod
    def load(cls, file: Path) -> "Results":
        """Read what ``save`` has written.

        Raises:
            ValueError: the file holds something else.
        """
        try:
            found = json.loads(file.read_text(encoding="utf-8"))
            for row in found["rows"]:
                row["case"], spread = Case(**row["case"]), row["spread"]
                row["spread"] = None if spread is None else tuple(spread)
            return cls(**{**found, "rows": [Measurement(**row) for row in found["rows"]]})
        except (ValueError, TypeError, KeyError):
            raise ValueError(f"{file}: holds no benchmark; name another --output") from None


def open_results(folder: Path, wanted: Results, resume: bool) -> Results:
    """The results of the same benchmark that the folder holds, or ``wanted`` where it holds nothing.

    Raises:
        ValueError: the folder holds something else, or this benchmark and ``resume`` is not asked for.
    """
    file = folder / RESULTS_FILE
    if not file.exists():
        if folder.is_file() or (folder.is_dir() and any(path.name[0] != "." for path in folder.iterdir())):
            raise ValueError(f"--output {folder}: is not empty and holds no benchmark; name another folder")
        return wanted
    found = Results.load(file)
    # Rows of different settings, machines or versions are never mixed.
    there, here = ({"suite": each.suite, **each.settings, **each.machine} for each in (found, wanted))
    names = [name for name in {**here, **there} if there.get(name) != here.get(name)]
    if different := ", ".join(f"{name} {_told(there, name)} there, {_told(here, name)} here" for name in names):
        raise ValueError(f"--output {folder}: holds another benchmark ({different}); name another folder")
    if not resume:
        raise ValueError(
            f"--output {folder}: holds this benchmark already; add --resume to go on, or name another folder"
        )
    return found


def _told(facts: Mapping[str, str], name: str) -> str:
    """A setting as a message has it; an empty one is the suite's own."""
    return facts.get(name, "none") or "the suite's"


def _as_option(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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
    )
    for name, content in summary.figures.items():
        write_bytes(folder / f"{name}.png", content)
    write_text(folder / "report.html", render_html(report))
    return report


def _cells(row: Measurement) -> tuple[object, ...]:
    case, (lower, upper) = row.case, row.spread or (None, None)
    times = (None if seconds is None else format_duration(seconds) for seconds in (row.seconds, lower, upper))
    memory = None if row.memory is None else format_bytes(row.memory)
    name = f"{row.contender}, {case.ranks} processes" if case.ranks else row.contender
    first = None if row.first is None else format_duration(row.first)
    return (name, case.step, case.length, case.k or None, case.batch, *times, row.repeats, memory, first, row.error)


def git_commit(file: str) -> str | None:
    """The commit of the checkout that tracks ``file``, with ``-dirty`` if anything in it was changed; else None."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [git, "-C", str(Path(file).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    # An environment may lie inside another project's checkout, which does not track what is installed there.
    if ask("ls-files", "--error-unmatch", Path(file).name).returncode:
        return None
    described = ask("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return described.stdout.strip() or None
