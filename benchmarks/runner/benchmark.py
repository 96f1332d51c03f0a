"""A benchmark from its first case to its report, and what it shows meanwhile."""

import dataclasses
import time
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

import torch_linformer
from runner.processes import probe, time_ranks
from runner.results import Results, Settings, git_commit, open_results, write_report
from runner.suite import Case, Contender, Grid, Measurement, Suite
from runner.timing import time_in_turn
from torch_linformer.measuring.machine import machine_facts, package_versions
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_bytes, format_count, format_duration


class BenchmarkScreen(Screen):
    """A console with the progress of a benchmark."""

    def begin(self, title: str, rows: int, done: int) -> None:
        """Name what is measured, and how much of it is done already."""
        self.say(f"{title}: {format_count(rows)} rows" + (f", {format_count(done)} of them are there" if done else ""))
        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[line]}", markup=False))
        self.start_bar(*columns, total=rows, completed=done)

    def row(self, row: Measurement) -> None:
        """Show what was just measured."""
        line = f"{describe_case(row.case)}: {row.contender} {describe_result(row)}"
        if self.bar is not None:
            self.bar.update(self.task, advance=1, line=line)
        else:
            self.say(line)


def describe_case(case: Case) -> str:
    """A case in a few words: ``forward, N 4,096, K 256, B 1``; without what it does not have."""
    sizes = {"N": case.length, "K": case.k, "B": case.batch, "processes": case.ranks}
    return ", ".join([case.step, *(f"{name} {format_count(size)}" for name, size in sizes.items() if size)])


def describe_result(row: Measurement) -> str:
    """A row's numbers in a few words: ``12.3 ms (12.1 ms to 12.6 ms, 7 rounds), 43.1 MB``; or its error.

    One that was compiled ends with the time of that: ``, compiled in 6.2 s``.
    """
    if row.seconds is None or row.spread is None:
        return row.error or ""
    lower, upper = map(format_duration, row.spread)
    rounds = "1 round" if row.repeats == 1 else f"{row.repeats} rounds"
    memory = "" if row.memory is None else f", {format_bytes(row.memory)}"
    compiled = "" if row.first is None else f", compiled in {format_duration(row.first)}"
    return f"{format_duration(row.seconds)} ({lower} to {upper}, {rounds}){memory}{compiled}"


BUDGET, QUICK_BUDGET = 10.0, 3.0  # seconds of timed rounds for each contender in each case


def run_benchmark(
    suite: Suite,
    settings: Settings,
    output: Path,
    *,
    resume: bool = False,
    minutes: float | None = None,
    command: str = "",
    screen: BenchmarkScreen | None = None,
) -> Results:
    """Measure every contender in every case of a suite, and write rows, tables, figures and a page to a folder.

    First each contender runs one step in a process of its own, which gives its peak memory and finds out whether it
    can run; those that can are then timed in turn in this process. Where several processes share a row, they do both.
    ``results.json`` has every row as soon as it is
    known. ``output`` is a new or empty folder, or with ``resume`` that of the same benchmark, whose rows are kept.

    Contenders that are compiled have no process of their own, which would compile them once more, and no memory.

    Args:
        suite: what is measured.
        settings: how.
        output: the folder.
        resume: whether to go on with what it holds.
        minutes: no further group of rows is begun that would end after them if it took as long as the longest so far;
            None is without an end. What is missing then, ``resume`` measures.
        command: which started it, for the report.
        screen: where progress is shown.

    Raises:
        ValueError: for anything wrong with the settings or the folder.
    """
    started = time.monotonic()
    screen = screen or BenchmarkScreen()
    ways = {None, *(["compiled"] if settings.grid.compile else [])}  # CUDA graphs only on a GPU
    ways |= {"CUDA graphs"} if settings.grid.compile and settings.grid.device == "cuda" else set()
    contenders = {each.name: each for each in suite.contenders() if each.compilation in ways}
    for beginning in settings.grid.only:
        if not any(name.startswith(beginning) for name in contenders):
            raise ValueError(f"--only {beginning}: no contender's name begins so; there are {'; '.join(contenders)}")
    if settings.grid.only:
        contenders = {name: x for name, x in contenders.items() if name.startswith(tuple(settings.grid.only))}
    cases = _cases(suite, settings.grid)
    order = [(case, name) for case in cases for name in contenders if suite.takes_part(contenders[name], case)]
    torch.set_num_threads(settings.threads)
    results = open_results(output, _new_results(suite, settings, command), resume)
    results.save(output)  # from here on the folder belongs to this benchmark
    missing = results.missing(order)
    if not_installed := sorted(set(suite.packages) - set(package_versions(suite.packages))):
        names = ", ".join(not_installed)
        screen.say(f'not installed: {names}; to have every contender: pip install "torch-linformer[bench]"')
    if compiled := sum(contenders[name].compilation is not None for _, name in missing):
        screen.say(f"{compiled} of the rows are compiled first, each for its shapes: seconds to a minute a row")
    screen.begin(suite.title, len(order), done=len(order) - len(missing))
    longest = 0.0
    try:
        for group in _groups(suite, missing):
            begun = time.monotonic()
            if minutes is not None and begun - started + longest > 60 * minutes:
                break
            for row in _measure(suite, [(contenders[name], case) for case, name in group], settings):
                results.add(row, order)
                results.save(output)
                screen.row(row)
            longest = max(longest, time.monotonic() - begun)
    finally:
        screen.stop()
    summary = suite.summarize(results.rows)
    results.derived = summary.derived
    results.save(output)
    screen.report(write_report(output, suite.title, results, summary))
    screen.say(f"results.json and report.html are in {output}")
    if left := len(results.missing(order)):
        screen.say(f"{left} rows would not have ended within {minutes:g} minutes; --resume measures them")
    return results


def _cases(suite: Suite, grid: Grid) -> list[Case]:
    """The suite's cases for a grid; ``ValueError`` where there are none, or none for one of its K."""
    if len(grid.batches) > 1 and not suite.several_batches:
        listed = ",".join(map(str, grid.batches))
        raise ValueError(f"--batch {listed}: {suite.name} takes one number of rows; name one")
    cases = list(dict.fromkeys(suite.cases(grid)))
    lengths = sorted(set(grid.lengths or [case.length for case in cases]))
    for k in grid.ks:
        if k > max(lengths, default=k):
            listed = ", ".join(map(str, lengths))
            raise ValueError(f"--k {k}: is more than every length ({listed}); take a smaller K or longer --lengths")
    if not cases:
        raise ValueError(f"{suite.name}: has no case for these --lengths and --k; leave one of them out")
    return cases


def _groups(suite: Suite, pairs: Sequence[tuple[Case, str]]) -> Iterable[list[tuple[Case, str]]]:
    """Groups that are measured in turn, in the order of the last, most expensive case of each."""
    groups: dict[Case, list[tuple[Case, str]]] = {}
    for case, name in pairs:
        groups[suite.turn(case)] = [*groups.pop(suite.turn(case), []), (case, name)]
    return groups.values()


def _new_results(suite: Suite, settings: Settings, command: str) -> Results:
    commit = git_commit(torch_linformer.__file__)
    return Results(
        suite=suite.name,
        settings=settings.as_options(),
        machine={
            **machine_facts(settings.grid.device),
            **package_versions(("torch", "transformers", *suite.packages)),
            "torch-linformer": torch_linformer.__version__,
            **({"commit": commit} if commit else {}),
        },
        command=command,
        date=datetime.now(UTC).isoformat(timespec="seconds"),
    )


def _measure(suite: Suite, pairs: Sequence[tuple[Contender, Case]], settings: Settings) -> Iterator[Measurement]:
    """A row for each pair: first those that cannot run, as soon as that is known, then all times together."""
    budget = QUICK_BUDGET if settings.grid.quick else BUDGET
    memory: dict[tuple[str, Case], int | None] = {}
    able = []
    for contender, case in pairs:
        error = suite.reason_to_skip(contender, case)
        if error is None and not case.ranks and contender.compilation is None:
            peak = probe(suite, contender.name, case, settings.threads)
            memory[contender.name, case], error = peak.memory, peak.error
        if error is None:
            able.append((contender, case))
        else:
            yield Measurement(contender=contender.name, case=case, error=error)
    if any(case.ranks for _, case in able):
        yield from time_ranks(suite, able, settings.repeat, budget, settings.threads)
        return
    for row in time_in_turn(able, settings.repeat, budget):
        yield row if row.error else dataclasses.replace(row, memory=memory.get((row.contender, row.case)))
