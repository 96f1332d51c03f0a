"""The literal definition of the modules, and what else their tests share."""

import math
import sys
from pathlib import Path

import pytest
import torch

from torch_linformer.functional import reference

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # what tests of this folder share


@pytest.fixture(autouse=True, scope="module")
def surroundings(one_thread):
    """Tensors this small gain nothing from threads."""


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def trailing_padding():
    """Function: the mask ``(B, M)`` of rows with so many real tokens each, the rest padding."""

    def mask_of(lengths, length):
        return torch.arange(length) >= torch.tensor(lengths)[:, None]

    return mask_of


@pytest.fixture(scope="session")
def randomize():
    """Function: draws every parameter of a module anew, so that no bias or norm is at a special value."""

    def draw(module):
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.normal_(0.0, 0.5)
        return module

    return draw


@pytest.fixture(scope="session")
def literal_attention():
    """Function: output and weights of a ``LinformerAttention``, one row, one head, one slot at a time."""
    return attend_literally


@pytest.fixture(scope="session")
def literal_slots():
    """Function: the slots ``(K, D)`` of one row and head of a ``SequenceProjection``."""
    return slots_of_row


def slots_of_row(projection, sequence, head, real, length_scaling=True):
    """Slots of one sequence ``(M, D)``, given the positions of its real tokens."""
    window = math.ceil(projection.max_len / projection.k)
    if projection.projection in ("mean", "max"):
        return reference.pool_row(sequence, window, projection.k, real, projection.projection)
    weight = projection.weight
    if projection.projection == "conv":
        kernel = weight[head] if weight.dim() == 2 else weight
        matrix = reference.banded_matrix(kernel, projection.max_len, projection.k)
        return reference.project_row(sequence, matrix, real, length_scaling=False)
    return reference.project_row(sequence, weight[head] if weight.dim() == 3 else weight, real, length_scaling)


def attend_literally(module, query, key, value, padding=None, length_scaling=True):
    """Output ``(B, N, C)`` and weights ``(B, H, N, K)``; channels are mixed first, then the positions."""
    proj_k, proj_v = module.proj_k, module.proj_k if module.proj_v is None else module.proj_v
    window = math.ceil(proj_k.max_len / proj_k.k)
    outputs, weights = [], []
    for row in range(query.shape[0]):
        real = reference.real_positions(padding, row, key.shape[1])
        allowed = list(range(proj_k.k))
        if proj_k.projection in ("conv", "mean", "max"):
            allowed = sorted({position // window for position in real})
        queries = head_channels(module.q_proj(query[row]), module.num_heads)
        keys = head_channels(module.k_proj(key[row]), module.num_kv_heads)
        values = head_channels(module.v_proj(value[row]), module.num_kv_heads)
        slots_k = [slots_of_row(proj_k, x, head, real, length_scaling) for head, x in enumerate(keys)]
        slots_v = [slots_of_row(proj_v, x, head, real, length_scaling) for head, x in enumerate(values)]
        if module.slot_bias_k is not None:
            slots_k = [slots + bias for slots, bias in zip(slots_k, module.slot_bias_k, strict=True)]
            slots_v = [slots + bias for slots, bias in zip(slots_v, module.slot_bias_v, strict=True)]
        outputs_of_row, weights_of_row = [], []
        for head, queries_ND in enumerate(queries):
            kv_head = head // (module.num_heads // module.num_kv_heads)
            args = (queries_ND, slots_k[kv_head])
            outputs_of_row.append(reference.softmax_row(*args, slots_v[kv_head], allowed))
            # The same softmax over an identity in the place of values gives the weights themselves.
            identity = torch.eye(proj_k.k, dtype=queries_ND.dtype)
            weights_of_row.append(reference.softmax_row(*args, identity, allowed))
        outputs.append(module.out_proj(torch.cat(outputs_of_row, dim=-1)))
        weights.append(torch.stack(weights_of_row))
    return torch.stack(outputs), torch.stack(weights)


def head_channels(channels, heads):
    """``(M, H·D)`` cut into a ``(M, D)`` for each head: head h owns the channels from h·D to (h + 1)·D."""
    return channels.split(channels.shape[-1] // heads, dim=-1)
