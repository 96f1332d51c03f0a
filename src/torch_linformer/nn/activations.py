"""The nonlinearity of the position-wise feed-forward."""

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"gelu": F.gelu, "relu": F.relu, "silu": F.silu}


def resolve_activation(activation: str | Activation) -> Activation:
    """The function a name stands for; a callable is taken as it is."""
    if callable(activation):
        return activation
    if activation not in ACTIVATIONS:
        raise ValueError(f"activation must be a callable or one of {', '.join(ACTIVATIONS)}, got {activation!r}")
    return ACTIVATIONS[activation]
