"""A report as one Markdown file: what ``html.render_report`` shows, for where pages are read as text."""

from collections.abc import Mapping, Sequence

from torch_linformer.reporting.html import Headline, Section
from torch_linformer.reporting.tables import format_cell, right_aligned


def render_markdown(
    title: str,
    sections: Sequence[Section],
    command: str,
    *,
    lead: str = "",
    headlines: Sequence[Headline] = (),
    figures: Mapping[str, str] | None = None,
) -> str:
    """Return a whole Markdown document; the inline figures of the sections are left out.

    Args:
        title: heading of the document.
        sections: what follows the headlines, in order.
        command: the exact command that led here, shown at the end.
        lead: one or more paragraphs under the title.
        headlines: the few numbers that most readers come for.
        figures: what is shown after the sections: a figure's name and its file.
    """
    parts = [f"# {title}", lead, "\n".join(map(_headline, headlines))]
    for section in sections:
        table = markdown_table(section.columns, section.rows) if section.columns else ""
        parts += [f"## {section.heading}", section.text, table, section.caption]
    parts += [f"![{name}]({file})" for name, file in (figures or {}).items()]
    parts += ["## Command", f"```sh\n{command}\n```"]
    return "\n\n".join(filter(None, (part.strip() for part in parts))) + "\n"


def markdown_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Table of cells formatted by `format_cell`, numbers to the right."""
    cells = [[format_cell(value) for value in row] for row in rows]
    rules = ["---:" if right else "---" for right in right_aligned(columns, cells)]
    return "\n".join(_line(row) for row in (columns, rules, *cells))


def _line(cells: Sequence[str]) -> str:
    texts = (" ".join(cell.split()).replace("|", "\\|") for cell in cells)
    return f"| {' | '.join(texts)} |"


def _headline(headline: Headline) -> str:
    note = f" ({', '.join(headline.note.splitlines())})" if headline.note else ""
    return f"- {headline.name}: **{format_cell(headline.value)}**{note}"
