from torch_linformer.opening.hub import card_of_source
from torch_linformer.reporting.report import (
    Headline,
    Report,
    Section,
    code_span,
    escape_markdown,
    markdown_table,
    render_markdown,
    render_template,
)

ODD = "a_b *c* [d](e)\n\n<script>`f` \x1b[2J_g_"
ESCAPED = r"a_b \*c\* \[d\](e) \<script\>\`f\` \\x1b\[2J_g\_"


def test_headings_show_any_name_as_it_is():
    assert escape_markdown(ODD) == ESCAPED and escape_markdown("my-posts_2024.csv") == "my-posts_2024.csv"
    assert render_markdown(Report(title=ODD)).splitlines()[0] == f"# {ESCAPED}"
    known = {**card_of_source(None), "length": "512", "version": "1", "scores": "", "warnings": []}
    card = render_template("reporting/template_files/model_card.md", title=ODD, **known)
    assert [line for line in card.splitlines() if "script" in line] == [f"# {ESCAPED}"]


def test_code_in_a_sentence_ends_where_it_should():
    assert code_span("linformer train --data x") == "`linformer train --data x`"
    assert code_span("--data 'a`b``c\n\n# d'") == "``` --data 'a`b``c # d' ```"


def test_a_whole_document():
    report = Report(
        title="A title",
        verdict="So it is.\nBut for one.",
        lead="Of a machine.",
        headlines=[Headline(name="times", value="2.0×", note="faster\nthan that"), Headline(name="rows", value=1000)],
        sections=[
            Section(heading="First", text="One.\n\nTwo.", columns=("", "ms"), rows=[("ours", 1.5), ("theirs", None)]),
            Section(heading="Second", figure="<svg/>", caption="What it shows."),
        ],
        settings={"--k": 1000},
        command="linformer train x",
        figures={"one": b""},
    )
    assert render_markdown(report) == (
        "# A title\n\n**So it is.**\n\n**But for one.**\n\n"
        "Of a machine.\n\n- times: **2.0×** (faster, than that)\n- rows: **1,000**\n\n"
        "## First\n\nOne.\n\nTwo.\n\n|  | ms |\n| --- | ---: |\n| ours | 1.5 |\n| theirs | – |\n\n"
        "## Second\n\nWhat it shows.\n\n"
        "## Settings\n\n|  |  |\n| --- | ---: |\n| --k | 1,000 |\n\n"
        "![one](one.png)\n\n## Command\n\n```sh\nlinformer train x\n```\n"
    )


def test_a_cell_stays_one_cell():
    assert markdown_table(("a", "b"), [("x | y", "two\nlines")]).splitlines()[-1] == "| x \\| y | two lines |"
