"""The package's templates of jinja2, by their path within the package."""

from functools import cache
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from torch_linformer.reporting.markdown import code_span, escape_markdown
from torch_linformer.reporting.tables import format_cell, format_table


def render_template(path: str, **context: Any) -> str:
    """Return a template as text; in HTML every text of the context is escaped."""
    text = _environment().get_template(path).render(**context)
    return text.encode("utf-8", "backslashreplace").decode()  # what UTF-8 cannot hold (an odd file name) is an escape


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("torch_linformer", ""),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["cell"] = format_cell
    environment.filters["markdown"] = escape_markdown
    environment.filters["code"] = code_span
    environment.globals["format_table"] = format_table
    return environment
