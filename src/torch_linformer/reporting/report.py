"""One report for every command, which a terminal, a Markdown file and a page each show in their own way."""

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field


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

    def __post_init__(self) -> None:
        if self.figure and not self.figure.startswith("<svg"):
            raise ValueError(f"figure must be an <svg> element as text, got {self.figure[:40]!r}")


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
        figures: PNG files beside the report, by name without suffix, which Markdown shows.
    """

    title: str
    verdict: str = ""
    lead: str = ""
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    machine: Mapping[str, object] = field(default_factory=dict)
    command: str = ""
    figures: Mapping[str, bytes] = field(default_factory=dict)

    @property
    def all_sections(self) -> list[Section]:
        """The sections, and after them the circumstances."""
        circumstances = {"Settings": self.settings, "Machine and versions": self.machine}
        return [
            *self.sections,
            *(Section(heading=name, facts=facts, detail=True) for name, facts in circumstances.items() if facts),
        ]
