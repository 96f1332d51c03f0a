"""A linear encoder of transformers below a head of this package, and which of the two kinds of backbones a head has."""

import inspect
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any, Literal, cast

import torch
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutput

from torch_linformer.encoders.classes import LinearConfig, linear_class, linear_or_original
from torch_linformer.encoders.families import OWN_ATTENTION
from torch_linformer.encoders.interface import reads_piece
from torch_linformer.encoders.linearize import with_options
from torch_linformer.encoders.positions import Positions
from torch_linformer.functional.padding import Padding
from torch_linformer.functional.slots import check_length
from torch_linformer.functional.softmax import check_exact_tokens
from torch_linformer.models.arguments import check_rows, known_arguments
from torch_linformer.models.backbone import Inputs, LinformerModel, LinformerPreTrainedModel
from torch_linformer.models.configuration import LinformerConfig, inputs_of
from torch_linformer.models.packed import refuse_packed_rows
from torch_linformer.models.row_windows import windows_of
from torch_linformer.nn.options import check_new_length
from torch_linformer.nn.projection import resize_rows

RECORDED = ("output_hidden_states", "output_attentions")


def backbone_of(config: LinformerConfig) -> "LinformerModel | EncoderBackbone":
    """What a head with this configuration stands on."""
    return LinformerModel(config) if config.backbone_config is None else EncoderBackbone(config)


class EncoderBackbone(LinformerPreTrainedModel):
    """Token ids in, hidden states out, as :class:`LinformerModel`, of a linear encoder of transformers.

    Padding may stand anywhere: real tokens come out as if the row had none, if the encoder takes ``position_ids``,
    which count real tokens. ``body`` is the encoder, without a pooler: those of the heads are their own. It has its
    ordinary attention where ``linformer`` in ``config.backbone_config`` is None.

    Raises:
        ValueError: there is no ``backbone_config``, or the encoder cannot compute its layers again, as
            ``activation_memory="checkpoint"`` asks.
    """

    _can_record_outputs = None  # type: ignore[assignment]  # the encoder records its own

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.backbone_config is None:
            raise ValueError(
                "an EncoderBackbone needs backbone_config; LinformerModel is for configurations without one"
            )
        backbone = cast(LinearConfig, config.backbone_config)
        if backbone.linformer is None:
            self.body: Any = linear_or_original(backbone.to_dict())
        else:
            optional = "add_pooling_layer" in inspect.signature(backbone.encoder_class.__init__).parameters
            kind: Any = linear_class(backbone.encoder_class)
            self.body = kind(backbone, **({"add_pooling_layer": False} if optional else {}))
        self.takes = inputs_of(backbone)
        self.positions = Positions.said_by(backbone)
        if config.read_window is not None and config.read_window > self.positions.longest:
            raise ValueError(
                f"read_window={config.read_window} is more than the {self.positions.longest} tokens that "
                f"{type(self.body).__name__} reads at once"
            )
        self.takes_pieces = (
            config.read_window is None
            and backbone.linformer is not None
            and "position_ids" in self.takes
            and cast(Any, backbone.encoder_class).config_class.model_type not in OWN_ATTENTION
        )
        if config.activation_memory == "checkpoint":
            if not self.body.supports_gradient_checkpointing:
                raise ValueError(f"activation_memory='checkpoint' is not for {type(self.body).__name__}: take 'none'")
            cast(Any, self.body).activation_checkpointing_enable()
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        return cast(nn.Module, self.body.get_input_embeddings())

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.body.set_input_embeddings(value)
        self.body.config.vocab_size = cast(nn.Embedding, value).num_embeddings

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """As :meth:`LinformerModel.forward`, of an encoder that is not causal.

        Types are not read by an encoder that has none, and only an encoder that takes ``position_ids`` and has no
        attention of its own reads a piece of the rows.
        """
        tokens = Inputs(input_ids, token_type_ids, position_ids, inputs_embeds).tokens
        if kwargs.get("past_key_values") is not None:
            raise ValueError("past_key_values needs a causal model: here every token sees those after it too")
        padding, mask, length = None, None, tokens.shape[1]
        reading: AbstractContextManager[None] = nullcontext()
        if isinstance(attention_mask, Padding):
            padding, mask, length = attention_mask, attention_mask.real.long(), attention_mask.length
            reading = reads_piece(attention_mask)
        elif attention_mask is not None:
            padding, mask = Padding(attention_mask == 0), attention_mask
        if self.config.attention != "full":
            check_length(length, self.config.max_position_embeddings)
        refuse_packed_rows(position_ids, attention_mask, "this encoder reads one document per row")
        if padding is not None:
            inputs_embeds = None if inputs_embeds is None else padding.clean(inputs_embeds)
            position_ids = padding.ranks + self.positions.offset if position_ids is None else position_ids
        inputs = {
            "input_ids": input_ids,
            "attention_mask": mask,
            "token_type_ids": token_type_ids,
            "position_ids": position_ids,
            "inputs_embeds": inputs_embeds,
        }
        recorded = {name: kwargs.get(name, getattr(self.config, name)) for name in RECORDED}
        check_rows(kwargs, position_ids)
        windows = windows_of(self.config, tokens, padding)
        if windows is not None:
            if recorded["output_attentions"]:
                window = self.config.read_window
                raise ValueError(f"this encoder reads {window} tokens at once: no attention goes over all {length}")
            inputs = {name: windows.cut(x) for name, x in inputs.items() if x is not None and name != "position_ids"}
            inputs["attention_mask"] = windows.real.long()
        given = {name: x for name, x in inputs.items() if x is not None and name in self.takes}
        record = {name: value for name, value in recorded.items() if value}
        with reading:
            if windows is None:
                outputs = self.body(**given, **record, return_dict=True)
                return BaseModelOutput(outputs.last_hidden_state, outputs.hidden_states, outputs.attentions)
            batches = windows.batches()
            parts = [
                self.body(**{name: x[index, :width] for name, x in given.items()}, **record, return_dict=True)
                for index, width in batches
            ]

        windows = windows.read_in(batches)
        layers = zip(*(part.hidden_states for part in parts), strict=True) if parts[0].hidden_states else ()
        hidden = tuple(windows.join(*states) for states in layers)
        return BaseModelOutput(windows.join(*(part.last_hidden_state for part in parts)), hidden or None)

    @torch.no_grad()
    def resize_max_len(self, max_len: int, mode: Literal["interpolate", "keep"] = "interpolate") -> None:
        """Take inputs up to ``max_len`` tokens; learned positions are stretched, or kept: later ones then repeat those
        of a window.
        """
        check_new_length(max_len, mode, self.config.slots, "k")
        check_exact_tokens(self.config.exact_first, self.config.exact_last, max_len)
        if self.config.read_window is not None:
            self.config.max_position_embeddings = max_len
            return
        known: Any = self.body
        body = with_options(known, replace(known.config.linear_options, max_length=max_len))
        if mode == "interpolate":
            for name in self.positions.tables:
                table = known.get_parameter(name)[self.positions.offset :]
                body.get_parameter(name)[self.positions.offset :] = resize_rows(table, max_len, mode, std=0.0)
        self.body, self.positions = body, Positions.said_by(body.config)
        self.config.backbone_config, self.config.max_position_embeddings = body.config, max_len
