"""What every suite makes of the rows of a run that is not finished, or in which nothing could be measured."""

import pytest

from runner.suite import Grid, Measurement
from suites import SUITES
from suites.scaling import ScalingSuite
from torch_linformer.reporting.report import Report, render_html


@pytest.fixture(scope="module")
def all_rows(rows_of):
    """Of each suite, a microsecond a token."""
    return {name: rows_of(suite, lambda _, case: 1e-6 * case.length, Grid()) for name, suite in SUITES.items()}


@pytest.mark.parametrize("count", [0, 1, 2, 5, 12])
@pytest.mark.parametrize("name", SUITES)
def test_an_interrupted_run_has_a_summary_too(all_rows, name, count):
    summary = SUITES[name].summarize(all_rows[name][:count])
    render_html(Report(title="Title", sections=summary.sections, headlines=summary.headlines))
    if name == ScalingSuite.name and count < 5:
        assert summary.derived["attention_time_65536_over_4096"] is None


@pytest.mark.parametrize("name", SUITES)
def test_a_run_in_which_everything_failed_says_why(all_rows, name):
    failed = [Measurement(contender=row.contender, case=row.case, error="broken") for row in all_rows[name]]
    summary = SUITES[name].summarize(failed)
    assert (summary.headlines, summary.figures) == ([], {})
    assert any(
        f"{failed[-1].contender} at " in section.text and "broken." in section.text for section in summary.sections
    )
