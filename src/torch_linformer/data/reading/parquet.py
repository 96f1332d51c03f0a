"""Rows of Parquet files: the size they would unfold to, and the names of classes that their columns number."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from datasets import ClassLabel, Features

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.formats import MOST_UNFOLDED, most_unfolded
from torch_linformer.data.reading.rows import BadRow, CellRow, ReadReport, Row, bad_cell, check_once
from torch_linformer.errors import InputError, first_line

if TYPE_CHECKING:
    from pyarrow.parquet import ParquetFile

_BATCH = 64  # rows in memory at once; a row may be a book
_COUNTED = 65_536  # rows whose lengths are counted at once
_NUMBER_BYTES = 8  # at most, of a value that is no text


def parquet_rows(path: Path, options: DataOptions, report: ReadReport) -> Iterator[Row | BadRow]:
    """The rows of a file, with the names of classes that `datasets` has written into it.

    One that unfolds to more than the memory and `MOST_UNFOLDED` times its size is refused.
    """
    import pyarrow
    from pyarrow.parquet import ParquetFile

    try:
        with ParquetFile(path) as table:
            _check_unfolded(path, table)
            check_once(path, table.schema_arrow.names)
            classes = ClassNames.of_schema(table.schema_arrow)
            if classes.columns:
                report.note(f"{path}: names of the classes of {', '.join(classes.columns)} from the file itself")
            batches = (batch.to_pylist() for batch in table.iter_batches(batch_size=_BATCH))
            for number, values in enumerate(chain.from_iterable(batches), start=1):
                where = f"{path}, row {number}"
                try:
                    yield classes.named(values, where)
                except InputError as problem:
                    yield BadRow(where, problem)
    except (pyarrow.ArrowException, UnicodeDecodeError) as error:
        raise InputError(f"{path}: not a readable Parquet file ({first_line(error)}); write it again") from None


def _check_unfolded(path: Path, table: "ParquetFile") -> None:
    from torch_linformer.reporting.tables import format_bytes, format_count

    most = most_unfolded(path)
    if _at_most(table.metadata) <= most:
        return
    if any(unfolded > most for unfolded in accumulate(_sizes(path, table.metadata))):
        raise InputError(
            f"{path}: its {format_count(table.metadata.num_rows)} rows unfold to more than {format_bytes(most)}, "
            f"from {format_bytes(path.stat().st_size)}: the memory of this machine and {MOST_UNFOLDED} times the "
            "file; take repeated rows out"
        )


def _chunks(metadata: Any) -> Iterator[Any]:
    """The chunks of all columns."""
    for group in range(metadata.num_row_groups):
        for column in range(metadata.num_columns):
            yield metadata.row_group(group).column(column)


def _at_most(metadata: Any) -> int:
    """An upper bound on the bytes of the rows, from the metadata: each value of a dictionary may be all of it."""
    return sum(
        _NUMBER_BYTES * chunk.num_values
        + chunk.total_uncompressed_size * (chunk.num_values if chunk.has_dictionary_page else 1)
        for chunk in _chunks(metadata)
    )


def _sizes(path: Path, metadata: Any) -> Iterator[int]:
    """Bytes of the values, a batch at a time; texts in a dictionary are counted without unfolding them."""
    import pyarrow.compute as compute
    from pyarrow.parquet import ParquetFile

    texts = {chunk.path_in_schema for chunk in _chunks(metadata) if chunk.physical_type == "BYTE_ARRAY"}
    yield sum(_NUMBER_BYTES * chunk.num_values for chunk in _chunks(metadata))
    with ParquetFile(path, read_dictionary=sorted(texts)) as table:
        for batch in table.iter_batches(batch_size=_COUNTED, columns=sorted(texts)):
            for values in _dictionaries(batch.to_struct_array()):
                lengths = compute.binary_length(values.dictionary)
                yield compute.sum(lengths.take(values.indices)).as_py() or 0


def _dictionaries(values: Any) -> Iterator[Any]:
    """The arrays with a dictionary in an array, however deep they lie in lists and objects."""
    import pyarrow

    if isinstance(values, pyarrow.DictionaryArray):
        yield values
    elif isinstance(values, pyarrow.StructArray):
        for part in values.flatten():
            yield from _dictionaries(part)
    elif hasattr(values, "flatten"):
        yield from _dictionaries(values.flatten())


@dataclass(frozen=True)
class ClassNames:
    """The classes of columns of class numbers, or of lists of them."""

    columns: dict[str, ClassLabel]

    @classmethod
    def of_features(cls, features: Mapping[str, Any]) -> Self:
        """Those of the columns of a data set."""
        kinds = {name: getattr(kind, "feature", kind) for name, kind in features.items()}
        return cls({name: kind for name, kind in kinds.items() if isinstance(kind, ClassLabel)})

    @classmethod
    def of_schema(cls, schema: Any) -> Self:
        """Those that `datasets` has written into the schema of a Parquet file."""
        if b"huggingface" not in (schema.metadata or {}):
            return cls({})
        return cls.of_features(Features.from_arrow_schema(schema))

    def named(self, values: dict[str, Any], where: str) -> Row:
        """A row with names in place of the numbers.

        Raises:
            InputError: a number is that of no class.
        """
        row = CellRow(values, where)
        names = {column: _name(classes, values[column], row, column) for column, classes in self.columns.items()}
        return row._replace(values={**values, **names})


def _name(classes: ClassLabel, number: Any, row: Row, column: str) -> Any:
    if isinstance(number, list):
        return [_name(classes, item, row, column) for item in number]
    if number is None or number < 0:  # -1 marks a missing label
        return None
    if number >= classes.num_classes:
        raise bad_cell(row, column, number, f", the number of no class; there are {classes.num_classes}, from 0 on")
    return classes.int2str(number)
