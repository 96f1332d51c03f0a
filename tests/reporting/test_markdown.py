from torch_linformer.reporting.markdown import markdown_table, render_markdown
from torch_linformer.reporting.report import Headline, Report, Section


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
        command="linformer bench x",
        figures={"one": b""},
    )
    assert render_markdown(report) == (
        "# A title\n\n**So it is.**\n\n**But for one.**\n\n"
        "Of a machine.\n\n- times: **2.0×** (faster, than that)\n- rows: **1,000**\n\n"
        "## First\n\nOne.\n\nTwo.\n\n|  | ms |\n| --- | ---: |\n| ours | 1.5 |\n| theirs | – |\n\n"
        "## Second\n\nWhat it shows.\n\n"
        "## Settings\n\n|  |  |\n| --- | ---: |\n| --k | 1,000 |\n\n"
        "![one](one.png)\n\n## Command\n\n```sh\nlinformer bench x\n```\n"
    )


def test_a_cell_stays_one_cell():
    assert markdown_table(("a", "b"), [("x | y", "two\nlines")]).splitlines()[-1] == "| x \\| y | two lines |"
