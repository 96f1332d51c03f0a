"""A report as one HTML file: no script, nothing from elsewhere, light and dark, on screen and on paper."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from torch_linformer.reporting.tables import format_cell, format_count, right_aligned

MAX_ROWS = 300  # of a table on the page; files made for machines hold the rest


@dataclass(frozen=True, kw_only=True)
class Headline:
    """One of the numbers at the head of a report.

    Attributes:
        name: what was measured, such as `"accuracy"`.
        value: the number, formatted by `format_cell` unless it is text already.
        note: what to compare it with, a line each, such as `"majority 31.2 %\\nTF-IDF 90.6 %"`.
    """

    name: str
    value: object
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class Section:
    """One section of a report, shown in this order: heading, text, table, figure, caption.

    Attributes:
        heading: its title.
        text: paragraphs, with an empty line between two.
        columns: headings of the table; without any there is no table.
        rows: cells of the table, formatted by `format_cell` unless they are text; the first names its row.
        figure: an `<svg>` element made by `torch_linformer.reporting.plots`.
        caption: a sentence under the figure.
    """

    heading: str
    text: str = ""
    columns: Sequence[str] = ()
    rows: Sequence[Sequence[object]] = ()
    figure: str = ""
    caption: str = ""


def render_report(
    title: str,
    sections: Sequence[Section],
    command: str,
    *,
    lead: str = "",
    headlines: Sequence[Headline] = (),
) -> str:
    """Return a whole HTML document. Every text is escaped; a figure alone is taken as it is.

    Args:
        title: heading of the page and name of its tab.
        sections: what follows the headlines, in order.
        command: the exact command that led here, shown at the end.
        lead: one or more paragraphs under the title.
        headlines: the few numbers that most readers come for.
    """
    body = [f"<header>\n<h1>{_escape(title)}</h1>", _paragraphs(lead), _headlines(headlines), "</header>"]
    body += [_section(section, f"section-{number}") for number, section in enumerate(sections, start=1)]
    body.append(f'<section>\n<h2>Command</h2>\n<pre tabindex="0">{_escape(command)}</pre>\n</section>')
    return _PAGE.format(title=_escape(title), style=STYLE, body="\n".join(filter(None, body)))


def _section(section: Section, anchor: str) -> str:
    parts = [
        f'<section aria-labelledby="{anchor}">\n<h2 id="{anchor}">{_escape(section.heading)}</h2>',
        _paragraphs(section.text),
        _table(section.columns, section.rows, anchor) if section.columns else "",
        _figure(section.figure, section.caption) if section.figure else "",
        "</section>",
    ]
    return "\n".join(filter(None, parts))


def _headlines(headlines: Sequence[Headline]) -> str:
    cards = [
        f"<div><dt>{_escape(headline.name)}</dt><dd>{_escape(format_cell(headline.value))}</dd>"
        + (f'<dd class="note">{_escape(headline.note)}</dd></div>' if headline.note else "</div>")
        for headline in headlines
    ]
    return '<dl class="headlines">\n' + "\n".join(cards) + "\n</dl>" if cards else ""


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]], anchor: str) -> str:
    """Table that scrolls by itself on a narrow screen; its first column names the rows."""
    cells = [[format_cell(value) for value in row] for row in rows[:MAX_ROWS]]
    classes = [' class="number"' if right else "" for right in right_aligned(columns, cells)]
    head = "".join(f'<th scope="col"{kind}>{_escape(text)}</th>' for text, kind in zip(columns, classes, strict=True))
    lines = [f'<div class="table" role="region" aria-labelledby="{anchor}" tabindex="0">']
    lines.append(f"<table>\n<thead><tr>{head}</tr></thead>\n<tbody>")
    for name, *values in cells:
        data = "".join(f"<td{kind}>{_escape(text)}</td>" for text, kind in zip(values, classes[1:], strict=True))
        lines.append(f'<tr><th scope="row">{_escape(name)}</th>{data}</tr>')
    lines.append("</tbody>\n</table>\n</div>")
    if len(rows) > MAX_ROWS:
        lines.append(f'<p class="note">The first {MAX_ROWS} of {format_count(len(rows))} rows.</p>')
    return "\n".join(lines)


def _figure(svg: str, caption: str) -> str:
    if not svg.startswith("<svg"):
        raise ValueError(f"figure must be an <svg> element as text, got {svg[:40]!r}")
    note = f"\n<figcaption>{_escape(caption)}</figcaption>" if caption else ""
    return f'<figure tabindex="0">\n{svg}{note}\n</figure>'


def _paragraphs(text: str) -> str:
    return "\n".join(f"<p>{_escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())


def _escape(text: str) -> str:
    """Text for HTML; what UTF-8 cannot hold (an odd file name) is spelt as an escape."""
    return escape(text.encode("utf-8", "backslashreplace").decode())


_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""

# The look of every page of the project.
STYLE = """
:root { color-scheme: light dark;
  --paper: #ffffff; --ink: #171a1e; --muted: #59616b; --rule: #dadee3; --wash: #f5f6f8; }
@media screen and (prefers-color-scheme: dark) { :root {
  --paper: #15181c; --ink: #e3e6ea; --muted: #a0a8b2; --rule: #343b43; --wash: #1e2228; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", Arial,
  sans-serif; }
main { max-width: 760px; margin: 0 auto; padding: 56px 20px 72px; }
h1 { margin: 0 0 12px; font-size: 30px; line-height: 1.2; font-weight: 650; letter-spacing: -0.012em; }
h2 { margin: 48px 0 12px; padding-top: 20px; border-top: 1px solid var(--rule);
  font-size: 19px; line-height: 1.3; font-weight: 650; }
p { margin: 0 0 12px; max-width: 66ch; }
header p { color: var(--muted); font-size: 17px; }
.headlines { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 28px 24px;
  margin: 32px 0 0; }
.headlines dt { color: var(--muted); font-size: 14px; }
.headlines dd { margin: 0; font-size: 28px; line-height: 1.25; font-weight: 600; letter-spacing: -0.01em;
  font-variant-numeric: tabular-nums; }
.headlines .note, .note, figcaption { color: var(--muted); font-size: 14px; line-height: 1.45;
  font-weight: 400; letter-spacing: 0; white-space: pre-line; }
.table { overflow-x: auto; margin: 16px 0; }
table { border-collapse: collapse; width: 100%; font-size: 15px; line-height: 1.4;
  font-variant-numeric: tabular-nums lining-nums; }
th, td { padding: 6px 20px 6px 0; text-align: left; vertical-align: baseline;
  border-bottom: 1px solid var(--rule); }
th:last-child, td:last-child { padding-right: 0; }
th { font-weight: 400; }
tbody tr:last-child > * { border-bottom: 0; }
thead th { color: var(--muted); font-size: 14px; white-space: nowrap; vertical-align: bottom; }
.number { text-align: right; white-space: nowrap; }
figure { margin: 20px 0 0; overflow-x: auto; }
svg { display: block; max-width: 100%; height: auto; }
@media screen and (max-width: 600px) { svg { max-width: none; } }
figcaption { margin-top: 8px; max-width: 66ch; }
pre { margin: 0; padding: 14px 16px; border-radius: 6px; background: var(--wash); white-space: pre-wrap;
  font: 14px/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
:focus-visible { outline: 2px solid #1a80bb; outline-offset: 2px; }
@media print { main { max-width: none; padding: 0; } figure, tr, pre, .headlines { break-inside: avoid; }
  h2 { break-after: avoid; } pre { border: 1px solid var(--rule); } .table, figure { overflow: visible; } }
"""
