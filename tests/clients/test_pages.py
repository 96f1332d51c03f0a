"""Every page of the project in a browser: axe-core finds nothing, on a phone and a desktop, by keyboard alone."""

import json
import os
import random
import sys

import pytest
import torch
from axe_playwright_python.sync_playwright import Axe
from transformers import AutoTokenizer, BertConfig, BertModel

from torch_linformer.cli.app import run
from torch_linformer.reporting.report import Headline, Report, Section, render_html

PAGES = ("train", "inspect", "spectrum", "adapt", "wide")
WIDTHS = (1280, 500)
# Whatever can be operated: of radio buttons the one that is chosen, as the arrow keys lead to the others.
OPERABLE = "a[href], button, select, summary, input:not([type=radio]), input:checked, [tabindex='0']"


@pytest.fixture(scope="module")
def pages(classifier_run, tmp_path_factory, datasets_cache):
    """Files by the command that made them; of `wide` only a report knows, with a table that no screen holds."""
    folder = tmp_path_factory.mktemp("pages")
    draw = random.Random(0)
    lines = [" ".join(draw.choices(["wet", "grey", "mud", "warm", "sand", "the", "of"], k=70)) for _ in range(90)]
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    torch.manual_seed(0)
    sizes = {"vocab_size": 300, "hidden_size": 30, "num_hidden_layers": 2, "num_attention_heads": 3}
    model = BertModel(BertConfig(**sizes, intermediate_size=41, max_position_embeddings=64, initializer_range=0.3))
    model.save_pretrained(folder / "bert" / "model")
    AutoTokenizer.from_pretrained(classifier_run.folder).save_pretrained(folder / "bert" / "model")
    files = {
        "train": classifier_run.folder / "report.html",
        "inspect": folder / "inspect.html",
        "spectrum": folder / "spectrum" / "report.html",
        "adapt": folder / "adapted" / "report.html",
        "wide": folder / "wide.html",
    }
    bert, texts = str(folder / "bert" / "model"), str(folder / "texts.jsonl")
    spectrum = ["--data", texts, "--length", "16,64", "--documents", "2", "--output", str(folder / "spectrum")]
    adapt = ["--data", texts, "--k", "4", "--window", "8", "--exact-below", "0", "--steps", "2", "--test", "0.3"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "executable", "/bin/false")  # no speed figures
        call(
            "inspect",
            str(classifier_run.folder),
            f"{lines[0]}. {lines[1]}.",
            "--output",
            str(files["inspect"]),
            "--cut",
        )
        call("spectrum", bert, *spectrum)
        call("adapt", bert, *adapt, "--device", "cpu", "--output", str(folder / "adapted"))
    columns = ("", *(f"a score with a name, number {number}" for number in range(12)))
    section = Section("A wide table", columns=columns, rows=[("ours", *map(float, range(12)))])
    report = Report(title="Wide", verdict="It is wide.", headlines=[Headline("columns", 13)], sections=[section])
    files["wide"].write_text(render_html(report), encoding="utf-8")
    return files


def call(*arguments):
    with pytest.raises(SystemExit) as exit_:
        run(list(arguments))
    assert exit_.value.code == 0


@pytest.fixture(params=WIDTHS, ids=lambda width: f"{width}px")
def width(request):
    return request.param


@pytest.fixture(params=PAGES)
def name(request):
    return request.param


@pytest.fixture
def visit(browser, pages):
    """A function: open a page of a width, light or dark, without anything that moves by itself."""
    contexts = []

    def open_page(name, width, scheme="light"):
        size = {"width": width, "height": 900}
        contexts.append(browser.new_context(viewport=size, color_scheme=scheme, reduced_motion="reduce"))
        contexts[-1].set_default_timeout(120_000)
        page = contexts[-1].new_page()
        page.goto(pages[name].as_uri())
        while name == "inspect" and not page.evaluate("Object.values(charts).every((chart) => chart.shown)"):
            page.wait_for_timeout(20)
        return page

    yield open_page
    for context in contexts:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(visit, name, width, scheme):
    found = Axe().run(visit(name, width, scheme))
    assert found.violations_count == 0, found.generate_report()


def test_nothing_leaves_the_screen_but_what_scrolls_and_says_so(visit, name, width, tmp_path):
    """With PAGES_SCREENSHOTS=FOLDER the pictures are kept, to be looked at."""
    page = visit(name, width)
    assert page.screenshot(path=f"{os.environ.get('PAGES_SCREENSHOTS', tmp_path)}/{name}-{width}.png", full_page=True)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = """[...document.querySelectorAll("main *")]
      .filter((part) => part.getBoundingClientRect().right > innerWidth + 1 && !part.closest(".scroll"))
      .map((part) => part.outerHTML.slice(0, 120))"""
    assert page.evaluate(outside) == []
    regions = page.evaluate(
        """[...document.querySelectorAll(".scroll")].map((box) => ({
          name: box.getAttribute("aria-label"), role: box.getAttribute("role"), focusable: box.tabIndex === 0,
          wider: box.scrollWidth > box.clientWidth, hint: box.querySelector(".hint").checkVisibility() }))"""
    )
    for region in regions:
        assert region["name"] and region["role"] == "region" and region["focusable"]
        assert region["hint"] == region["wider"], region
    names = [region["name"] for region in regions]
    assert len(names) == len(set(names))
    if name == "wide" or (width == 500 and name != "inspect"):
        assert any(region["wider"] for region in regions)


def test_the_keyboard_reaches_everything_and_shows_where_it_is(visit, name, width):
    page = visit(name, width)
    page.evaluate("globalThis.reached = new Set()")
    for _ in range(page.locator("*").count()):
        page.keyboard.press("Tab")
        outline = page.evaluate(
            """(() => { const at = document.activeElement; reached.add(at);
              return at === document.body || at.shadowRoot ? "none needed" : getComputedStyle(at).outlineStyle; })()"""
        )
        assert outline != "none"
        if page.evaluate("reached.has(document.body)"):
            break
    missed = f"""[...document.querySelectorAll("{OPERABLE}")]
      .filter((part) => part.checkVisibility() && !reached.has(part)).map((part) => part.outerHTML.slice(0, 120))"""
    assert page.evaluate(missed) == []


def test_a_wide_table_scrolls_by_the_arrow_keys(visit, width):
    page = visit("wide", width)
    page.focus(".scroll")
    page.keyboard.press("ArrowRight")
    for _ in range(500):
        if page.evaluate("document.querySelector('.scroll').scrollLeft") > 0:
            return
        page.wait_for_timeout(20)
    pytest.fail("the table stays where it is")


@pytest.mark.parametrize(
    ("name", "title", "begins"),
    [
        ("train", "Linformer on ", ("Better than ", "Worse than ", "As good as ")),
        ("spectrum", "The spectrum of attention in bert", ("At 16 tokens ",)),
        ("adapt", "bert, adapted", ("On texts held out: cosine to the original ",)),
    ],
)
def test_a_page_begins_with_its_name_and_what_follows(visit, name, title, begins):
    page = visit(name, 1280)
    heading, first = page.locator("main h1, main p").all_inner_texts()[:2]
    assert heading.startswith(title) and "/" not in heading
    assert first.startswith(begins)


def test_the_page_of_an_adaptation_names_chance(visit):
    text = visit("adapt", 500).inner_text("main")
    assert "random guess 0.3846" in text  # ten of the 26 others of 27 texts
