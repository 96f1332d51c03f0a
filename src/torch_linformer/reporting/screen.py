"""What a command shows while it runs and when it has ended: sentences, tables and reports, on one console."""

import textwrap
from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID
from rich.table import Table
from rich.text import Text

from torch_linformer.reporting.report import Report
from torch_linformer.reporting.tables import are_numbers, format_table, printable


class Screen:
    """Sentences, tables and reports on a console, and on a terminal a bar; all of it :func:`printable`."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)
        self.bar: Progress | None = None
        self.task = TaskID(0)

    def say(self, sentence: str) -> None:
        """One line, as it is: brackets in a file's name are no markup."""
        self.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        """A table of :func:`format_table`, every text as it is; where it is too wide, its numbers are never broken."""
        cells = format_table(columns, rows)
        headings, *shown = ([printable(cell) for cell in row] for row in (columns, *cells.rows))
        widest = [max(map(len, column)) for column in zip(headings, *shown, strict=True)]
        too_wide = sum(widest) + 3 * len(columns) + 1 > self.console.width
        table = Table(
            title=Text(printable(title), style="bold") if title else None,
            title_justify="left",
            box=box.SIMPLE_HEAD,
            padding=(0, 1, 0, 0 if too_wide else 1),
        )
        for number, (heading, right) in enumerate(zip(headings, cells.right, strict=True)):
            column = [row[number] for row in shown]
            whole = right or are_numbers(column)  # numbers may name the rows too
            if whole and too_wide:
                heading = textwrap.fill(heading, max(map(len, column)), break_long_words=False, break_on_hyphens=False)
            table.add_column(Text(heading), justify="right" if right else "left", no_wrap=whole)
        for row in shown:
            table.add_row(*map(Text, row))
        self.console.print(table)

    def report(self, report: Report) -> None:
        """Facts and tables of the sections that are no details; last, near the prompt, the verdict."""
        for section in report.all_sections:
            if section.detail:
                continue
            if section.facts:
                self.table(section.heading, ("", ""), list(section.facts.items()))
            if section.columns:
                self.table(section.heading, section.columns, section.rows)
        if report.verdict:
            self.say(f"{report.verdict}\n")

    def start_bar(self, *columns: ProgressColumn, total: int, completed: int) -> None:
        """A bar of these columns, one of which may show ``task.fields[line]``; nothing where there is no terminal."""
        if self.console.is_terminal:
            self.bar = Progress(*columns, console=self.console)
            self.task = self.bar.add_task("", total=total, completed=completed, line="")
            self.bar.start()

    def hang_up(self) -> None:
        """Show nothing more on a terminal, which has been closed: writing there would be an error."""
        self.console.quiet = self.console.quiet or self.console.is_terminal

    def stop(self) -> None:
        """Take the bar away, if there is one."""
        if self.bar is not None:
            self.bar.stop()
            self.bar = None
