"""A report as one HTML file: no script, nothing from elsewhere, light and dark, on screen and on paper."""

from typing import Any

from torch_linformer.reporting.report import Report
from torch_linformer.reporting.templates import render_template

MAX_ROWS = 300  # of a table on the page; files made for machines hold the rest
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def render_html(
    report: Report, template: str = "reporting/template_files/report.html", policy: str = POLICY, **context: Any
) -> str:
    """Return a whole HTML document. Every text is escaped; only figures are taken as they are.

    Args:
        report: what is shown.
        template: path within the package; it extends `reporting/template_files/page.html`.
        policy: Content-Security-Policy of the page.
        context: what else the template uses.
    """
    return render_template(template, report=report, policy=policy, max_rows=MAX_ROWS, **context)
