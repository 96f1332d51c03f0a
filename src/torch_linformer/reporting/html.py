"""A report as one HTML file: no script, nothing from elsewhere, light and dark, on screen and on paper."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from torch_linformer.reporting.report import Report
from torch_linformer.reporting.tables import format_cell, format_table

MAX_ROWS = 300  # of a table on the page; files made for machines hold the rest
POLICY = "default-src 'none'; style-src 'unsafe-inline'"  # no script, and nothing from anywhere


def render_html(
    report: Report, template: str = "reporting/templates/report.html", policy: str = POLICY, **context: Any
) -> str:
    """Return a whole HTML document. Every text is escaped; only figures are taken as they are.

    Args:
        report: what is shown.
        template: path within the package; it extends `reporting/templates/page.html`.
        policy: Content-Security-Policy of the page.
        context: what else the template asks for.
    """
    page = _environment().get_template(template).render(report=report, policy=policy, **context)
    return page.encode("utf-8", "backslashreplace").decode()  # what UTF-8 cannot hold (an odd file name) is an escape


@cache
def _environment() -> Environment:
    loader = PackageLoader("torch_linformer", "")
    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "undefined": StrictUndefined}
    environment = Environment(loader=loader, autoescape=True, **options)
    environment.filters["cell"] = format_cell
    environment.globals |= {"format_table": format_table, "max_rows": MAX_ROWS}
    return environment
