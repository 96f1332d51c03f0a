import pyarrow
import pytest
from datasets import ClassLabel, Features, Sequence, Value

from torch_linformer.data.reading.parquet import ClassNames
from torch_linformer.errors import InputError

FEATURES = Features(
    {"text": Value("string"), "label": ClassLabel(names=["neg", "pos"]), "tags": Sequence(ClassLabel(names=["O", "B"]))}
)
VALUES = {"text": "a", "label": 1, "tags": [0, 1]}


def test_numbers_become_the_names_of_their_classes():
    names = ClassNames.of_features(FEATURES)
    assert names.named(VALUES, "t, row 1") == ({"text": "a", "label": "pos", "tags": ["O", "B"]}, "t, row 1")
    assert names.named({**VALUES, "label": None, "tags": None}, "").values == {"text": "a", "label": None, "tags": None}
    assert names.named({**VALUES, "label": -1}, "").values["label"] is None  # how data sets mark a missing label


def test_a_number_of_no_class_is_refused():
    with pytest.raises(InputError) as raised:
        ClassNames.of_features(FEATURES).named({**VALUES, "tags": [0, 2]}, "t, row 9")
    assert str(raised.value) == "t, row 9: column 'tags' holds 2, the number of no class; there are 2, from 0 on"


def test_names_lie_in_the_schema_of_a_file():
    assert ClassNames.of_schema(FEATURES.arrow_schema).columns.keys() == {"label", "tags"}
    plain = pyarrow.schema({"text": pyarrow.string(), "label": pyarrow.int64()})
    assert ClassNames.of_schema(plain).columns == {}
    assert ClassNames.of_schema(plain.with_metadata({"pandas": "{}"})).columns == {}
