"""What a running benchmark shows: a bar on a terminal, a line for each row in a log."""

from rich.progress import BarColumn, MofNCompleteColumn, TextColumn

from torch_linformer.bench.suite import Case, Measurement
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
