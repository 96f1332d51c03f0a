"""What the order of the products costs: slots of the inputs first, or keys and values of all positions first."""

from collections.abc import Sequence
from typing import NamedTuple


class SlotMultiplications(NamedTuple):
    """Multiplications, for one row of a batch, that the keys and values of all slots take in either order.

    Attributes:
        compress_first: ``(Eᵀ X) W``.
        project_last: ``Eᵀ (X W)``.
    """

    compress_first: int
    project_last: int


def count_multiplications(
    length: int,
    slots: int,
    widths: Sequence[tuple[int, int]],
    *,
    slots_of_position: int,
    one_compressed: bool,
    has_positions: bool = False,
) -> SlotMultiplications:
    """Count both orders for M positions and K slots.

    Args:
        length: positions M.
        slots: slots K that M positions reach.
        widths: inputs and outputs of each linear map W: those of the keys and of the values.
        slots_of_position: slots that one position enters, K for a dense E.
        one_compressed: one ``Eᵀ X`` serves keys and values.
        has_positions: ``X W`` is needed anyway, for a window.
    """
    maps = sum(width_in * width_out for width_in, width_out in widths)
    width_in, width_out = (sum(sizes) for sizes in zip(*widths, strict=True))
    compressed = widths[0][0] if one_compressed else width_in
    return SlotMultiplications(
        compress_first=length * slots_of_position * compressed + slots * maps,
        project_last=length * slots_of_position * width_out + (0 if has_positions else length * maps),
    )
