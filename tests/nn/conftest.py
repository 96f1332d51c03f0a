"""The literal definition of the modules, and what else their tests share."""

import math
import sys
from pathlib import Path

import pytest
import torch

from torch_linformer.functional import reference
from torch_linformer.nn import DynamicProjection, SequenceProjection

HERE = str(Path(__file__).parent)
if HERE not in sys.path:
    sys.path.insert(0, HERE)  # what tests of this folder share


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


def slots_of_row(projection, sequence, head, real, length_scaling=True, scored=None):
    """Slots of one sequence ``(M, D)``, given the positions of its real tokens; ``scored`` where it is another."""
    if isinstance(projection, DynamicProjection):
        weight = projection.weight if projection.num_heads is None else projection.weight[head]
        scored = sequence if scored is None else scored
        return reference.dynamic_row(scored, sequence, weight, projection.shift, projection.log_steepness, real)
    window = math.ceil(projection.max_len / projection.k)
    if projection.projection in ("mean", "max"):
        return reference.pool_row(sequence, window, projection.k, real, projection.projection)
    weight = projection.weight
    if projection.projection == "conv":
        kernel = weight[head] if weight.dim() == 2 else weight
        matrix = reference.banded_matrix(kernel, projection.max_len, projection.k)
        return reference.project_row(sequence, matrix, real, length_scaling=False)
    return reference.project_row(sequence, weight[head] if weight.dim() == 3 else weight, real, length_scaling)


def tokens_of_slots(projection, real):
    """The number of tokens that each slot stands for: those in its window, or an even part of all."""
    if isinstance(projection, DynamicProjection):
        return [max(len(real), 1) / projection.k] * projection.k
    window = math.ceil(projection.max_len / projection.k)
    return [len(range(len(real))[slot * window : (slot + 1) * window]) for slot in range(projection.k)]


def attend_literally(module, query, key, value, padding=None, length_scaling=True):
    """Output ``(B, N, C)`` and weights ``(B, H, N, ·)``; channels are mixed first, then the positions.

    Beside a window, queries at padding get zeros.
    """
    outputs, weights = [], []
    for row in range(query.shape[0]):
        real = reference.real_positions(padding, row, key.shape[1])
        inputs = key[row], value[row]
        queries = head_channels(module.q_proj(query[row]), module.num_heads)
        tokens = (
            head_channels(module.k_proj(inputs[0]), module.num_kv_heads),
            head_channels(module.v_proj(inputs[1]), module.num_kv_heads),
        )
        outputs_of_row, weights_of_row = [], []
        for head, queries_ND in enumerate(queries):
            kv_head = head // (module.num_heads // module.num_kv_heads)
            of_head = tokens[0][kv_head], tokens[1][kv_head]
            seen = list(range(len(queries_ND)) if module.window is None or padding is None else real)
            found = reference.attend_beside_slots(
                queries_ND[seen],
                slots_of_head(module, inputs, of_head, kv_head, real, length_scaling),
                of_head,
                real,
                **beside_slots(module, kv_head, real),
            )
            places = torch.tensor(seen, dtype=torch.long)
            outputs_of_row.append(found[0].new_zeros(queries_ND.shape).index_copy(0, places, found[0]))
            empty = found[1].new_zeros(len(queries_ND), found[1].shape[1])
            weights_of_row.append(empty.index_copy(0, places, found[1]))
        outputs.append(module.out_proj(torch.cat(outputs_of_row, dim=-1)))
        weights.append(torch.stack(weights_of_row))
    return torch.stack(outputs), torch.stack(weights)


def slots_of_head(module, inputs, tokens, head, real, length_scaling):
    """Keys and values ``(K, D)`` of the slots; ``inputs`` and ``tokens`` are the sequences of keys and values."""
    if module.context.k == 0:
        return tokens[0][:0], tokens[1][:0]
    maps = module.context.proj_k, module.context.proj_k if module.context.proj_v is None else module.context.proj_v
    scored = list(inputs if maps[0].num_heads is None else tokens)
    if maps[0] is maps[1]:
        scored[1] = scored[0]
    slots = [
        slots_of_row(one, sequence, head, real, length_scaling, by)
        for one, sequence, by in zip(maps, tokens, scored, strict=True)
    ]
    terms = module.context.slot_terms
    if terms is not None and terms.bias_k is not None:
        slots = [slots[0] + terms.bias_k[head], slots[1] + terms.bias_v[head]]
    return tuple(slots)


def beside_slots(module, head, real):
    """Which slots there are, their mass, and the tokens that are seen themselves."""
    options = module.context
    exact = reference.exact_positions(real, options.exact_first, options.exact_last)
    reach = None if module.window is None else module.window // 2
    if module.context.k == 0:
        return {"allowed": [], "exact": exact, "reach": reach}
    projection = module.context.proj_k
    tokens = tokens_of_slots(projection, real)
    windowed = isinstance(projection, SequenceProjection) and projection.projection in ("conv", "mean", "max")
    allowed = [slot for slot in range(module.context.k) if not windowed or tokens[slot] > 0]
    mass = None
    if options.mass != "none":
        mass = torch.tensor([max(number, 1e-6) for number in tokens], dtype=module.q_proj.weight.dtype).log()
        mass = mass + options.slot_terms.mass[head] if options.mass == "learned" else mass
    return {"allowed": allowed, "log_mass": mass, "exact": exact, "reach": reach}


def head_channels(channels, heads):
    """``(M, H·D)`` cut into a ``(M, D)`` for each head: head h owns the channels from h·D to (h + 1)·D."""
    return channels.split(channels.shape[-1] // heads, dim=-1)
