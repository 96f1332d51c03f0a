"""The names of classes that a data set of `datasets` brings along for columns of their numbers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from datasets import ClassLabel, Features


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

    def named(self, values: dict[str, Any]) -> dict[str, Any]:
        """A row with names in place of the numbers."""
        return {**values, **{name: _name(kind, values[name]) for name, kind in self.columns.items()}}


def _name(classes: ClassLabel, number: Any) -> Any:
    if isinstance(number, list):
        return [_name(classes, item) for item in number]
    return None if number is None or number < 0 else classes.int2str(number)  # -1 marks a missing label
