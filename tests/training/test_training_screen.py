import io

import pytest
from rich.console import Console

from torch_linformer.training.training_screen import TrainingScreen


@pytest.fixture
def screen():
    return TrainingScreen(Console(file=io.StringIO(), width=100))


@pytest.mark.parametrize(
    ("step", "done", "shown"),
    [
        (250, 0.25, "step 250/1000: 80 tokens/s, 1 min 30 s left\n"),
        (1000, 1.0, "step 1000/1000: 80 tokens/s, 0 ms left\n"),
        (10, 0.25, "step 10/~40: 80 tokens/s, 1 min 30 s left\n"),  # as many steps as there is time for
        (10, 1.0, "step 10/~10: 80 tokens/s, 0 ms left\n"),
    ],
)
def test_the_time_left_and_the_steps_left_agree(screen, step, done, shown):
    screen.start(0, 1000)
    screen.step(step, done, None, 80.0, 30.0)
    assert screen.console.file.getvalue() == shown


def test_reading_shows_what_is_read_and_the_time_left(screen):
    screen.start(0, 8000, "reading")
    screen.read(2000, 20.0)
    assert screen.console.file.getvalue() == "25.0 % read: 100 tokens/s, 1 min 00 s left\n"


def test_a_bar_shows_the_same():
    screen = TrainingScreen(Console(file=io.StringIO(), width=100, force_terminal=True))
    screen.start(0, 1000)
    (task,) = screen.bar.tasks
    screen.step(10, 0.25, 0.5, 80.0, 30.0)
    assert (task.completed, task.total) == (10, 40)
    assert task.fields["line"] == "10/~40 steps, loss 0.500, 80 tokens/s, 1 min 30 s left"
    screen.read(250, 30.0)
    assert (task.completed, task.total, task.fields["line"]) == (250, 1000, "8 tokens/s, 1 min 30 s left")
    screen.stop()
