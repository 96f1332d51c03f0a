"""What the student learns from, and how embeddings are compared."""

import math

import pytest
import torch
from torch.testing import assert_close

from torch_linformer.adaptation.distillation import distillation_loss
from torch_linformer.adaptation.objectives import chance_of_neighbours, embed, embedding_scores


def test_the_loss_is_what_its_docstring_says():
    generator = torch.Generator().manual_seed(0)
    own, wanted = ([torch.randn(2, 5, 3, generator=generator) for _ in range(2)] for _ in range(2))
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    total = 0.0
    for layer in range(2):
        pairs = [(own[layer][b, n], wanted[layer][b, n]) for b in range(2) for n in range(5) if mask[b, n]]
        numbers = torch.cat([theirs for _, theirs in pairs])
        error = torch.cat([(ours - theirs) ** 2 for ours, theirs in pairs]).mean()
        total += error / ((numbers - numbers.mean()) ** 2).sum() * (len(numbers) - 1) / 2
    means = [[states[-1][0].mean(0), states[-1][1, :2].mean(0)] for states in (own, wanted)]
    cosines = [torch.dot(a, b) / (a.norm() * b.norm()) for a, b in zip(*means, strict=True)]
    assert_close(distillation_loss(own, wanted, mask, "mean"), total + 10 * (1 - sum(cosines) / 2))


def test_nothing_to_learn_from_oneself_and_nothing_from_padding():
    generator = torch.Generator().manual_seed(0)
    states = [torch.randn(2, 5, 3, generator=generator) for _ in range(2)]
    mask = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0]])
    other = [x.masked_fill(~mask.bool().unsqueeze(-1), math.nan).requires_grad_() for x in states]
    loss = distillation_loss(other, states, mask, "mean")
    assert loss.abs() < 1e-5
    gradients = torch.autograd.grad(distillation_loss(other, [x.flip(0) for x in states], mask, "mean"), other)
    assert all((gradient[~mask.bool()] == 0).all() and gradient.isfinite().all() for gradient in gradients)


@pytest.mark.parametrize("pooling", ["mean", "cls", "max"])
def test_embeddings_have_length_one(pooling):
    hidden = torch.randn(3, 4, 6).half()
    vectors = embed(hidden, torch.ones(3, 4), pooling)
    assert vectors.dtype == torch.float32
    assert_close(vectors.norm(dim=-1), torch.ones(3))
    wanted = {"mean": hidden.float().mean(1), "cls": hidden[:, 0].float(), "max": hidden.float().amax(1)}[pooling]
    assert_close(vectors, torch.nn.functional.normalize(wanted, dim=-1))


def test_scores_of_embeddings():
    angles = torch.tensor([0.0, 0.1, 0.5, 1.37, 3.1])  # no two pairs as far apart
    wanted = torch.stack([angles.cos(), angles.sin()], dim=-1)
    assert embedding_scores(wanted, wanted) == pytest.approx({"cosine": 1, "rank_correlation": 1, "neighbours": 1})
    turned = torch.stack([(angles + 0.3).cos(), (angles + 0.3).sin()], dim=-1)  # the same distances
    assert embedding_scores(turned, wanted) == pytest.approx(
        {"cosine": math.cos(0.3), "rank_correlation": 1, "neighbours": 1}, rel=1e-5
    )
    folded = torch.stack([(3 * angles).cos(), (3 * angles).sin()], dim=-1)
    assert embedding_scores(folded, wanted)["rank_correlation"] < 0.9


def test_neighbours_are_others_whatever_their_sign():
    """Of 14 points ten neighbours are more than all on one's own side."""
    generator = torch.Generator().manual_seed(1)
    points = [torch.nn.functional.normalize(torch.randn(14, 3, generator=generator), dim=-1) for _ in range(2)]
    kept = 0
    for one in range(14):
        others = [other for other in range(14) if other != one]
        nearest = [set(sorted(others, key=lambda other: -(x[one] @ x[other]).item())[:10]) for x in points]
        kept += len(nearest[0] & nearest[1])
    assert embedding_scores(*points)["neighbours"] == pytest.approx(kept / 140)


def test_ten_neighbours_of_many():
    """Chance finds ten of 399; where half of the points are where they were, less than half are found."""
    generator = torch.Generator().manual_seed(0)
    wanted, other = (torch.nn.functional.normalize(torch.randn(400, 3, generator=generator), dim=-1) for _ in range(2))
    by_chance = embedding_scores(other, wanted)["neighbours"]
    assert by_chance == pytest.approx(10 / 399, abs=0.02)
    half = wanted.clone()
    half[200:] = other[200:]
    assert by_chance < embedding_scores(half, wanted)["neighbours"] < 0.5


@pytest.mark.parametrize("texts", [8, 13])
def test_what_chance_keeps_of_the_nearest(texts):
    """Embeddings with nothing in common; with eight texts all seven others are among the ten nearest."""
    generator = torch.Generator().manual_seed(0)
    kept = []
    for _ in range(20):
        one, other = (
            torch.nn.functional.normalize(torch.randn(texts, 16, generator=generator), dim=-1) for _ in range(2)
        )
        kept.append(embedding_scores(one, other)["neighbours"])
    assert chance_of_neighbours(texts) == pytest.approx(sum(kept) / len(kept), abs=0.01)
