import io

from rich.console import Console

from torch_linformer.reporting.report import Headline, Report, Section
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import printable

TITLE, SHOWN = "\x1b]0;mine\x07\x1b[2J\x9b1m\r", "\\x1b]0;mine\\x07\\x1b[2J\\x9b1m\\x0d"


def test_what_would_control_a_terminal_is_shown_as_escapes():
    assert printable(f"naïve\t{TITLE}\n") == f"naïve\t{SHOWN}\n"
    screen = Screen(Console(file=io.StringIO(), width=200))
    screen.say(TITLE)
    screen.table(TITLE, ("", TITLE), [(TITLE, 1)])
    screen.report(Report(title="", verdict=TITLE, sections=[Section(heading=TITLE, facts={TITLE: TITLE})]))
    shown = screen.console.file.getvalue()
    assert shown.count(SHOWN) == 8 and not {"\x1b", "\x07", "\x9b", "\r"} & set(shown)


def test_a_report_in_brief():
    screen = Screen(Console(file=io.StringIO(), width=100))
    screen.report(
        Report(
            title="A title",
            verdict="[b]Fast.",
            headlines=[Headline(name="headline", value=1)],
            sections=[
                Section(heading="Times", text="How.", columns=("", "ms"), rows=[("ours", 1500)]),
                Section(heading="Facts", facts={"documents": 2500}),
                Section(heading="Details", columns=("", "ms"), rows=[("theirs", 1)], detail=True),
                Section(heading="Figure", figure="<svg/>", caption="What it shows."),
            ],
            settings={"--k": 7},
        )
    )
    words = [word for word in screen.console.file.getvalue().split() if "─" not in word]
    assert words == ["Times", "ms", "ours", "1,500", "Facts", "documents", "2,500", "[b]Fast."]
