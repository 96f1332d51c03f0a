import math

import pytest
import torch
from torch import nn
from torch.testing import assert_close
from torch.utils.checkpoint import set_checkpoint_early_stop

from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.tasks.retrieval import Retrieval
from torch_linformer.training.task_trainers import SCALE, contrastive_loss, in_turn


def directions(number, seed, requires_grad=False):
    vectors = torch.randn(number, 6, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    return (vectors / vectors.norm(dim=1, keepdim=True)).requires_grad_(requires_grad)


def reference(queries, documents, query_of, query_group):
    """The formula, a query at a time."""
    total, pairs = 0.0, list(zip(query_group, query_of, strict=True))
    for query, (group, own) in zip(queries, pairs, strict=True):
        candidates = [j for j in range(len(documents)) if j == own or (group, j) not in pairs]
        weights = [math.exp(SCALE * float(query @ documents[j])) for j in candidates]
        total -= math.log(math.exp(SCALE * float(query @ documents[own])) / sum(weights))
    return total / len(queries)


@pytest.mark.parametrize("query_group", [[0, 1, 2, 3, 4], [0, 1, 0, 0, 2], [3, 1, 1, 3, 2]])
def test_the_loss_is_its_formula(query_group):
    queries, documents, query_of = directions(5, 0), directions(4, 1), [0, 0, 1, 3, 2]
    loss = contrastive_loss(queries, documents, torch.tensor(query_of), torch.tensor(query_group))
    assert loss.item() == pytest.approx(reference(queries, documents, query_of, query_group), rel=1e-12)


def test_a_batch_without_queries_teaches_nothing():
    documents = directions(3, 1, requires_grad=True)
    loss = contrastive_loss(documents[:0], documents, torch.tensor([], dtype=torch.long), torch.arange(0))
    loss.backward()
    assert loss.item() == 0 and documents.grad.eq(0).all()


@pytest.fixture
def encoder():
    torch.manual_seed(0)
    config = LinformerConfig(
        vocab_size=50, hidden_size=12, num_hidden_layers=2, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=16, k=4, projection="dynamic", sharing="kv_per_head", window=4,
    )  # fmt: skip
    return LinformerModel(config).double().eval()


def rows(*lengths):
    ids = torch.randint(1, 50, (len(lengths), 16), generator=torch.Generator().manual_seed(2))
    mask = (torch.arange(16) < torch.tensor(lengths)[:, None]).long()
    return ids * mask, mask


def test_vectors_and_gradients_in_turn_are_those_at_once(encoder):
    task, read = Retrieval(None), []

    def embed(ids, mask):
        read.append(tuple(ids.shape))
        return task.respond(encoder, {"input_ids": ids, "attention_mask": mask}).double()

    def learned(tokens):
        encoder.zero_grad()
        read.clear()
        (vectors,) = in_turn(embed, [rows(3, 16, 9, 5, 12)], tokens)
        contrastive_loss(vectors[3:], vectors[:3], torch.tensor([0, 2]), torch.arange(2)).backward()
        return vectors.detach(), {name: p.grad for name, p in encoder.named_parameters() if p.grad is not None}

    vectors, gradients = learned(5 * 16)
    assert read == [(5, 16)]
    assert_close(vectors, embed(*rows(3, 16, 9, 5, 12)).detach())
    in_turn_vectors, in_turn_gradients = learned(2 * 16)
    # Longest first, without padding that no row of the part needs; then each once more, for its gradients.
    assert read[:3] == [(2, 16), (2, 9), (1, 3)] and sorted(read[3:]) == sorted(read[:3])
    assert_close(in_turn_vectors, vectors, rtol=0, atol=1e-6)  # pooled in float32
    assert_close(in_turn_gradients, gradients, rtol=1e-4, atol=1e-6)


def test_dropout_is_the_same_the_second_time(encoder):
    """Else the gradients would be those of another function than the one whose value was used."""
    drop = nn.Dropout(0.5)
    given = []

    def embed(ids, mask):
        hidden = drop(encoder(ids, mask).last_hidden_state)
        given.append(hidden.detach())
        return hidden[:, 0]

    torch.manual_seed(3)
    with set_checkpoint_early_stop(False):
        in_turn(embed, [rows(16, 15, 14)], 16)[0].sum().backward()
    first, again = given[:3], given[3:]
    assert len(again) == 3 and all(any(torch.equal(one, other) for other in first) for one in again)
