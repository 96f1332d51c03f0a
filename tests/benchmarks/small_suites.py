"""Suites of a few tiny contenders. A module of its own, because the processes that measure memory import it too."""

import dataclasses
import functools
import os
import signal
import time
from pathlib import Path

import torch
from torch import nn

import suites.context  # noqa: F401  so that the process from which the others are forked has it, whoever begins it
from runner.suite import Case, Contender, Suite, Summary, Workload
from torch_linformer.reporting.report import Headline, Section

WIDTH = 6
MEGABYTE = 1_000_000


def case(**changed):
    return Case(**{"step": "forward", "length": 7, "k": 3, "batch": 2, "width": WIDTH, "heads": 1, **changed})


def workload(case, run, expected=None):
    """A workload whose ``run`` and ``expected`` get a linear layer and the input."""
    module = nn.Linear(case.width, case.width)
    x = torch.randn(case.batch, case.length, case.width, requires_grad=case.step == "training")
    return Workload(
        module=module,
        inputs=(x,),
        run=functools.partial(run, module),
        expected=expected and functools.partial(expected, module),
        output_shape=tuple(x.shape),
    )


def contender(name, run, **options):
    return Contender(name=name, build=lambda case: workload(case, run, **options))


def right(module, x):
    return module(x)


def raising(module, x):
    raise ValueError("no\nsuch thing")


def raising_in_the_second(module, x):
    if torch.distributed.get_rank() == 1:
        raise ValueError("only I")
    torch.distributed.barrier()  # which never comes
    return module(x)


def refusing(case):
    raise NotImplementedError(f"not for length {case.length}")


def eating(module, x):
    """Ask for more than there is, in pieces that the system grants one by one, and touch none of it."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    pieces = [torch.empty(int(0.7 * total), dtype=torch.uint8) for _ in range(3)]
    return x + 0 * len(pieces)


def signalled(number, module, x):
    os.kill(os.getpid(), number)
    return x


def holding_200_mb(module, x):
    pieces = [torch.ones(10 * MEGABYTE, dtype=torch.uint8) for _ in range(20)]
    return x + 0 * len(pieces)


def built_with_much_then_200_mb(case):
    """Building takes and gives back more than the step needs, below something that stays in the allocator's heap."""
    for _ in range(2):  # the first time teaches the allocator to keep pieces of this size
        pieces = [torch.ones(10 * MEGABYTE, dtype=torch.uint8) for _ in range(30)]
        above = torch.ones(MEGABYTE, dtype=torch.uint8)
        del pieces
    return workload(case, lambda module, x: holding_200_mb(above, x))


class SmallSuite(Suite):
    """Two cases of several contenders, chosen by name."""

    name = "small"
    title = "Small things"

    def __init__(self, *names, cases=None, log=None, together=False):
        self.names, self.all_cases, self.log = names, cases or [case(), case(length=11)], log
        self.together = together  # all lengths are timed in turn

    def cases(self, grid):
        return self.all_cases

    def contenders(self):
        everyone = [
            contender("right", right),
            contender("checked", right, expected=right),
            contender("NaN", lambda module, x: module(x) * float("nan")),
            contender("shape", lambda module, x: module(x)[:, :-1]),
            contender("wrong", right, expected=lambda module, x: 1.001 * module(x)),
            contender("detached", lambda module, x: module(x.detach())),
            contender("raising", raising),
            contender("one raises", raising_in_the_second),
            Contender(name="refusing", build=refusing),
            contender("eating", eating),
            contender("killed", functools.partial(signalled, signal.SIGKILL)),
            contender("crashing", functools.partial(signalled, signal.SIGABRT)),
            contender("interrupted", functools.partial(signalled, signal.SIGINT)),
            contender("200 MB", holding_200_mb),
            Contender(name="200 MB after much", build=built_with_much_then_200_mb),
            contender("patient", right),
            *(
                dataclasses.replace(contender(f"right, {way}", right), compilation=way)
                for way in ("compiled", "CUDA graphs")
            ),
            *(contender(name, functools.partial(self._logged, name)) for name in "ABC"),
            contender("gate", self._wait_at_the_gate),
        ]
        return [each for each in everyone if each.name in self.names]

    def turn(self, case):
        return dataclasses.replace(super().turn(case), **({"length": 0} if self.together else {}))

    def reason_to_skip(self, contender, case):
        return "skipped: too long for any patience" if contender.name == "patient" and case.length > 7 else None

    def summarize(self, rows):
        seconds = {row.contender: row.seconds for row in rows}
        return Summary(
            headlines=[Headline(name="rows", value=len(rows), note="all | of them")],
            sections=[Section(heading="Times", text="What | it took.", columns=("", "s"), rows=list(seconds.items()))],
            figures={"times": b"\x89PNG"},
            derived={"rows": len(rows)},
        )

    def _logged(self, name, module, x):
        with Path(self.log).open("a", encoding="utf-8") as file:
            print(name, x.shape[1], file=file)
        return module(x)

    def _wait_at_the_gate(self, module, x):
        """In the longer case, say so in the log and wait as long as there is a file `gate` beside it."""
        if x.shape[1] == 11 and Path(self.log).with_name("gate").exists():
            self._logged("gate", module, x)
            while Path(self.log).with_name("gate").exists():
                time.sleep(0.01)
        return module(x)
