"""The public operations: every row is what it would be alone, without its padding, forward and every gradient."""

import math
from dataclasses import dataclass

import row_alone
import torch
from fuzz_cases import padding_of
from fuzz_strategies import FILLS, FUZZ, LONG, SEEDS, SHORT, row_of, sizes
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from torch_linformer.functional import (
    CausalSlots,
    SlotWeights,
    causal_linformer_attention,
    linformer_attention,
    project_sequence,
)


@dataclass(frozen=True)
class Operation:
    """The tensors of a call.

    Attributes:
        rows: the keys, as in ``fuzz_cases.Case``; ``masked`` hands their mask over.
        heads: of queries and of keys, ``width`` that of a key and of a value, ``k`` slots.
        spare: rows of E beyond the keys.
        per_head: one E for each head; in causal attention: decays likewise.
        weights: the leading sizes of the weights of causal attention: none at all, or those of N, H or B.
        queries: their number in attention that is not causal.
        fill: what stands at padding.
    """

    rows: tuple[str, ...]
    masked: bool = True
    heads: tuple[int, int] = (1, 1)
    width: tuple[int, int] = (2, 3)
    k: int = 1
    spare: int = 0
    per_head: bool = False
    length_scaling: bool = True
    scale: float | None = None
    queries: int = 1
    weights: str = ""
    window: int | None = None
    exact_first: int = 0
    chunk_size: int = 64
    fill: str = "nan"
    seed: int = 0

    @property
    def padding(self):
        return padding_of(self.rows)

    @property
    def mask(self):
        return self.padding if self.masked or self.padding.any() else None

    def tensors(self, **shapes):
        """Tensors of these shapes that want a gradient."""
        generator = torch.Generator(torch.get_default_device()).manual_seed(self.seed)
        drawn = {name: torch.randn(shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}
        return {name: x.requires_grad_() for name, x in drawn.items()}

    def filled(self, x):
        """``(B, …, N, D)`` with ``fill`` at padding, which wants a gradient itself."""
        mask = self.padding[:, None, :, None] if x.dim() == 4 else self.padding[..., None]
        return x.detach().masked_fill(mask, float(self.fill)).requires_grad_()


@st.composite
def operations(draw):
    batch, length = draw(sizes(draw(st.sampled_from([SHORT] * 7 + [LONG]))))
    kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 2), (3, 2)]))
    return Operation(
        tuple(draw(row_of(length)) for _ in range(batch)),
        masked=draw(st.booleans()),
        heads=(kv_heads * groups, kv_heads),
        width=draw(st.sampled_from([(2, 3), (5, 5), (1, 2)])),
        k=draw(st.integers(1, 7)),
        spare=draw(st.sampled_from([0, 1, 4])),
        per_head=draw(st.booleans()),
        length_scaling=draw(st.booleans()),
        scale=draw(st.sampled_from([None, 0.25])),
        queries=draw(st.integers(0, 5)),
        weights=draw(st.sampled_from(["", "N", "HN", "BHN"])),
        window=draw(st.none() | st.integers(1, 9)),
        exact_first=draw(st.sampled_from([0, 0, 1, 4])),
        chunk_size=draw(st.integers(1, 13)),
        fill=draw(FILLS),
        seed=draw(SEEDS),
    )


def assert_same(case, actual, expected, wanted, padded):
    """Values and gradients; those of the tensors named in ``padded`` are zero at padding."""
    assert_close(actual, expected)
    if not actual.numel():
        return
    weights = torch.randn(
        actual.shape, generator=torch.Generator(torch.get_default_device()).manual_seed(1), dtype=torch.float64
    )
    found, right = (
        torch.autograd.grad(x, list(wanted.values()), weights, retain_graph=True, materialize_grads=True)
        for x in (actual, expected)
    )
    for name, one, other in zip(wanted, found, right, strict=True):
        assert_close(one, other, msg=lambda text, name=name: f"gradient to {name}: {text}")
        if name in padded:
            positions = one.transpose(1, 2) if one.dim() == 4 else one
            assert not positions[case.padding].any(), f"gradient to {name} at padding"


def stacked(rows, like):
    """The rows as a batch, ``like`` if there are none."""
    return torch.stack(rows) if rows else like


@FUZZ
@given(operations())
def test_project_sequence(case):
    (batch, length), (_, heads) = case.padding.shape, case.heads
    of_heads = [heads] * case.per_head
    wanted = case.tensors(sequence=(batch, *of_heads, length, 3), proj=(*of_heads, length + case.spare, case.k))
    wanted["sequence"] = case.filled(wanted["sequence"])
    sequence, proj = wanted.values()
    options = {"key_padding_mask": case.mask, "length_scaling": case.length_scaling}
    actual = project_sequence(sequence, proj, **options)

    def of(sequence, proj):
        return row_alone.compress(sequence, proj, case.length_scaling)

    rows = []
    for x, real in zip(sequence, ~case.padding, strict=True):
        rows.append(torch.stack([of(x[h, real], proj[h]) for h in range(heads)]) if of_heads else of(x[real], proj))
    assert_same(case, actual, stacked(rows, actual), wanted, ["sequence"])


@FUZZ
@given(operations())
def test_linformer_attention(case):
    (batch, length), (heads, kv_heads), (width, v_width) = case.padding.shape, case.heads, case.width
    proj = (*[kv_heads] * case.per_head, length + case.spare, case.k)
    wanted = case.tensors(
        query=(batch, heads, case.queries, width),
        key=(batch, kv_heads, length, width),
        value=(batch, kv_heads, length, v_width),
        proj_k=proj,
        proj_v=proj,
    )
    wanted |= {name: case.filled(wanted[name]) for name in ("key", "value")}
    options = {"key_padding_mask": case.mask, "length_scaling": case.length_scaling, "scale": case.scale}
    actual = linformer_attention(**wanted, **options)
    query, key, value, proj_k, proj_v = wanted.values()
    scale = 1 / math.sqrt(width) if case.scale is None else case.scale
    rows = []
    for row, real in enumerate(~case.padding):
        outputs = []
        for head in range(heads):
            of = head * kv_heads // heads
            slots_k, slots_v = (
                row_alone.compress(x[row, of, real], proj[of] if case.per_head else proj, case.length_scaling)
                for x, proj in ((key, proj_k), (value, proj_v))
            )
            outputs.append(torch.softmax(query[row, head] @ slots_k.T * scale, dim=-1) @ slots_v)
        rows.append(torch.stack(outputs))
    assert_same(case, actual, stacked(rows, actual), wanted, ["key", "value"])


@FUZZ
@given(operations())
def test_causal_linformer_attention(case):
    (batch, length), heads, (width, v_width) = case.padding.shape, case.heads[0], case.width
    lead = {"B": batch, "H": heads, "N": length}
    of_heads = [heads] * case.per_head
    shapes = {"query": width, "key": width, "value": v_width}
    shapes = {name: (batch, heads, length, size) for name, size in shapes.items()}
    shapes["decay"] = (*of_heads, case.k)
    if case.weights:
        shapes["weights"] = (*(lead[size] for size in case.weights), case.k)
    wanted = case.tensors(**shapes, score_bias=(*of_heads, case.k))
    wanted |= {name: case.filled(wanted[name]) for name in ("query", "key", "value")}
    # Positive, and not so steep that a chunk would be refused.
    proj = SlotWeights(wanted["decay"].sigmoid(), wanted["weights"].exp() if case.weights else None)
    sequences = [wanted[name] for name in ("query", "key", "value")]
    bias = wanted["score_bias"]
    slots = CausalSlots(proj, bias, case.chunk_size)
    options = {"window": case.window, "exact_first": case.exact_first, "scale": case.scale}
    output = causal_linformer_attention(*sequences, slots, key_padding_mask=case.mask, **options)
    assert output.isfinite().all()
    scale = 1 / math.sqrt(width) if case.scale is None else case.scale
    expected = []
    for row, real in enumerate(~case.padding):
        outputs = []
        for head in range(heads):
            weights = torch.ones(length, case.k) if proj.weights is None else proj.weights
            weights = weights.expand(batch, heads, length, case.k)[row, head, real].double()
            decay = proj.decay.expand(heads, case.k)[head]
            one, key, value = (x[row, head, real] for x in sequences)
            bias_of_head = bias.expand(heads, case.k)[head]
            tokens = case.window, case.exact_first
            found, _ = row_alone.causal_head(one, key, value, decay, weights, bias_of_head, *tokens, scale)
            outputs.append(torch.stack(found) if found else value)
        expected.append(torch.stack(outputs, dim=1))
    actual = output.transpose(1, 2)[~case.padding]
    assert_same(case, actual, torch.cat(expected) if expected else actual, wanted, ["query", "key", "value"])
