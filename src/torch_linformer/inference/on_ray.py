"""A predictor in the workers of Ray Data, on this machine or on many."""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.data.reading.streamed import Document
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import BATCHES_AHEAD, Answer
from torch_linformer.inference.input_documents import InputDocuments
from torch_linformer.inference.output_parts import Gap
from torch_linformer.inference.predictor import Columns, Predictor
from torch_linformer.opening.devices import resolve_device

BLOCK_BYTES = 2**20  # of texts in what a worker is given at once, and does again where one is killed


def on_ray(
    predictor: Predictor,
    documents: InputDocuments,
    report: ReadReport,
    max_errors: int,
    gaps: Sequence[Gap],
    workers: int,
    address: str | None,
) -> Iterator[list[Answer]]:
    """The answers to documents, in their order, of a block of Ray at a time.

    One task reads, ``workers`` actors have a model each, and what one that dies was given is given to its successor.
    The report, which takes ``max_errors`` bad records, is brought up to date at the end.

    Raises:
        InputError: Ray is not installed, or has too few processors.
    """
    with _ray(address, workers) as ray:
        noticed = ray.remote(num_cpus=0)(_Noticed).remote()
        reading = _Reading(documents, gaps, max_errors, lambda state: ray.get(noticed.set.remote(state)))
        everything = ray.data.from_items([{"all": 0}])
        everything.context.enable_progress_bars = False
        everything.context.execution_options.preserve_order = True
        everything.context.target_max_block_size = BLOCK_BYTES
        data = everything.map_batches(reading, num_cpus=0).map_batches(
            Predictor,
            fn_constructor_args=(predictor.folder,),
            fn_constructor_kwargs=predictor.options,
            compute=ray.data.ActorPoolStrategy(size=workers),
            batch_size=predictor.batch_size * BATCHES_AHEAD,
            num_cpus=1,
            num_gpus=1 if resolve_device(predictor.device) == "cuda" else None,
        )
        for table in data.iter_batches(batch_size=None, batch_format="pyarrow"):
            yield table.to_pylist()
        report.replaced, report.empty, notes, problems, end = ray.get(noticed.get.remote())
        for note in notes:
            report.note(note)
        for where, problem in problems:
            report.leave_out(where, InputError(problem))
        if end is not None:
            raise InputError(end)


def columns_of(group: Sequence[Document]) -> Columns:
    """A group as columns, which Ray hands on: of its fields those that its documents have; words in place of a text."""
    columns: Columns = {
        "document": [document.where for document in group],
        "text": [document.text if document.words is None else list(document.words) for document in group],
        "id": [document.id for document in group],
        "question": [document.question for document in group],
    }
    return {name: values for name, values in columns.items() if values[0] is not None}


class _Enough(Exception):
    """More bad records than are taken."""


class _Reading:
    """A function for one task, which reads everything, or up to one bad record too many."""

    def __init__(
        self, documents: InputDocuments, gaps: Sequence[Gap], max_errors: int, notice: Callable[[Any], object]
    ) -> None:
        self.documents, self.gaps, self.max_errors, self.notice = documents, gaps, max_errors, notice

    def __call__(self, batch: Columns) -> Iterator[Columns]:
        problems: list[tuple[str, str]] = []

        def keep(where: str, problem: InputError) -> None:
            problems.append((where, str(problem)))
            if len(problems) > self.max_errors:
                raise _Enough

        report, end = ReadReport(on_bad=keep), None
        try:
            yield from map(columns_of, self.documents.groups(report, self.gaps))
        except _Enough:
            pass
        except InputError as problem:  # told, as Ray would put its own sentences around it
            end = str(problem)
        self.notice((report.replaced, report.empty, report.notes, problems, end))


class _Noticed:
    """What the task has noticed; one that is done again says it again."""

    def __init__(self) -> None:
        self.state: Any = None

    def set(self, state: Any) -> None:
        self.state = state

    def get(self) -> Any:
        return self.state


@contextmanager
def _ray(address: str | None, workers: int) -> Iterator[Any]:
    """Ray, connected; what was connected before stays so."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere
    try:
        import ray
        import ray.data
    except ImportError:
        raise InputError('--engine ray needs ray: pip install "torch-linformer[ray]"') from None
    connects = not ray.is_initialized()
    if connects:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        here: dict[str, Any] = {"num_cpus": torch.get_num_threads(), "include_dashboard": False}
        try:
            ray.init(address or "local", **quiet, **({} if address else here))
        except (ConnectionError, ValueError) as error:
            raise InputError(f"--ray-address {address}: no cluster of Ray answers there ({error})") from None
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    try:
        processors = int(ray.cluster_resources().get("CPU", 0))
        if workers > processors:
            raise InputError(f"--workers {workers}: Ray has {processors} processors; take as many at most")
        yield ray
    finally:
        if connects:
            ray.shutdown()
