import dataclasses
from types import SimpleNamespace

import pytest

from torch_linformer.data.reading.data_options import DELIMITERS, HELP, NO_OPTIONS, DataOptions
from torch_linformer.errors import InputError


@pytest.mark.parametrize("encoding", ["klingon", "hex", "rot13"])
def test_an_encoding_that_is_none_of_text(encoding):
    with pytest.raises(InputError, match=rf"^--encoding {encoding}: there is no such encoding; try utf-8 or cp1252$"):
        DataOptions(encoding=encoding)


@pytest.mark.parametrize("encoding", [None, "utf-8", "UTF8", "utf-16-le", "cp1252", "latin1"])
def test_encodings_of_text(encoding):
    assert DataOptions(encoding=encoding).encoding == encoding


@pytest.mark.parametrize(("named", "mark"), [*DELIMITERS.items(), ("~", "~"), ("\t", "\t"), (None, None)])
def test_a_delimiter_is_a_word_or_a_character(named, mark):
    assert DataOptions(delimiter=named).separator == mark


@pytest.mark.parametrize("delimiter", ["", "::", "dash"])
def test_what_is_no_delimiter(delimiter):
    message = f"--delimiter must be one character or comma, tab, semicolon, bar, none, got {delimiter!r}"
    with pytest.raises(InputError) as raised:
        DataOptions(delimiter=delimiter)
    assert str(raised.value) == message


def test_what_is_no_quoting():
    with pytest.raises(InputError, match=r"^--quoting must be one of auto, quotes, none, got 'some'$"):
        DataOptions(quoting="some")


def test_options_are_those_of_the_settings_that_have_them():
    settings = SimpleNamespace(text_column="body", delimiter="tab", seed=3)
    assert DataOptions.of(settings) == DataOptions(text_column="body", delimiter="tab")
    assert DataOptions.of(SimpleNamespace()) == NO_OPTIONS


def test_columns_by_what_they_hold():
    options = DataOptions(text_column="body", query_column="asked")
    assert [options.column(what) for what in ("text", "query", "label")] == ["body", "asked", None]


def test_each_option_of_the_help_is_one():
    assert HELP.keys() <= {field.name for field in dataclasses.fields(DataOptions)}
