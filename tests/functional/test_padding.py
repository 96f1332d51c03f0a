"""Who is padding, and the order in which the real tokens of a row stand first."""

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_linformer.functional.padding import Padding, zero_padding


@given(mask=st.lists(st.lists(st.booleans(), min_size=5, max_size=5), min_size=1, max_size=4))
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_justifying_keeps_the_order_and_restoring_undoes_it(mask):
    mask = torch.tensor(mask)
    padding = Padding(mask)
    columns = torch.arange(5).expand(mask.shape)
    justified = padding.justify(columns)
    for row in range(mask.shape[0]):
        real = columns[row, ~mask[row]].tolist()
        assert justified[row, : len(real)].tolist() == real
        assert padding.trailing[row].tolist() == [False] * len(real) + [True] * (5 - len(real))
    for shape in ((len(mask), 5, 3), (len(mask), 2, 5, 3)):
        values = torch.randn(shape)
        cleaned = zero_padding(values, mask)
        assert torch.equal(padding.restore(padding.justify(values)), cleaned)
        assert torch.equal(padding.clean(values), cleaned)
        assert torch.equal(padding.justified.justify(padding.justify(values)), padding.justify(values))


def test_what_is_moved_has_a_gradient_where_it_came_from():
    padding = Padding(torch.tensor([[True, False, True, False]]))
    values = torch.tensor([[[float("nan")], [1.0], [float("inf")], [2.0]]], requires_grad=True)
    moved = padding.justify(values)
    assert moved.flatten().tolist() == [1.0, 2.0, 0.0, 0.0]
    (moved * torch.tensor([3.0, 5.0, 7.0, 11.0])[None, :, None]).sum().backward()
    assert values.grad.flatten().tolist() == [0.0, 3.0, 0.0, 5.0]


def test_zero_padding_replaces_and_stops_the_gradient():
    sequence = torch.tensor([[[1.0], [float("nan")]]], requires_grad=True)
    cleaned = zero_padding(sequence, torch.tensor([[False, True]]))
    assert cleaned.tolist() == [[[1.0], [0.0]]]
    cleaned.sum().backward()
    assert sequence.grad.tolist() == [[[1.0], [0.0]]]
    assert zero_padding(sequence, None) is sequence


class Layers(torch.nn.Module):
    """Ask twice what follows from a mask, as the layers of a model do."""

    def forward(self, sequence, mask):
        padding = Padding(mask)
        return padding.restore(padding.justify(sequence)) + padding.restore(2 * padding.justify(sequence))


def test_an_exported_program_works_the_padding_out_once():
    sequence, mask = torch.randn(2, 7, 3), torch.tensor([[0, 1, 0, 0, 1, 0, 0], [0] * 7]).bool()
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("tokens")}
    program = torch.export.export(Layers(), (sequence, mask), dynamic_shapes=(sizes, sizes))
    recorded = [str(node.target) for node in program.graph.nodes]
    assert recorded.count("aten.cumsum.default") == 1 and recorded.count("aten.scatter.src") == 1
    others = torch.randn(3, 5, 3), torch.rand(3, 5) > 0.5  # nothing is kept of the rows that it was recorded with
    torch.testing.assert_close(program.module()(*others), Layers()(*others))
