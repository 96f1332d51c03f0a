"""Where a command speaks: sentences and tables, on one console."""

from collections.abc import Sequence

from rich.console import Console

from torch_linformer.reporting.tables import results_table


class Screen:
    """Sentences and tables on a console; what shows progress builds on it."""

    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False)

    def say(self, sentence: str) -> None:
        """One line, as it is: brackets in a file's name are no markup."""
        self.console.print(sentence, markup=False, soft_wrap=True)

    def table(self, title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        self.console.print(results_table(title, columns, rows))
