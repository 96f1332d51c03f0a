"""What the page carries is what the model gave, to the bits that a 16-bit float has."""

import base64
import gzip

import numpy as np
import pytest
import torch

from torch_linformer.analysis.inspection.attention_maps import LayerAttention, spread_window
from torch_linformer.analysis.inspection.page_arrays import Arrays, block_band, block_means, pack_layers


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
def test_an_array_keeps_eleven_bits(factor):
    matrix = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * factor
    arrays = Arrays()
    arrays.add(matrix)
    assert ((unpack(arrays.packed[0]) - matrix).abs() <= 2**-11 * matrix.abs()).all()


def test_an_array_is_stored_once():
    arrays = Arrays()
    zeros = torch.zeros(2, 3)
    assert [arrays.add(zeros), arrays.add(torch.ones(2, 3)), arrays.add(zeros.clone()), arrays.add(zeros.mT)] == [
        0,
        1,
        0,
        2,
    ]
    assert not unpack(arrays.packed[0]).any()


def test_one_matrix_for_all_heads_and_layers_is_stored_once():
    layer = layer_of()
    packed = pack_layers({0: layer, 1: layer})
    assert len(packed["arrays"]) == 3 + 2
    assert packed["layers"][1] == {**packed["layers"][0], "number": 1}
    assert len(set(packed["layers"][0]["weights"])) == 3
    assert len(pack_layers({0: layer_of(shared=False)})["arrays"]) == 9


def test_all_tokens_by_themselves_where_they_fit():
    layer = layer_of()
    packed = pack_layers({4: layer})
    assert packed["block"] == 1 and packed["layers"][0]["number"] == 4
    for head in range(3):
        stored = unpack(packed["arrays"][packed["layers"][0]["weights"][head]])
        torch.testing.assert_close(stored, layer.weights[head].double(), rtol=2**-11, atol=0)


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
    layer = LayerAttention(weights=weights, proj_k=None, proj_v=None, exact=none, reach=None, num_slots=0)
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
