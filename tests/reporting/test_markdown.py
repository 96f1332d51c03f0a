from torch_linformer.reporting.html import Headline, Section
from torch_linformer.reporting.markdown import markdown_table, render_markdown


def test_a_whole_document():
    text = render_markdown(
        "A title",
        [
            Section(heading="First", text="One.\n\nTwo.", columns=("", "ms"), rows=[("ours", 1.5), ("theirs", None)]),
            Section(heading="Second", figure="<svg/>", caption="What it shows."),
        ],
        "linformer bench x",
        lead="Of a machine.",
        headlines=[Headline(name="times", value="2.0×", note="faster\nthan that"), Headline(name="rows", value=1000)],
        figures={"one": "one.png"},
    )
    assert text == (
        "# A title\n\nOf a machine.\n\n- times: **2.0×** (faster, than that)\n- rows: **1,000**\n\n"
        "## First\n\nOne.\n\nTwo.\n\n|  | ms |\n| --- | ---: |\n| ours | 1.5 |\n| theirs | – |\n\n"
        "## Second\n\nWhat it shows.\n\n![one](one.png)\n\n## Command\n\n```sh\nlinformer bench x\n```\n"
    )


def test_a_cell_stays_one_cell():
    assert markdown_table(("a", "b"), [("x | y", "two\nlines")]).splitlines()[-1] == "| x \\| y | two lines |"
