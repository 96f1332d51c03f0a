"""Steps of contenders and their times: contenders take turns, so that a noisy machine slows all of them alike."""

import errno
import gc
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from runner.suite import Case, Contender, Measurement, Workload
from torch_linformer.measuring.step import limited_memory, mean_seconds

OUT_OF_MEMORY = "out of memory"
# Largest difference from the plain computation, as a share of the largest expected value.
TOLERANCE = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 2e-2}
_MEMORY_MESSAGES = ("out of memory", "can't allocate memory", "cannot allocate memory", "not enough memory")
_LONGEST_ERROR = 300  # characters of an error in a row


class Step:
    """What is measured: ``forward`` and ``decoding`` in inference mode, ``training`` with a fixed output gradient."""

    def __init__(self, contender: Contender, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.workload: Workload = contender.build(case)
        self.workload.module.train(case.step == "training")
        shape = self.workload.output_shape if case.step == "training" else ()
        self.gradient = torch.randn(shape, device=case.device, dtype=case.torch_dtype)

    def run(self) -> Tensor:
        """The output; after a training step the gradients are there until ``clear``."""
        if self.case.step != "training":
            with torch.inference_mode():
                return self.workload.run(*self.workload.inputs)
        output = self.workload.run(*self.workload.inputs)
        torch.autograd.backward(output, self.gradient)
        return output.detach()

    def clear(self) -> None:
        """Drop the gradients, to which the next step would add."""
        for tensor in (*self.workload.module.parameters(), *self.workload.inputs):
            tensor.grad = None

    def check(self, output: Tensor) -> None:
        """Make sure that a finished step computed what it should have.

        Raises:
            ValueError: the output has another shape, is not finite or is too far from the expected one; or the gradient
                of an input is missing or not finite.
        """
        if tuple(output.shape) != self.workload.output_shape:
            raise ValueError(f"the output's shape is {tuple(output.shape)}, expected {self.workload.output_shape}")
        if not torch.isfinite(output).all():
            raise ValueError("the output is not finite")
        for tensor in self.workload.inputs if self.case.step == "training" else ():
            if tensor.requires_grad and (tensor.grad is None or not torch.isfinite(tensor.grad).all()):
                raise ValueError(f"the input's gradient is {'missing' if tensor.grad is None else 'not finite'}")
        if self.workload.expected is not None:
            with torch.inference_mode():
                expected = self.workload.expected(*self.workload.inputs)
            error, tolerance = (output - expected).abs().max() / expected.abs().max(), TOLERANCE[self.case.dtype]
            if not error <= tolerance:
                raise ValueError(f"the output is {error:.1e} off, relative to the largest; {tolerance:.0e} is allowed")


def explain(error: Exception) -> str:
    """An error as a row holds it: one line, or ``out of memory``."""
    message = " ".join(str(error).split())
    no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or getattr(error, "errno", 0) == errno.ENOMEM
    if no_memory or any(text in message.lower() for text in _MEMORY_MESSAGES):
        return OUT_OF_MEMORY
    line = f"{type(error).__name__}: {message}"
    return line if len(line) <= _LONGEST_ERROR else f"{line[: _LONGEST_ERROR - 1]}…"


MOST_GROWTH = 10  # times as many calls as in the round before: what one call seemed to take may be wrong
ROUND_SECONDS = 0.05  # a shorter step is repeated within a round, which counts as their mean
_SLOW = 1.0  # seconds: a step that takes this long is warm after one call


def time_in_turn(pairs: Sequence[tuple[Contender, Case]], repeat: int, budget: float) -> list[Measurement]:
    """Build, warm up and check each contender, then time them in rounds A B C, A B C, …

    Args:
        pairs: who computes what, on one device, in the order of their turns.
        repeat: rounds.
        budget: seconds for each contender; a slow one takes part in fewer rounds, but at least one.

    Returns:
        For each pair the median and the quartiles of its rounds, or the error that ended its part.
    """
    if not pairs:
        return []
    runners = [_Runner(contender, case) for contender, case in pairs]
    with limited_memory(pairs[0][1].device):
        for runner in runners:
            with runner.noting_errors():
                runner.prepare(repeat, budget)
        for turn in range(repeat):
            for runner in runners:
                if turn < runner.rounds:
                    with runner.noting_errors():
                        runner.time_a_round()
    rows = [runner.row() for runner in runners]
    for runner in runners:
        runner.release()
    if any(contender.compilation for contender, _ in pairs):
        torch.compiler.reset()  # graphs of earlier cases count against the limit of compiling again
    return rows


class _Runner:
    """A contender that computes a case."""

    def __init__(self, contender: Contender, case: Case) -> None:
        self.contender, self.case = contender, case
        self.step: Step | None = None
        self.error: str | None = None
        self.first: float | None = None  # seconds of the first step, if it had to be compiled
        self.seconds: list[float] = []  # of one step, for each round
        self.rounds = 0
        self.calls = 1  # steps in a round

    @contextmanager
    def noting_errors(self) -> Iterator[None]:
        """An error ends the part of this contender only."""
        try:
            yield
        except Exception as error:
            self.error, self.rounds = explain(error), 0
        if self.error is not None:  # only here: the error kept the tensors alive
            self.release()

    def prepare(self, repeat: int, budget: float) -> None:
        """Build and warm up, check the output, and choose the number of rounds and of steps in a round."""
        step = self.step = Step(self.contender, self.case)
        outputs: list[Tensor] = []
        seconds = mean_seconds(lambda: outputs.append(step.run()), self.case.device)
        step.check(outputs.pop())
        step.clear()
        if self.contender.compilation:
            self.first = seconds
        if self.first is not None or seconds < _SLOW:  # the first call also loaded code and chose kernels
            self.calls, seconds = calls_in_a_round(self._step_and_clear, self.case.device, ROUND_SECONDS)
        self.rounds = max(1, min(repeat, int(budget / (self.calls * seconds))))

    def time_a_round(self) -> None:
        if self.calls > 1:  # not in the time: this fills the caches after another contender
            self._step_and_clear()
        self.seconds.append(mean_seconds(self._step_and_clear, self.case.device, self.calls))

    def row(self) -> Measurement:
        if self.error is not None:
            return Measurement(contender=self.contender.name, case=self.case, error=self.error)
        cache = None if self.step is None else self.step.workload.cache
        return Measurement.of_rounds(self.contender.name, self.case, self.seconds, cache=cache, first=self.first)

    def release(self) -> None:
        """Free the module and the inputs, on the GPU too."""
        self.step = None
        gc.collect()
        if self.case.device == "cuda":
            torch.cuda.empty_cache()

    def _step_and_clear(self) -> None:
        assert self.step is not None
        self.step.run()
        self.step.clear()


def calls_in_a_round(step: Callable[[], object], device: str, at_least: float) -> tuple[int, float]:
    """How many calls make a round of ``at_least`` so many seconds, and the mean time of a call in it.

    The first call is not counted: if it is the second of its kind, it records a CUDA graph. Then rounds grow until one
    is long enough: calls of microseconds on a GPU, timed one by one, mostly measure the wait for its end.
    """
    mean_seconds(step, device)
    calls = 1
    while True:
        seconds = mean_seconds(step, device, calls)
        if calls * seconds >= at_least:
            return calls, seconds
        needed = math.ceil(1.1 * at_least / max(seconds, 1e-9))
        calls = min(MOST_GROWTH * calls, max(calls + 1, needed))
