"""Names and texts of reports as titles, in Markdown and on a terminal."""

import io

import pytest
from rich.console import Console

from torch_linformer.opening.hub import card_of_source
from torch_linformer.reporting.report import (
    Headline,
    Report,
    Section,
    code_span,
    escape_markdown,
    markdown_table,
    name_in_title,
    render_template,
)
from torch_linformer.reporting.screen import Screen
from torch_linformer.reporting.tables import printable

ODD = "a_b *c* [d](e)\n\n<script>`f` \x1b[2J_g_"
ESCAPED = r"a_b \*c\* \[d\](e) \<script\>\`f\` \\x1b\[2J_g\_"


def test_headings_show_any_name_as_it_is():
    assert escape_markdown(ODD) == ESCAPED and escape_markdown("my-posts_2024.csv") == "my-posts_2024.csv"
    known = {**card_of_source(None), "length": "512", "version": "1", "scores": "", "warnings": []}
    card = render_template("reporting/template_files/model_card.md", title=ODD, **known)
    assert [line for line in card.splitlines() if "script" in line] == [f"# {ESCAPED}"]


def test_code_in_a_sentence_ends_where_it_should():
    assert code_span("linformer train --data x") == "`linformer train --data x`"
    assert code_span("--data 'a`b``c\n\n# d'") == "``` --data 'a`b``c # d' ```"


def test_a_cell_stays_one_cell():
    table = (("a", "n"), [("ours", 1.5), ("theirs", None)])
    assert markdown_table(*table) == "| a | n |\n| --- | ---: |\n| ours | 1.5 |\n| theirs | – |"
    assert markdown_table(("a", "b"), [("x | y", "two\nlines")]).splitlines()[-1] == "| x \\| y | two lines |"


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("posts.csv", "posts"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("minilm/model", "minilm"),
        ("runs/posts/checkpoint-500", "posts"),
        (f"models--org--name/snapshots/{'0a' * 20}", "models--org--name"),
    ],
)
def test_a_title_has_no_path(source, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if path.suffix == ".csv" else path.mkdir()
    assert name_in_title(source) == name_in_title(str(path)) == name
    for other in ("stdlib", "org/data:en"):
        assert name_in_title(other) == other


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
