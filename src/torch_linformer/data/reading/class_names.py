"""The names of classes that a data set of `datasets` brings along for columns of their numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from datasets import ClassLabel, Features

from torch_linformer.data.reading.cells import bad_cell
from torch_linformer.data.reading.rows import CellRow, Row


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
