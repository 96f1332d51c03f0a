"""The page of `linformer inspect` in a real browser: Debian's chromium, headless, by Playwright."""

import base64
import os
import time

import pytest
import torch

from torch_linformer.analysis import inspect_text
from torch_linformer.analysis.page import pack_layers, render_inspection
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification

NASTY = "<script>document.title='run'</script>"
DOCUMENT = f"the wet mud {NASTY} </script> <!-- of the sea \x1b and sea sand " + "mud sand the of " * 105
PATIENCE = 120  # seconds, for a busy machine
PHONE, DESKTOP = {"width": 360, "height": 740}, {"width": 1280, "height": 900}


@pytest.fixture(scope="module")
def inspection(tokenizer):
    """Two layers of three heads, 447 tokens, three of them exact, a local window, and E ≠ F for every head."""
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=len(tokenizer),
        hidden_size=24,
        num_hidden_layers=2,
        num_attention_heads=3,
        intermediate_size=40,
        max_position_embeddings=512,
        k=[16, 20],
        window=6,
        sharing="none",
        exact_first=2,
        exact_last=1,
        problem_type="single_label_classification",
        id2label={0: NASTY, 1: "sun"},
        label2id={NASTY: 0, "sun": 1},
    )
    model = LinformerForSequenceClassification(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.2)
    return inspect_text(model, tokenizer, DOCUMENT)


@pytest.fixture(scope="module")
def pages(inspection, tmp_path_factory):
    """The page with every token by itself, and in blocks of two."""
    folder = tmp_path_factory.mktemp("pages")
    files = {}
    all_bytes = sum(len(base64.b64decode(array["data"])) for array in pack_layers(inspection.layers)["arrays"])
    for block, most_bytes in ((1, all_bytes), (2, all_bytes - 1)):
        files[block] = folder / f"{block}.html"
        files[block].write_text(render_inspection(inspection, model="model", source="text", most_bytes=most_bytes))
        assert f'"block":{block},' in files[block].read_text()
    return files


@pytest.fixture
def visit(browser, pages):
    """A function: open the page; whatever the browser complains of or asks for ends the test."""
    contexts, complaints = [], []

    def open_page(viewport=DESKTOP, scheme="light", block=1, **options):
        contexts.append(browser.new_context(viewport=viewport, color_scheme=scheme, **options))
        contexts[-1].set_default_timeout(1000 * PATIENCE)
        page = contexts[-1].new_page()
        page.on("console", lambda message: message.type in ("error", "warning") and complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: request.url.startswith("file:") or complaints.append(request.url))
        page.goto(pages[block].as_uri())
        until(page, "document.documentElement.dataset.ready === 'yes'")
        until(page, "Object.values(charts).every((chart) => chart.shown)")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


def until(page, condition):
    """Wait for an expression to be true. (Playwright's own way needs `eval`, which the page forbids.)"""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(condition):
        assert time.monotonic() < end, condition
        page.wait_for_timeout(20)


def shown_map(page, chart):
    """The numbers of a map, as they are drawn."""
    rows = page.evaluate(
        f"(({{ map }}) => Array.from({{ length: map.rows }}, (_, row) => "
        f"Array.from(map.values.slice(row * map.columns, (row + 1) * map.columns))))(charts.{chart}.shown)"
    )
    return torch.tensor(rows, dtype=torch.float64)


def settled(page, chart, act):
    """Do something, and wait until a map was drawn again."""
    before = page.evaluate(f"charts.{chart}.turn")
    act()
    until(page, f"charts.{chart}.turn > {before}")
    until(page, f"charts.{chart}.drawn === charts.{chart}.turn")


def blocks_of(matrix, size):
    """Means over `size` tokens, both ways."""
    means = torch.stack([rows.mean(0) for rows in matrix.double().split(size)])
    return torch.stack([rows.mean(0) for rows in means.mT.split(size)]).mT


def close_to(layer, head, size=1):
    """What 16-bit floats may differ by: half a unit in the 11th bit of both factors."""
    weights, values = layer.weights[head, :, : layer.num_slots].double(), layer.proj_v[head].double()
    return 2**-10 * blocks_of(weights @ values.abs().mT, size) + 1e-6


def test_it_opens_without_a_complaint_and_nothing_of_the_text_runs(visit):
    page = visit()
    assert page.title() == "How the model model reads a document"
    assert page.evaluate("document.scripts.length") == 3
    assert NASTY in page.inner_text("#document")
    assert "␛" in page.inner_text("#document")
    assert NASTY in page.inner_text(".headlines")
    assert NASTY in page.inner_text("#label")


@pytest.mark.parametrize(("block", "cells"), [(1, 3), (2, 4)])
def test_layer_and_head_change_the_maps_to_those_of_the_model(visit, inspection, block, cells):
    """447 tokens are 149 cells of 3 tokens, or 112 of 2 blocks, the last of which has a single token."""
    page = visit(block=block)
    for layer, head in ((0, 0), (1, 0), (1, 2), (0, 1)):
        page.select_option("#layer", str(layer))
        settled(page, "tokens", lambda head=head: page.select_option("#head", str((head + 1) % 3)))
        settled(page, "tokens", lambda head=head: page.select_option("#head", str(head)))
        seen = inspection.layers[layer]
        wanted = blocks_of(seen.token_map(head), cells)
        found = shown_map(page, "tokens")
        assert found.shape == wanted.shape
        assert ((found - wanted).abs() <= close_to(seen, head, cells)).all()
        slots = torch.stack([rows.mean(0) for rows in seen.weights[head].double().split(cells)])
        torch.testing.assert_close(shown_map(page, "slots"), slots, rtol=2**-10, atol=1e-9)
        values = torch.stack([rows.mean(0) for rows in seen.proj_v[head].double().split(cells)])
        torch.testing.assert_close(shown_map(page, "projection"), values.mT, rtol=2e-3, atol=2e-3 * values.abs().max())


def test_hovering_shows_the_value_of_the_tensor(visit, inspection):
    page = visit()
    page.select_option("#layer", "1")
    settled(page, "slots", lambda: page.select_option("#head", "2"))
    page.locator("#slots").scroll_into_view_if_needed()
    plot = page.locator("#slots .plot canvas").first.bounding_box()
    frame = page.evaluate(
        "(() => { const { bbox } = Bokeh.index.get_by_id(charts.slots.plot.id).frame; "
        "return [bbox.left, bbox.top, bbox.width, bbox.height]; })()"
    )
    weights = inspection.layers[1].weights[2].double()
    things = {0: "slot 0", 7: "slot 7", 21: "token 1 “the” itself", 29: "the token 3 after it"}
    for row, column in ((0, 0), (40, 7), (50, 21), (148, 29)):
        x = plot["x"] + frame[0] + (column + 0.5) / 30 * frame[2]
        y = plot["y"] + frame[1] + (3 * row + 1.5) / 447 * frame[3]
        page.mouse.move(x, y)
        wanted = float(weights[3 * row : 3 * row + 3, column].mean())
        text = page.inner_text("#slots-readout")
        assert text.startswith(f"tokens {3 * row}–{3 * row + 2} attends mean ") and text.endswith(things[column]), text
        assert float(text.split("mean ")[1].split()[0].replace("−", "-")) == pytest.approx(wanted, rel=6e-3)
    page.mouse.move(0, 0)


def test_zooming_in_shows_single_tokens(visit, inspection):
    page = visit()
    page.focus("#tokens")
    for _ in range(3):
        settled(page, "tokens", lambda: page.keyboard.press("+"))
    start, size, rows = page.evaluate("(({ y, map }) => [y.start, y.size, map.rows])(charts.tokens.shown)")
    assert size == 1 and 56 <= rows <= 58
    layer = inspection.layers[0]
    wanted, allowed = layer.token_map(0).double(), close_to(layer, 0)
    part = slice(start, start + rows)
    assert ((shown_map(page, "tokens") - wanted[part, part]).abs() <= allowed[part, part]).all()
    settled(page, "tokens", lambda: page.keyboard.press("0"))
    assert page.evaluate("charts.tokens.shown.y.size") == 3


def test_the_keyboard_alone(visit, inspection):
    page = visit()
    page.focus("#layer")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Tab")
    settled(page, "tokens", lambda: page.keyboard.press("ArrowDown"))
    assert page.evaluate("[state.layer.packed.number, state.head]") == [1, 1]

    page.focus("#document")
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    until(page, "state.token === 3 && text.of === 'layer 1, head 1, token 3'")
    layer = inspection.layers[1]
    values = page.evaluate("text.spans.map((span) => Number(span.dataset.value))")
    difference = torch.tensor(values, dtype=torch.float64) - layer.token_map(1)[3].double()
    assert (difference.abs() <= close_to(layer, 1)[3]).all()

    page.focus("#tokens")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Shift+ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.inner_text("#tokens-readout").startswith("tokens 30–32 takes mean ")
    assert page.inner_text("#tokens-readout").endswith(" of tokens 3–5")
    page.keyboard.press("Enter")
    assert page.evaluate("state.token") == 31
    assert page.input_value("#token") == "31"


def test_what_the_answer_draws_on(visit, inspection):
    page = visit()
    for number in (1, 0):
        page.select_option("#label", str(number))
        values = page.evaluate("text.spans.map((span) => Number(span.dataset.value))")
        torch.testing.assert_close(torch.tensor(values), inspection.answer.relevance.values[number], rtol=1e-6, atol=0)
    page.locator("#document span[data-first='4']").hover()
    shown = page.inner_text("#document-readout")
    value = float(shown.rsplit(": ", 1)[1].split()[0].replace("−", "-"))
    assert value == pytest.approx(float(inspection.answer.relevance.values[0, 4]), rel=6e-3)


def test_the_strongest_token_is_selected_at_first_and_in_sight(visit, inspection):
    page = visit()
    strongest = int(inspection.answer.relevance.values[0].abs().argmax())
    assert page.evaluate("state.token") == strongest and page.input_value("#token") == str(strongest)
    box, chosen = (page.locator(name).bounding_box() for name in ("#document", "#document .chosen"))
    assert box["y"] <= chosen["y"] and chosen["y"] + chosen["height"] <= box["y"] + box["height"]


def test_the_passages_that_decided_are_ranked_and_lead_to_their_strongest_token(visit, inspection):
    page = visit()
    for label in (0, 1):
        page.select_option("#label", str(label))
        values = inspection.answer.relevance.values[label].double()
        shown = page.locator("#passages .added").all_inner_texts()
        added = [float(text.replace("−", "-")) for text in shown]
        assert len(added) == 5 and [abs(value) for value in added] == sorted(map(abs, added), reverse=True)
        assert inspection.answer.labels[label] in page.inner_text("#passages-heading")
        page.locator("#passages button").nth(1).focus()
        page.keyboard.press("Enter")
        token = page.evaluate("state.token")
        assert page.evaluate("state.from") == "answer"
        passage = page.evaluate(f"data.answer.passages[{label}][1]")
        part = values[passage["first"] : passage["last"] + 1]
        assert token == passage["first"] + int(part.abs().argmax())
        assert added[1] == pytest.approx(float(part.sum()), rel=6e-3)


def test_e_and_f_and_one_slot_of_them(visit, inspection):
    page = visit()
    settled(page, "projection", lambda: page.get_by_label("E, keys").check())
    keys = inspection.layers[0].proj_k[0].double()
    wanted = torch.stack([rows.mean(0) for rows in keys.split(3)]).mT
    torch.testing.assert_close(shown_map(page, "projection"), wanted, rtol=2e-3, atol=2e-3 * keys.abs().max())
    page.fill("#slot", "11")
    page.keyboard.press("Enter")
    until(page, "document.getElementById('profile-slot').textContent === '11'")
    for line, matrix in (("k", keys), ("v", inspection.layers[0].proj_v[0].double())):
        profile = torch.tensor(page.evaluate(f"Array.from(profile.{line}.data.y)"), dtype=torch.float64)
        torch.testing.assert_close(profile, matrix[:, 11], rtol=2e-3, atol=1e-6)


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("viewport", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_fits_the_screen(visit, viewport, scheme, tmp_path):
    """With INSPECT_SCREENSHOTS=FOLDER the pictures are kept, to be looked at."""
    page = visit(viewport, scheme, has_touch=viewport is PHONE)
    assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
    folder = os.environ.get("INSPECT_SCREENSHOTS", str(tmp_path))
    picture = page.screenshot(path=f"{folder}/{viewport['width']}-{scheme}.png", full_page=True)
    assert picture
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert paper == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(21, 24, 28)")
    if viewport is PHONE:
        page.locator("#slots .plot").tap()
        assert "attends mean" in page.inner_text("#slots-readout")


def test_colours_follow_the_system(visit):
    page = visit()
    light = page.evaluate("charts.slots.mapper.palette[0]")
    page.emulate_media(color_scheme="dark")
    until(page, "charts.slots.mapper.palette[0] !== '#ffffff'")
    assert (light, page.evaluate("charts.slots.mapper.palette[0]")) == ("#ffffff", "#15181c")
