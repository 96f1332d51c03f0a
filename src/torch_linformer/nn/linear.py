"""The linear map of every layer."""

from torch import Tensor, nn

from torch_linformer.functional.matmul import linear


class Linear(nn.Linear):
    """:class:`torch.nn.Linear`, multiplied by the faster library; see :mod:`torch_linformer.functional.matmul`."""

    def forward(self, input: Tensor) -> Tensor:
        return linear(input, self.weight, self.bias)
