"""What a run shows: a bar on a terminal, a line now and then in a log."""

import time
from collections.abc import Mapping

from rich.console import Console
from rich.progress import BarColumn, TextColumn

from torch_linformer.distributed import processes
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import format_count, format_duration, format_percent, format_scores

LOG_SECONDS = 10.0  # between two lines where there is no terminal


class TrainingScreen(Screen):
    """A console with the progress of a training."""

    def __init__(self, console: Console | None = None) -> None:
        super().__init__(console or Console(highlight=False, quiet=not processes.is_main()))
        self.last_line = float("-inf")

    def start(self, step: int, steps: int, what: str = "training") -> None:
        self.steps = steps
        self.start_bar(TextColumn(what), BarColumn(), TextColumn("{task.fields[line]}"), total=steps, completed=step)

    def is_due(self) -> bool:
        """Whether it is time to show another step; asking the device for its counts costs time of its own."""
        due = time.monotonic() - self.last_line >= (0.5 if self.bar is not None else LOG_SECONDS)
        if due:
            self.last_line = time.monotonic()
        return due

    def step(self, step: int, done: float, loss: float | None, tokens_per_second: float, seconds: float) -> None:
        """A step, the share of the training that is ``done`` with it, and the ``seconds`` that this share took.

        Where the time will be up before the last step, the number of steps shown is what the time allows.
        """
        steps = min(self.steps, max(step, round(step / done)))
        shown_loss = "" if loss is None else f"loss {loss:.3f}, "
        left = format_duration(seconds * (1 - done) / done)
        line = f"{shown_loss}{format_count(round(tokens_per_second))} tokens/s, {left} left"
        of = f"{step}/{'~' if steps < self.steps else ''}{steps}"
        self._show(step, steps, f"{of} steps, {line}", f"step {of}: {line}")

    def read(self, tokens: int, seconds: float) -> None:
        """How many of the tokens that were announced as steps have been read, and how long it took."""
        done = tokens / self.steps
        line = f"{format_count(round(tokens / seconds))} tokens/s, {format_duration(seconds * (1 - done) / done)} left"
        self._show(tokens, self.steps, line, f"{format_percent(done)} read: {line}")

    def _show(self, completed: int, total: int, beside_bar: str, without_bar: str) -> None:
        if self.bar is not None:
            self.bar.update(self.task, completed=completed, total=total, line=beside_bar)
        else:
            self.say(without_bar)

    def evaluated(self, step: int, metrics: Mapping[str, float]) -> None:
        timing = ("runtime", "samples_per_second", "steps_per_second", "model_preparation_time", "epoch")
        named = {name.removeprefix("eval_"): value for name, value in metrics.items()}
        scores = format_scores({name: value for name, value in named.items() if name not in timing})
        shown = ", ".join(f"{name} {value}" for name, value in scores.items())
        self.say(f"step {step}: validation {shown}")
