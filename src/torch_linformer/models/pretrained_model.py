"""What every Linformer model shares: loading, initialization, recording, length."""

from typing import Any, Literal, cast

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.utils.output_capturing import OutputRecorder, maybe_install_capturing_hooks

from torch_linformer.encoders.classes import init_slots
from torch_linformer.models.configuration import LinformerConfig, NotCopied
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.models.stacks import BLOCKS
from torch_linformer.nn.attention import Attention
from torch_linformer.nn.attention.slot_maps import maps_in, resize_maps
from torch_linformer.nn.dynamic_projection import FIRST_SCORE, CausalProjection
from torch_linformer.nn.projection import SequenceProjection


def check_maps(owner: nn.Module, max_len: int, mode: str) -> None:
    """Raise ``ValueError`` where one of the maps to slots in ``owner`` cannot be resized."""
    for module in maps_in(owner):
        module.check_resize(max_len, mode)


class LinformerPreTrainedModel(NotCopied, PreTrainedModel):
    """What every Linformer model shares: loading, initialization, recording, length."""

    config: LinformerConfig
    config_class = LinformerConfig
    base_model_prefix = "linformer"
    # The losses are means over the batch they are given. Without this line the Trainer takes **kwargs for a promise to
    # divide by the size of a whole step, and multiplies by processes and accumulated batches.
    accepts_loss_kwargs = False
    supports_gradient_checkpointing = True
    takes_pieces = False  # each process may hold a piece of the rows (torch_linformer.distributed)
    _no_split_modules = BLOCKS
    # A stack hands its map to every layer: Accelerate would move it, weights and all, to where each layer is.
    _skip_keys_device_placement = ["shared_projection"]  # noqa: RUF012 - transformers reads it from the class
    _supports_sdpa = True
    _can_record_outputs = {  # noqa: RUF012 - transformers reads it from the class
        "hidden_states": GradientCheckpointingLayer,
        "attentions": OutputRecorder(Attention, index=1),
    }

    def post_init(self) -> None:
        super().post_init()  # type: ignore[no-untyped-call]

    def compile(self, *args: Any, **options: Any) -> None:
        """:meth:`torch.nn.Module.compile`, for calls with ``output_hidden_states`` too.

        Transformers installs its hooks in the first such call and holds a lock, where a graph would break.
        """
        maybe_install_capturing_hooks(self)
        super().compile(*args, **options)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)  # type: ignore[no-untyped-call]
        init_slots(module)
        if isinstance(module, SequenceProjection) and module.weight is not None:
            init.normal_(module.weight, mean=0.0, std=module.init_std)
        if isinstance(module, CausalProjection):
            init.normal_(module.address, mean=0.0, std=module.address.shape[1] ** -0.5)
            init.copy_(module.log_time, module.first_log_time().expand_as(module.log_time))
            init.constant_(module.score_bias, FIRST_SCORE)
        if isinstance(module, LexicalHead):
            module.reset_parameters()

    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take inputs up to ``max_len`` tokens; see :meth:`torch_linformer.nn.SequenceProjection.resize_max_len`.

        Learned positions are stretched or kept in the same way; new ones are drawn as at first. A causal model has
        nothing else that a length limits.

        Raises:
            ValueError: for an unknown ``mode``, ``max_len`` below ``k``, or a model that reads any length; the model is
                then as before.
        """
        backbone: Any = self.base_model
        if self.config.backbone_config is not None:
            return cast(None, backbone.resize_max_len(max_len, mode))
        backbone.check_resize(max_len, mode)
        check_maps(backbone, max_len, mode)
        if maps_in(backbone.encoder):
            resize_maps(backbone.encoder, max_len, mode)
        backbone.resize_positions(max_len, mode)
