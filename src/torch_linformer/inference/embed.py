"""A vector for each document, streamed into a file: an input of any size will do, and an interruption costs little."""

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
from numpy.lib import format as npy
from pyarrow import parquet

from torch_linformer.data.reading.streamed import given_files
from torch_linformer.errors import InputError
from torch_linformer.inference.engine import Engine, GivenDocuments, Row
from torch_linformer.inference.output_parts import is_folder_of_parts
from torch_linformer.inference.over_files import AnswersOfFiles, FilesSettings, PartFormat
from torch_linformer.inference.predictor import Predictor
from torch_linformer.opening.devices import resolve_device, resolve_precision
from torch_linformer.reporting.files import atomic_path

SUFFIXES = (".parquet", ".npy")


@dataclasses.dataclass(frozen=True, kw_only=True)
class EmbedSettings(FilesSettings):
    """What makes the vectors."""

    normalize: bool = True
    prompt_name: str | None = None


def embed_files(
    settings: EmbedSettings,
    output: Path,
    *,
    resume: bool = False,
    max_errors: int = 0,
    device: str = "auto",
    batch_size: int = 16,
    engine: Engine | None = None,
    compile: bool = False,
    on_document: Callable[[int], object] = lambda number: None,
    say: Callable[[str], object] = lambda sentence: None,
) -> str:
    """Write the vectors of all documents of some files ("-" is standard input), in their order.

    A Parquet file has the columns ``document`` (its place), ``id`` (what its row calls it), ``embedding``, ``tokens``
    and ``cut``; a file of NumPy has the vectors as one array ``(documents, C)`` in float32. The vector of a row without
    text is NaN, so that rows stay in their places. Vectors of a file lie in parts in a hidden folder beside it
    until all are there, so that an interrupted run can go on. In a folder they stay in parts, files of Parquet beside a
    manifest.

    Args:
        settings: the model and the files, folders and patterns of names.
        output: a name that ends with .parquet or .npy, or a folder: one that is there, or a new name without a suffix.
        resume: go on with an interrupted run; documents whose vectors are there are read and not computed again.
        max_errors: so many records that cannot be read are left out, and written to ``OUTPUT.errors.jsonl``, or to
            ``_errors.jsonl`` in the folder.
        device: ``auto`` takes a GPU if there is one.
        batch_size: windows computed at once.
        engine: where it computes; in this process if None.
        compile: whether torch.compile makes the kernels; in this process only.
        on_document: called with how many documents have their vectors.
        say: called with what the user should know before the first document.

    Returns:
        A sentence: how many documents there were, and how many of them were cut, skipped or damaged.

    Raises:
        InputError: another suffix, a missing file, no text, an engine that is not there, or an interrupted run that is
            not to be gone on with, or that is another.
    """
    if output.suffix not in SUFFIXES and not is_folder_of_parts(output):
        raise InputError(f"--output {output}: the name must end with {' or '.join(SUFFIXES)}, or have no suffix")
    if max_errors and output.suffix == ".npy":
        raise InputError(f"--max-errors leaves rows out, and those of {output} have no names: write a .parquet file")
    precision = resolve_precision(settings.precision, resolve_device(device))
    settings = dataclasses.replace(settings, files=given_files(settings.files), precision=precision)
    engine = engine or Engine()
    engine.check(settings.files, device, compile)
    predictor = Predictor(
        settings.model,
        vectors=True,
        overflow=settings.overflow,
        stride=settings.stride,
        normalize=settings.normalize,
        keep_empty=True,
        prompt_name=settings.prompt_name,
        device=device,
        precision=settings.precision,
        batch_size=batch_size,
        compile=compile,
    )
    if predictor.notice:
        say(predictor.notice)
    run = AnswersOfFiles(
        settings=settings,
        predictor=predictor,
        given=GivenDocuments(settings.files, predictor.record, settings.reading, None, batch_size, keep_empty=True),
        engine=engine,
        format=PartFormat(".parquet", _write, _join, "embedded", "without text, whose vectors are NaN"),
    )
    return run.write(output, resume=resume, max_errors=max_errors, on_document=on_document, say=say)


def _write(rows: Sequence[Row], path: Path) -> None:
    vectors = np.stack([row["embedding"] for row in rows])
    lists = pyarrow.FixedSizeListArray.from_arrays(pyarrow.array(vectors.ravel()), vectors.shape[1])
    columns: dict[str, Any] = {
        "document": [row["document"].encode("utf-8", "backslashreplace").decode() for row in rows],
        "id": pyarrow.array([row.get("id") for row in rows], pyarrow.string()),
        "embedding": lists,
        "tokens": [row["tokens"] for row in rows],
        "cut": [row["cut"] for row in rows],
    }
    parquet.write_table(pyarrow.table(columns), path)


def _join(parts: Sequence[Path], output: Path) -> None:
    """Make the parts one file."""
    schema = parquet.read_schema(parts[0])
    rows = sum(parquet.read_metadata(part).num_rows for part in parts)
    with atomic_path(output) as temporary, temporary.open("wb") as file:
        writer = parquet.ParquetWriter(file, schema) if output.suffix == ".parquet" else None
        if writer is None:
            shape = (rows, schema.field("embedding").type.list_size)
            npy.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        for part in parts:
            table = parquet.read_table(part)
            if writer is not None:
                writer.write_table(table)
            else:
                file.write(table["embedding"].combine_chunks().flatten().to_numpy().astype("<f4").tobytes())
        if writer is not None:
            writer.close()
