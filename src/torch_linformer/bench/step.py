"""One step of a workload: run it, drop its gradients, and check its output."""

import errno

import torch
from torch import Tensor

from torch_linformer.bench.suite import Case, Contender, Workload

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
