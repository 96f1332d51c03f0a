"""The products of the linear maps."""

from torch import Tensor, nn
from torch.nn.modules import module as registry

from torch_linformer.functional.matmul import linear


def run_linear(module: nn.Module, x: Tensor) -> Tensor:
    """``module(x)``; on a CPU an ordinary linear map is multiplied by the faster library.

    The modules themselves are plain :class:`torch.nn.Linear`, which quantisation and adapters look for by their type.
    What these put in its place, and a map that somebody listens to, is called as it is.
    """
    if x.device.type == "cpu" and type(module) is nn.Linear and not _is_watched(module):
        return linear(x, module.weight, module.bias)
    output: Tensor = module(x)
    return output


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of the module does more than its own ``forward``."""
    hooks = (
        module._forward_pre_hooks,
        module._forward_hooks,
        module._backward_pre_hooks,
        module._backward_hooks,
        registry._global_forward_pre_hooks,
        registry._global_forward_hooks,
        registry._global_backward_pre_hooks,
        registry._global_backward_hooks,
    )
    return any(hooks) or "forward" in module.__dict__
