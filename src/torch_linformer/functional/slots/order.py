"""The order of two products, which changes nothing but the cost: channels first, or positions first."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch_linformer.functional.kernels.graph import records_a_graph
from torch_linformer.functional.kernels.implementations import Implementation, Operation, choose, register


class SlotMultiplications(NamedTuple):
    """Multiplications, for one row of a batch, that the keys and values of all slots take in either order.

    Attributes:
        compress_first: ``(Eᵀ X) W``.
        project_last: ``Eᵀ (X W)``.
    """

    compress_first: int
    project_last: int


class SlotProducts(NamedTuple):
    """What the products of slots and of channels consist of.

    Attributes:
        slots: K that M positions reach, as a function of M.
        widths: inputs and outputs of each linear map W: those of the keys and of the values.
        slots_of_position: slots that one position enters, K for a dense E.
        one_compressed: one ``Eᵀ X`` serves keys and values.
        has_positions: ``X W`` is needed anyway, for a window.
    """

    slots: Callable[[int], int]
    widths: Sequence[tuple[int, int]]
    slots_of_position: int
    one_compressed: bool
    has_positions: bool = False


def count_multiplications(length: int, products: SlotProducts) -> SlotMultiplications:
    """Count both orders for M positions."""
    slots, each_position = products.slots(length), products.slots_of_position
    maps = sum(width_in * width_out for width_in, width_out in products.widths)
    width_in, width_out = (sum(sizes) for sizes in zip(*products.widths, strict=True))
    compressed = products.widths[0][0] if products.one_compressed else width_in
    return SlotMultiplications(
        compress_first=length * each_position * compressed + slots * maps,
        project_last=length * each_position * width_out + (0 if products.has_positions else length * maps),
    )


def _compressing_pays(length: int, products: SlotProducts) -> bool:
    counted = count_multiplications(length, products)
    return counted.compress_first < counted.project_last


ORDER = register(
    Operation(
        "order of products",
        (Implementation("compress first", pays=_compressing_pays), Implementation("project first")),
        is_plan=True,
    )
)


def compresses_first(length: int, max_len: int, products: SlotProducts) -> bool:
    """Whether the inputs are compressed before their channels are mixed.

    A compiled graph serves many lengths, and deciding on the actual one would tie it to that: it decides on
    ``max_len``.
    """
    return choose(ORDER, max_len if records_a_graph() else length, products) == "compress first"
