"""Every operation with more than one way to compute it: its implementations, what each needs, and which one runs.

``torch`` is PyTorch's own public function. PyTorch multiplies float32 matrices through MKL, which takes its AVX2
kernels on processors that are not Intel's; ``onednn``, in the same wheel, takes AVX-512 wherever it is, and is twice as
fast on a Zen 5 (docs/performance.md). The same holds in bfloat16 for the gradients of a linear map and for softmax
attention. ``flash`` is the operator below SDPA on a CPU, which has no public name: it alone gives the sums by which two
softmaxes are joined. Results differ only in rounding.

``auto`` takes on a CPU what was measured to be fastest there. On other devices it takes PyTorch's own functions. What
nobody has measured is listed as "unmeasured", and ``auto`` takes it only where there is nothing else.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from torch_linformer.functional.pytorch import records_a_graph

Name = Literal[
    "auto", "torch", "onednn", "flash", "flex", "rows", "compress first", "project first", "at once", "chunks"
]
UNMEASURED = "unmeasured"


class Implementation(NamedTuple):
    """One way to compute an operation.

    Attributes:
        name: what :func:`use_implementation` calls it.
        needs: in words.
        why_not: the reason why it cannot compute a call, or None where it can; the call's own arguments.
        pays: whether ``auto`` takes it, where it can compute the call.
        is_public: it calls nothing but what PyTorch documents.
        measured: where its speed was measured.
    """

    name: Name
    needs: str = "nothing"
    why_not: Callable[..., str | None] = lambda *call: None
    pays: Callable[..., bool] = lambda *call: True
    is_public: bool = True
    measured: str = "docs/performance.md"


class Operation(NamedTuple):
    """Something to compute, and how.

    Attributes:
        name: in messages, and in what :func:`use_implementation` lists.
        implementations: in the order in which ``auto`` tries them; the last one can compute every call.
        is_plan: its implementations are orders and portions of the same products; a choice of kernels is none of it.
    """

    name: str
    implementations: tuple[Implementation, ...]
    is_plan: bool = False


_operations: list[Operation] = []


def register(operation: Operation) -> Operation:
    """Let :func:`implementations` list it."""
    _operations.append(operation)
    return operation


def implementations() -> list[tuple[str, str, str, str]]:
    """Operation, implementation, what it needs, and where it was measured; in the order in which ``auto`` tries them.

    An implementation that calls operators without a public name says so in its needs.
    """
    return [
        (operation.name, way.name, way.needs if way.is_public else f"{way.needs}; private to PyTorch", way.measured)
        for operation in _operations
        for way in operation.implementations
    ]


class _Thread(threading.local):
    """The choice of :func:`use_implementation` in this thread, and where it records what ran."""

    preferred: tuple[Name, ...] = ("auto",)
    records: tuple[dict[str, set[str]], ...] = ()


_thread = _Thread()
_lock = threading.Lock()
_entered = 0  # calls of use_implementation in all threads that have not ended: compiled graphs are guarded on it


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
    ``"flash"``, likewise on a CPU, joins the softmaxes of slots and window in inference, and pools slots chosen by the
    input. ``"flex"`` computes a window beside slots on the devices that FlexAttention has kernels for. Operations that
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
        raise ValueError(f"use_implementation needs at least one of {', '.join(_known_names())}")
    for name in names:
        check_implementation(name)
    before, ran = (_thread.preferred, _thread.records), dict[str, set[str]]()
    with _lock:
        _entered += 1
    _thread.preferred, _thread.records = names, (*_thread.records, ran)
    try:
        yield ran
    finally:
        _thread.preferred, _thread.records = before
        with _lock:
            _entered -= 1


def check_implementation(name: str, operation: Operation | None = None) -> None:
    """Raise ``ValueError`` for a name that no operation, or not this one, has."""
    names = _known_names(operation)
    if name not in names:
        raise ValueError(f"impl must be one of {', '.join(names)}, got {name!r}")


def choose(operation: Operation, *call: Any, impl: Name = "auto") -> Name:
    """The implementation that computes ``operation`` for a call with these arguments.

    Raises:
        ValueError: where the one that was asked for cannot.
    """
    if impl == "auto" and not _entered:
        return _automatic(operation, *call)
    preferred = _thread.preferred if _entered and impl == "auto" else (impl,)
    reasons: list[str] = []
    for name in preferred:
        chosen = _automatic(operation, *call) if name == "auto" else _named(operation, name, reasons, *call)
        if chosen is not None:
            break
    else:
        if not operation.is_plan:
            names = ", ".join(repr(name) for name in (*preferred, "torch"))
            raise ValueError(f"{'; '.join(reasons)}; choose 'auto' or 'torch', or use_implementation({names})")
        chosen = _automatic(operation, *call)
    if _entered and not records_a_graph():
        for ran in _thread.records:
            ran.setdefault(operation.name, set()).add(chosen)
    return chosen


def _automatic(operation: Operation, *call: Any, only_public: bool = False) -> Name:
    """The first implementation that pays and can; the last one in any case."""
    for way in operation.implementations[:-1]:
        if (way.is_public or not only_public) and way.pays(*call) and way.why_not(*call) is None:
            return way.name
    return operation.implementations[-1].name


def _named(operation: Operation, name: Name, reasons: list[str], *call: Any) -> Name | None:
    """The implementation that ``name`` asks for; None where it cannot, and the reason."""
    for way in operation.implementations:
        if way.name == name:
            reason = way.why_not(*call)
            if reason is None:
                return name
            reasons.append(f"{name} cannot compute this {operation.name}: {reason}")
            return None
    if name == "torch":
        return _automatic(operation, *call, only_public=True)
    reasons.append(f"{name} cannot compute this {operation.name}: it has no such implementation")
    return None


def _known_names(operation: Operation | None = None) -> list[str]:
    operations = _operations if operation is None else [operation]
    names = [way.name for listed in operations for way in listed.implementations]
    return list(dict.fromkeys(["auto", "torch", *names]))
