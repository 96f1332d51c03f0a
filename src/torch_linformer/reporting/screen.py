"""What a command shows while it runs and when it has ended: sentences, tables and reports, on one console."""

from collections.abc import Sequence

from rich.console import Console
from rich.progress import Progress, ProgressColumn, TaskID

from torch_linformer.reporting.report import Report
from torch_linformer.reporting.tables import printable, results_table


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
        shown = [[printable(cell) if isinstance(cell, str) else cell for cell in row] for row in rows]
        names = [printable(name) for name in columns]
        self.console.print(results_table(printable(title), names, shown, self.console.width))

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
