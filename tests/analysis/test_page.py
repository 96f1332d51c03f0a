"""The page is one file that loads nothing and runs nothing but its own script."""

import base64
import gzip
import hashlib
import json
import re

import numpy as np
import pytest
import torch

from torch_linformer.analysis import inspect_text
from torch_linformer.analysis.attention_maps import LayerAttention, block_means, spread_window
from torch_linformer.analysis.page import Arrays, block_band, pack_layers, render_inspection
from torch_linformer.models import LinformerModel

NASTY = "</script><script>alert(1)</script><!-- <b>&amp;\u202e\u2028\ud800'\""

DYNAMIC = {"projection": "dynamic", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}


@pytest.fixture
def render(build, words):
    def make(text="wet mud < script > sea", *, model="m", source="s", most_bytes=10**6, **fields):
        return render_inspection(
            inspect_text(build(**fields), words, text), model=model, source=source, most_bytes=most_bytes
        )

    return make


KINDS = [{}, {"window": 4}, {"projection": "max"}, {"attention": "full"}, DYNAMIC, {"problem_type": "regression"}]


@pytest.mark.parametrize("fields", KINDS, ids=str)
def test_nothing_is_loaded_and_nothing_else_runs(render, read_page, fields):
    text = render(**fields)
    page = read_page(text)
    assert not {"link", "img", "iframe", "object", "base"} & set(page.tags)
    assert not [name for name, _ in page.attributes if name.startswith("on") or name in ("src", "href", "action")]
    data, library, script = page.scripts
    json.loads(data)
    hashes = [base64.b64encode(hashlib.sha256(code.encode()).digest()).decode() for code in (library, script)]
    policies = [value for name, value in page.attributes if name == "content" and value.startswith("default-src")]
    allowed = " ".join(f"'sha256-{each}'" for each in hashes)
    assert policies == [f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"]
    assert "Redistribution and use in source and binary forms" in library
    ids = [value for name, value in page.attributes if name == "id"]
    assert len(ids) == len(set(ids))
    assert {value for name, value in page.attributes if name == "aria-labelledby"} <= set(ids)


def test_every_text_is_text(render, read_page):
    names = {number: f"{NASTY}{number}" for number in range(5)}
    text = render(NASTY, model=NASTY, source=NASTY, id2label=names, label2id={})
    text.encode("utf-8")
    page = read_page(text)
    assert page.tags.count("script") == 3 and "b" not in page.tags
    assert "<" not in page.scripts[0]
    pieces = json.loads(page.scripts[0])["pieces"]
    shown = NASTY.replace("\u202e", "⟨U+202E⟩").replace("\u2028", "⟨U+2028⟩")
    document = shown.replace("\ud800", "\N{REPLACEMENT CHARACTER}")
    shown = shown.replace("\ud800", "⟨U+D800⟩")
    assert "".join(piece for piece, first, last, special in pieces if not special) == document
    assert sum(shown in part for part in page.text) >= 6


ALL = ["tokens", "slots", "projection", "profile"]


@pytest.mark.parametrize(
    ("fields", "figures", "says"),
    [
        ({}, ALL, "P̄ Fᵀ"),
        ({"sharing": "kv"}, ALL, "Here E = F."),
        ({"slot_bias": True}, ALL, "What the slot bias adds"),
        ({"projection": "max"}, ["slots"], "there is no E and no F"),
        ({"attention": "full"}, ["tokens"], "Ordinary attention has no slots"),
        (DYNAMIC, ALL, "The document chose them"),
        (DYNAMIC, ALL, "over the slots, then the first and last tokens. Rows"),
        ({**DYNAMIC, "window": 4, "k": [0, 7]}, ALL, "of the local window"),
        ({"k": 0, "window": 4}, ["tokens"], "These layers have no slots"),
        ({"k": 0, "window": 4, "exact_first": 1}, ["tokens"], "by way of the first and last tokens, the positions of"),
    ],
    ids=str,
)
def test_what_there_is_to_see(render, read_page, fields, figures, says):
    page = read_page(render(**fields))
    assert list(json.loads(page.scripts[0])["figures"]) == figures
    assert says in "".join(page.text)


def test_the_resolution_and_a_cut_are_said(render, read_page, build, words):
    assert "every token by itself" in render()
    page = read_page(render(most_bytes=700))
    block = json.loads(page.scripts[0])["block"]
    assert block > 1 and f"means over blocks of {block} tokens" in "".join(page.text)
    page = render_inspection(inspect_text(build(), words, "mud " * 50, cut=True), model="m", source="a.txt")
    assert "The first 29 of the 52 tokens of a.txt" in page


def test_the_answer_and_how_its_numbers_add_up(render, read_page):
    page = read_page(render())
    answer = json.loads(page.scripts[0])["answer"]
    assert len(answer["labels"]) == 3 and len(answer["relevance"][0]) == 8
    assert re.search(r"but for the error of the integration: LABEL_\d [+−]\d+\.\d{3} of [+−]\d", "".join(page.text))


def test_only_slots_in_use_are_on_the_page(render, read_page):
    page = read_page(render("wet mud", projection="mean"))
    data = json.loads(page.scripts[0])
    assert [layer["slots"] for layer in data["layers"]] == [1, 1]
    assert [data["arrays"][number]["shape"][1] for number in data["layers"][0]["weights"]] == [1, 1, 1]
    assert "Of the 7 slots of a layer at most 1 are in use" in "".join(page.text)
    assert "are in use" not in "".join(read_page(render(projection="linear")).text)


def test_the_strongest_token_and_the_passages_that_decided(build, words, read_page):
    seen = inspect_text(build(), words, "script\nsea sand\nwet mud.")
    data = json.loads(read_page(render_inspection(seen, model="m", source="s")).scripts[0])
    values = seen.answer.relevance.values
    assert data["firstToken"] == int(values[0].abs().argmax()) > 1
    for found, row in zip(data["answer"]["passages"], values, strict=True):
        assert {each["text"] for each in found} == {"wet mud.", "sea sand", "script"}
        assert [each["added"] for each in found] == pytest.approx(
            sorted((float(row[each["first"] : each["last"] + 1].sum()) for each in found), key=abs, reverse=True)
        )


def test_without_an_answer_the_first_token_of_the_text_is_selected(build, words, read_page):
    seen = inspect_text(build(LinformerModel), words, "wet mud")
    page = read_page(render_inspection(seen, model="m", source="s"))
    assert json.loads(page.scripts[0])["firstToken"] == 1
    assert "passages" not in {value for name, value in page.attributes if name == "id"}


# The arrays of the page


def unpack(array):
    data = gzip.decompress(base64.b64decode(array["data"]))
    halves = np.frombuffer(data, dtype=np.uint8).reshape(2, -1).T.copy().view("<f2")
    return torch.from_numpy(halves.astype(np.float64).reshape(array["shape"])) / array["scale"]


def layer_of(heads=3, length=19, slots=7, exact=(), reach=None, shared=True):
    torch.manual_seed(0)
    width = slots + len(exact) + (0 if reach is None else 2 * reach + 1)
    projections = [torch.randn(1 if shared else heads, length, slots).expand(heads, -1, -1) for _ in range(2)]
    return LayerAttention(
        weights=torch.randn(heads, length, width).softmax(-1),
        proj_k=projections[0],
        proj_v=projections[1],
        exact=torch.tensor(exact, dtype=torch.long),
        reach=reach,
        num_slots=slots,
    )


@pytest.mark.parametrize("factor", [1e-9, 1.0, 1e7])
def test_an_array_keeps_eleven_bits_and_is_stored_once(factor):
    matrix = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * factor
    arrays, zeros = Arrays(), torch.zeros(5, 3)
    assert [arrays.add(each) for each in (matrix, zeros, matrix.clone(), zeros, zeros.mT)] == [0, 1, 0, 1, 2]
    assert ((unpack(arrays.packed[0]) - matrix).abs() <= 2**-11 * matrix.abs()).all()
    assert not unpack(arrays.packed[1]).any()


def test_all_tokens_by_themselves_and_one_matrix_for_all_heads_and_layers_where_they_fit():
    layer = layer_of()
    packed = pack_layers({0: layer, 1: layer})
    assert packed["block"] == 1 and len(packed["arrays"]) == 3 + 2
    assert packed["layers"][1] == {**packed["layers"][0], "number": 1}
    for head, number in enumerate(packed["layers"][0]["weights"]):
        stored = unpack(packed["arrays"][number])
        torch.testing.assert_close(stored, layer.weights[head].double(), rtol=2**-11, atol=0)
    assert len(pack_layers({0: layer_of(shared=False)})["arrays"]) == 9


@pytest.mark.parametrize(("bytes_", "block"), [(900, 2), (500, 4), (1, 32)])
def test_blocks_where_they_do_not(bytes_, block):
    """19 tokens: the last block has fewer of them."""
    layer = layer_of()
    packed = pack_layers({0: layer}, bytes_)
    assert packed["block"] == block
    (head, *_) = packed["layers"][0]["weights"]
    wanted = torch.stack([rows.mean(0) for rows in layer.weights[0].double().split(block)])
    torch.testing.assert_close(unpack(packed["arrays"][head]), wanted, rtol=2**-10, atol=0)


def test_ordinary_attention_has_blocks_both_ways():
    weights = torch.randn(2, 19, 19).softmax(-1)
    none = torch.zeros(0, dtype=torch.long)
    layer = LayerAttention(weights, exact=none)
    packed = pack_layers({0: layer}, 400)
    block = packed["block"]
    assert block == 4
    stored = unpack(packed["arrays"][0])
    assert stored.shape == (5, 5)
    torch.testing.assert_close(stored[1, 4], weights[0, 4:8, 16:].double().mean(), rtol=2**-10, atol=0)


@pytest.mark.parametrize("block", [1, 2, 4, 8])
def test_the_mean_of_a_product_is_the_product_of_the_means(block):
    layer = layer_of(reach=3, exact=(0, 1, 18))
    assert pack_layers({0: layer})["layers"][0]["exact"] == [0, 1, 18]
    whole = layer.token_map(1)
    means = block_means(block_means(whole, block).mT, block).mT
    rows, columns = block_means(layer.weights[1, :, :7], block), block_means(layer.proj_v[1], block)
    found = rows @ columns.mT
    band = block_band(layer.window_weights(1), block)
    farthest = band.shape[1] // 2
    for row in range(found.shape[0]):
        for column in range(max(0, row - farthest), min(found.shape[0], row + farthest + 1)):
            found[row, column] += band[row, column - row + farthest]
    for token, weights in zip((0, 1, 18), block_means(layer.exact_weights(1), block).mT, strict=True):
        column = token // block
        found[:, column] += weights / min(block, 19 - block * column)
    torch.testing.assert_close(found, means)


def test_a_band_of_single_tokens_is_the_window():
    near = torch.tensor([[0.0, 1, 2], [3, 4, 5], [6, 7, 0]])
    assert torch.equal(block_band(near, 1), near)
    assert block_band(near, 4)[0, 1] == spread_window(near).mean()
