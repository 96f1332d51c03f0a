"""The figures show the numbers of the inspection."""

import io

import numpy as np
import pytest
from matplotlib.figure import Figure

from torch_linformer.analysis import inspect_text, plot_attention, plot_projections
from torch_linformer.analysis.inspection import attention_plots


@pytest.fixture
def look(build, words):
    return lambda **fields: inspect_text(build(**fields), words, "wet mud < script > sea")


def images(figure):
    assert isinstance(figure, Figure)
    figure.savefig(io.BytesIO())
    return {axes.get_title(loc="left"): axes.images[0].get_array() for axes in figure.axes if axes.images}


def test_the_attention_of_a_head(look):
    seen = look()
    found = images(plot_attention(seen, layer=1, head=2))
    assert list(found) == ["Tokens to slots, P̄: layer 1, head 2", "Tokens to tokens, P̄ Fᵀ: layer 1, head 2"]
    slots, tokens = found.values()
    np.testing.assert_allclose(slots, seen.layers[1].weights[2], rtol=1e-6)
    np.testing.assert_allclose(tokens, seen.layers[1].token_map(2), rtol=1e-5)


def test_its_projections(look):
    seen = look()
    found = images(plot_projections(seen, layer=1, head=2))
    assert list(found) == [f"Slots to positions, {name}: layer 1, head 2" for name in "EF"]
    np.testing.assert_allclose(found.popitem()[1], seen.layers[1].proj_v[2].mT, rtol=1e-6)
    assert list(images(plot_projections(look(sharing="kv")))) == ["Slots to positions, E = F: layer 0, head 0"]


def test_a_long_document_is_drawn_in_blocks(look, monkeypatch):
    monkeypatch.setattr(attention_plots, "MOST_CELLS", 4)
    seen = look()
    tokens = images(plot_attention(seen))["Tokens to tokens, P̄ Fᵀ: layer 0, head 0"]
    assert tokens.shape == (4, 4)
    np.testing.assert_allclose(tokens[1, 2], seen.layers[0].token_map(0)[2:4, 4:6].mean(), rtol=1e-5)


def test_other_attentions(look):
    assert list(images(plot_attention(look(projection="max")))) == ["Tokens to slots, P̄: layer 0, head 0"]
    assert list(images(plot_attention(look(attention="full")))) == ["Tokens to tokens, P: layer 0, head 0"]
    assert list(images(plot_attention(look(k=0, window=4)))) == ["Tokens to tokens, P: layer 0, head 0"]
    for fields, why in (
        ({"projection": "max"}, "no linear map"),
        ({"attention": "full"}, "ordinary attention has no slots"),
        ({"k": 0, "window": 4}, "a window by itself has no slots"),
    ):
        with pytest.raises(ValueError, match=rf"^layer 0 has no E and F: .*{why}"):
            plot_projections(look(**fields))


def test_what_is_not_there(look):
    seen = look()
    with pytest.raises(ValueError, match=r"^layer must be one that was inspected \(0, 1\), got 2$"):
        plot_attention(seen, layer=2)
    with pytest.raises(ValueError, match=r"^head must lie between 0 and 2, got 3$"):
        plot_projections(seen, head=3)
