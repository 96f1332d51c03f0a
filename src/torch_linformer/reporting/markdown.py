"""A report as one Markdown file, for where pages are read as text."""

import re
from collections.abc import Sequence

from torch_linformer.reporting.report import Headline, Report
from torch_linformer.reporting.screen import printable
from torch_linformer.reporting.tables import format_cell, format_table

_MARKS = re.compile(r"[\\`*\[\]<>&#|~$!]|(?<![^\W_])_|_(?![^\W_])")  # an underscore within a word marks nothing


def render_markdown(report: Report) -> str:
    """Return a whole Markdown document; figures are links to their PNG files, after the sections."""
    verdict = [f"**{paragraph}**" for paragraph in report.verdict.splitlines() if paragraph]
    parts = [f"# {escape_markdown(report.title)}", *verdict, report.lead, "\n".join(map(_headline, report.headlines))]
    for section in report.all_sections:
        facts = markdown_table(("", ""), list(section.facts.items())) if section.facts else ""
        table = markdown_table(section.columns, section.rows) if section.columns else ""
        parts += [f"## {section.heading}", section.text, facts, table, section.caption]
    parts += [f"![{name}]({name}.png)" for name in report.figures]
    parts += ["## Command", f"```sh\n{report.command}\n```"]
    return "\n\n".join(filter(None, (part.strip() for part in parts))) + "\n"


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
    return "\n".join(_line(row) for row in (columns, rules, *table.rows))


def _line(cells: Sequence[str]) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _headline(headline: Headline) -> str:
    note = f" ({', '.join(headline.note.splitlines())})" if headline.note else ""
    return f"- {headline.name}: **{format_cell(headline.value)}**{note}"
