"""A report is one safe, self-contained and readable file."""

import re
from importlib import resources

import pytest
from hypothesis import given
from hypothesis import strategies as st

from torch_linformer.reporting import plots
from torch_linformer.reporting.report import MAX_ROWS, Headline, Report, Section, render_html

NASTY = "<script>alert(1)</script>\"'&"


def page_report():
    return render_html(
        Report(
            title="Which package?",
            verdict="None is left.\nOne is.",
            lead="A small run.",
            headlines=[
                Headline(name="accuracy", value="91.6 %", note="majority 48.0 %"),
                Headline(name="steps", value=1800),
            ],
            sections=[
                Section(heading="Data", text="One.\n\nTwo.", columns=("Split", "Documents"), rows=[("train", 1189)]),
                Section(heading="Doubts", facts={"asked": 2500}),
                Section(heading="Lengths", figure=plots.length_histogram([5, 700], 512), caption="Dashed."),
                Section(heading="Matrix", figure=plots.confusion_matrix([[3, 1], [0, 4]], ["neg", "pos"])),
                plots.learning_curve("Curve", [{"step": 1, "loss": 2.0}], "eval_loss"),
            ],
            settings={"--seed": "7"},
            machine={"processor": "abacus"},
            command="linformer train corpus --seed 7",
        )
    )


def test_everything_is_on_the_page_in_order(read_page):
    text = [part.strip() for part in read_page(page_report()).text]
    wanted = ["Which package?", "None is left.", "One is.", "A small run.", "accuracy", "91.6 %", "majority 48.0 %"]
    wanted += ["steps", "1,800", "Data", "One.", "Two.", "Split", "Documents", "train", "1,189"]
    wanted += ["Doubts", "asked", "2,500", "Lengths", "Dashed.", "Matrix", "Curve"]
    wanted += ["Settings", "--seed", "7", "Machine and versions", "processor", "abacus"]
    wanted += ["Command", "linformer train corpus --seed 7"]
    assert [part for part in text if part in wanted] == ["Which package?", *wanted]  # the first is the tab's


def test_nothing_is_loaded_and_nothing_runs(read_page):
    text = page_report()
    page = read_page(text)
    assert not {"script", "link", "img", "iframe", "object", "canvas", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert all(value.startswith("#") for name, value in page.attributes if name.endswith("href"))
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert dict(page.attributes)["content"] == "default-src 'none'; style-src 'unsafe-inline'"


def test_the_page_is_accessible(read_page):
    page = read_page(page_report())
    assert {("lang", "en"), ("role", "img"), ("scope", "row"), ("scope", "col")} <= set(page.attributes)
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value for name, value in page.attributes if name == "aria-labelledby"} <= set(ids)
    assert page.tags.count("h1") == page.tags.count("title") == page.tags.count("main") == 1


def test_every_text_is_escaped(read_page):
    figure = plots.confusion_matrix([[1]], [NASTY])
    table = {"columns": (NASTY, NASTY), "rows": [(NASTY, NASTY)]}
    facts = {NASTY: NASTY}
    section = Section(heading=NASTY, text=NASTY, facts=facts, **table, figure=figure, caption=NASTY)
    headline = Headline(name=NASTY, value=NASTY, note=NASTY)
    whole = Report(
        title=NASTY, verdict=NASTY, sections=[section], command=NASTY, lead=NASTY, headlines=[headline], settings=facts
    )
    page = read_page(render_html(whole))
    assert "script" not in page.tags
    assert [part.strip() for part in page.text].count(NASTY) == 19


@given(st.text(alphabet=st.characters(), max_size=40))
def test_any_text_makes_a_page_that_can_be_written(read_page, text):
    section = Section(heading=text, text=text, columns=(text, "n"), rows=[(text, 1)])
    headline = Headline(name=text, value=text)
    page = render_html(Report(title=text, sections=[section], command=text, lead=text, headlines=[headline]))
    page.encode("utf-8")
    read_page(page)


def test_tables_are_aligned_and_cut():
    rows = [(f"label {index}", index + 1390) for index in range(1399)]
    sections = [Section("h", columns=("a", "b"), rows=rows), Section("only a heading")]
    page = render_html(Report(title="t", sections=sections))
    assert '<th scope="col" class="number">b</th>' in page and '<td class="number">1,399</td>' in page
    assert page.count('<th scope="row">') == MAX_ROWS and f"The first {MAX_ROWS} of 1,399 rows." in page
    assert page.count("<table") == 1 and "<figure" not in page and "<dl" not in page


def luminance(color):
    channels = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return sum(weight * c for weight, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one, other):
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def blended(color, opacity, ground):
    channels = [
        round(opacity * int(color[at : at + 2], 16) + (1 - opacity) * int(ground[at : at + 2], 16)) for at in (1, 3, 5)
    ]
    return "#" + "".join(f"{channel:02x}" for channel in channels)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast_is_enough(theme):
    style = resources.files("torch_linformer").joinpath("reporting/template_files/page.css").read_text(encoding="utf-8")
    colors = {name: re.findall(rf"--{name}: (#\w+);", style)[theme] for name in ("paper", "ink", "muted", "wash")}
    assert contrast(colors["ink"], colors["paper"]) >= 7
    assert contrast(colors["ink"], colors["wash"]) >= 7
    assert contrast(colors["muted"], colors["paper"]) >= 4.5
    assert contrast(colors["ink"], blended(plots.BLUE, 0.75, colors["paper"])) >= 4.5  # a full cell of a matrix
    assert min(contrast(color, colors["paper"]) for color in (plots.BLUE, plots.ORANGE)) >= 3
