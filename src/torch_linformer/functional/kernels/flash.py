"""When the operator below SDPA on a CPU computes an attention."""

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from torch_linformer.functional.kernels.graph import is_transformed, is_watched, records_a_graph
from torch_linformer.functional.kernels.implementations import Implementation


def implementation(why_not: Callable[..., str | None]) -> Implementation:
    """It as an implementation, where ``why_not`` has no objection. Counters of operations know only public ones."""

    def why_not_flash(*call: Any) -> str | None:
        if records_a_graph() or is_transformed():
            return "compiled and traced graphs, and transforms of torch.func, take PyTorch's public functions"
        tensors = [x for x in call if isinstance(x, Tensor)]
        if not all(type(x) in (Tensor, nn.Parameter) and x.device.type == "cpu" for x in tensors):
            return "it takes plain tensors on a CPU"
        return why_not(*call)

    needs = "plain tensors on a CPU, of one width; no graph, no torch.func"
    return Implementation("flash", needs, why_not_flash, _pays, is_public=False)


def _pays(*call: Any) -> bool:
    return not records_a_graph() and not is_watched()
