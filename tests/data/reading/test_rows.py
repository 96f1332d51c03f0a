import pytest

from torch_linformer.data.reading.rows import ReadReport, Row, TextRow
from torch_linformer.errors import InputError


def test_rows_of_tables_and_texts():
    row, text = Row({"text": "a"}, "t.csv, row 1"), TextRow({"text": "a"}, "t.txt")
    assert (row.of_table, text.of_table) == (True, False)
    assert type(text._replace(values={})) is TextRow
    assert (row.cell("text"), row.cell("label"), row.cell(None)) == ("a", None, None)


def test_a_bad_row_is_raised_unless_somebody_takes_it():
    problem, taken = InputError("t.csv, row 2: broken"), []
    report = ReadReport()
    with pytest.raises(InputError) as raised:
        report.leave_out("t.csv, row 2", problem)
    assert raised.value is problem and report.bad == 0
    report = ReadReport(on_bad=lambda *row: taken.append(row))
    report.leave_out("t.csv, row 2", problem)
    assert taken == [("t.csv, row 2", problem)] and report.bad == 1


def test_a_note_is_told_once():
    told = []
    report = ReadReport(on_note=told.append)
    for note in ("a", "b", "a"):
        report.note(note)
    assert told == report.notes == ["a", "b"]
