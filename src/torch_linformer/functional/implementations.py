"""Every operation that can be computed in more than one way: a table of its implementations, and which of them runs.

``torch`` is PyTorch's own public function; ``onednn`` is faster where MKL takes slow kernels (docs/performance.md);
``flash`` is the operator below SDPA on a CPU, which has no public name. Without dropout, results differ only in
rounding. ``auto`` takes what is listed as "unmeasured" only where there is nothing else.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from torch_linformer.functional.pytorch import records_a_graph

Name = Literal[
    "auto", "torch", "onednn", "flash", "flex", "rows", "compress first", "project first", "at once", "chunks"
]
UNMEASURED = "unmeasured"


class Implementation(NamedTuple):
    """One way to compute an operation; all its functions take the arguments of the call."""

    compute: Callable[..., Any]
    needs: str = "nothing"  # in words
    why_not: Callable[..., str | None] = lambda *call: None  # the reason why it cannot compute a call, or None
    pays: Callable[..., bool] = lambda *call: True  # whether ``auto`` takes it, where it can compute the call
    measured: str = "docs/performance.md"  # where its speed was measured


class Operation(NamedTuple):
    """Its name, and its implementations in the order in which ``auto`` tries them; the last can compute every call.

    Those of a plan are orders and portions of the same products; a choice of kernels is none of it.
    """

    name: str
    table: Mapping[Name, Implementation]
    is_plan: bool = False


class _Thread(threading.local):
    uses: tuple[tuple[tuple[Name, ...], dict[str, set[str]]], ...] = ()  # each with its names, and what ran in it


_operations: list[Operation] = []
_thread = _Thread()
_lock = threading.Lock()
_entered = 0  # calls of use_implementation in all threads that have not ended: compiled graphs are guarded on it


def register(name: str, table: Mapping[Name, Implementation], is_plan: bool = False) -> Operation:
    """An operation that :func:`implementations` lists."""
    _operations.append(Operation(name, table, is_plan))
    return _operations[-1]


def implementations() -> list[tuple[str, str, str, str]]:
    """Operation, implementation, what it needs, and where it was measured; in the order in which ``auto`` tries them.

    An implementation that calls operators without a public name says so in its needs.
    """
    return [(op.name, name, way.needs, way.measured) for op in _operations for name, way in op.table.items()]


def check_implementation(name: str, operation: Operation | None = None) -> None:
    """Raise ``ValueError`` for a name that no operation, or not this one, has."""
    tables = [op.table for op in _operations if operation is None or op is operation]
    names = list(dict.fromkeys(["auto", "torch", *(name for table in tables for name in table)]))
    if name not in names:
        raise ValueError(f"impl must be one of {', '.join(names)}, got {name!r}")


@contextmanager
def use_implementation(*names: Name) -> Iterator[dict[str, set[str]]]:
    """Choose the implementation of what runs inside, modules included, and learn which ones ran.

    .. code-block:: python

        with use_implementation("auto") as ran:
            model(input_ids)
        print(ran)  # {'linear': {'onednn', 'torch'}, 'order of products': {'compress first'}, 'attention': {'torch'}}

    The first of ``names`` that can compute an operation does; where none can, a ``ValueError`` says why. ``"auto"`` and
    ``"torch"`` run everywhere; ``"torch"`` takes only what PyTorch documents. ``"onednn"`` runs on a CPU, outside
    compiled and traced graphs: linear maps and projections in float32 and bfloat16, attention in bfloat16.
    ``"flash"``, likewise on a CPU, joins the softmaxes of slots and window, and pools slots chosen by the input.
    ``"flex"`` computes a window beside slots on the devices that FlexAttention has kernels for. Operations that
    have no such implementation need another name after it: ``use_implementation("flex", "torch")``. Causal attention
    has one implementation, and nothing to choose. Orders and portions of the same products (``"compress first"``,
    ``"project first"``; ``"at once"``, ``"chunks"``) are chosen beside kernels: ``("compress first", "auto")``.
    The ``impl`` of a function, unless it is ``"auto"``, takes precedence.

    It holds in the thread that enters it. The gradient of a oneDNN product is one itself, wherever ``backward`` is
    called; only what is computed again there, as checkpointing does, is chosen anew.

    Yields:
        The names of the implementations that ran, by operation. What is compiled or traced is not listed.

    Raises:
        ValueError: for a name that no operation has, or none.
    """
    global _entered
    if not names:
        raise ValueError("use_implementation needs at least one name, such as 'auto' or 'torch'")
    for name in names:
        check_implementation(name)
    before, ran = _thread.uses, dict[str, set[str]]()
    with _lock:
        _entered += 1
    _thread.uses = (*before, (names, ran))
    try:
        yield ran
    finally:
        _thread.uses = before
        with _lock:
            _entered -= 1


def compute(operation: Operation, *call: Any, impl: Name = "auto") -> Any:
    """``operation`` of these arguments; raises ``ValueError`` where the implementation that was asked for cannot."""
    name = _choose(operation, call, impl)
    if _entered and not records_a_graph():
        for _, ran in _thread.uses:
            ran.setdefault(operation.name, set()).add(name)
    return operation.table[name].compute(*call)


def _choose(operation: Operation, call: tuple[Any, ...], impl: Name) -> Name:
    names: tuple[Name, ...] = (impl,)
    if _entered and impl == "auto" and _thread.uses:
        names, _ = _thread.uses[-1]
    reasons = []
    for name in names:
        if name == "auto":
            break
        way = operation.table.get(name)
        reason = "it has no such implementation" if way is None else way.why_not(*call)
        if reason is None:
            return name
        reasons.append(f"{name} cannot compute this {operation.name}: {reason}")
    else:
        if not operation.is_plan:
            remedy = ", ".join(repr(name) for name in (*names, "torch"))
            raise ValueError(f"{'; '.join(reasons)}; choose 'auto' or 'torch', or use_implementation({remedy})")
    for name, way in operation.table.items():  # noqa: B007
        if way.pays(*call) and way.why_not(*call) is None:
            break
    return name
