"""One report for every command, which a terminal and a page each show in their own way; templates, and model cards."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from torch_linformer.reporting.tables import format_cell, format_table, printable

_TELLS_NOTHING = re.compile(r"model|snapshots|checkpoint-\d+|[0-9a-f]{40}")
_MARKS = re.compile(r"[\\`*\[\]<>&#|~$!]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word marks nothing
MAX_ROWS = 300  # of a table on the page; files made for machines hold the rest
POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def name_in_title(source: str) -> str:
    """The name of a file or folder, without its path; what is neither, such as a name on the hub, is its own name.

    A folder whose name tells nothing, such as ``model`` or ``checkpoint-500``, goes by the name of the one it lies in.
    """
    path = Path(source)
    if not path.exists():
        return source
    path = path.resolve()
    if path.is_file():
        return path.stem
    return next((part for part in reversed(path.parts[1:]) if not _TELLS_NOTHING.fullmatch(part)), path.name)


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


@dataclass(frozen=True)
class Headline:
    """One of the numbers at the head of a report: what was measured, how much, and lines of what to compare it with."""

    name: str
    value: object
    note: str = ""


@dataclass(frozen=True)
class Section:
    """One section of a report, shown in this order.

    Attributes:
        heading: its title.
        text: paragraphs, with an empty line between two; a terminal leaves them out.
        facts: names and values.
        columns: headings of the table; without any there is no table.
        rows: cells of the table; the first names its row.
        figure: an `<svg>` element, such as those of `torch_linformer.reporting.plots`; only a page shows it.
        caption: a sentence under the figure.
        detail: whether a terminal leaves the whole section out.
    """

    heading: str
    _: KW_ONLY
    text: str = ""
    facts: Mapping[str, object] = field(default_factory=dict)
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figure: str = ""
    caption: str = ""
    detail: bool = False


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a command found, and how. Every value is formatted by `format_cell`, unless it is text already.

    Attributes:
        verdict: what follows from all of it, and what makes that doubtful: a paragraph each, before anything else.
        lead: one or more paragraphs under the title.
        headlines: the few numbers that most readers come for.
        settings: the options of the command.
        machine: the machine, and the versions of what ran.
        command: the exact command that led here.
    """

    title: str
    verdict: str = ""
    lead: str = ""
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    machine: Mapping[str, object] = field(default_factory=dict)
    command: str = ""

    @property
    def all_sections(self) -> list[Section]:
        """The sections, and after them the circumstances."""
        circumstances = {"Settings": self.settings, "Machine and versions": self.machine}
        return [
            *self.sections,
            *(Section(heading=name, facts=facts, detail=True) for name, facts in circumstances.items() if facts),
        ]


def escape_markdown(text: str) -> str:
    """Text on one line that Markdown shows as it is, whatever it holds: a file may have any name."""
    return _MARKS.sub(r"\\\g<0>", printable(" ".join(text.split())))


def code_span(text: str) -> str:
    """Text on one line as code within a sentence, whatever it holds."""
    text = printable(" ".join(text.split()))
    fence = "`" * (1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence} {text} {fence}" if "`" in text else f"`{text}`"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Table of cells formatted by `format_cell`, numbers to the right."""
    table = format_table(columns, rows)
    rules = ["---:" if right else "---" for right in table.right]
    lines = ([" ".join(cell.split()).replace("|", "\\|") for cell in row] for row in (columns, rules, *table.rows))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


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
