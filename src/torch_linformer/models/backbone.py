"""The Linformer backbone: embeddings, left-justification of padding, encoder."""

from typing import Any, NamedTuple, cast

from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast

from torch_linformer.functional.padding import Padding
from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.functional.slots import check_length
from torch_linformer.functional.softmax import check_exact_tokens
from torch_linformer.models.arguments import CACHE, known_arguments, recording, without_unread
from torch_linformer.models.cache import LinformerCache
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.models.embeddings import LinformerEmbeddings
from torch_linformer.models.packed import SEVERAL, PackedRows, packed_rows
from torch_linformer.models.pretrained_model import LinformerPreTrainedModel
from torch_linformer.models.stacks import build_encoder
from torch_linformer.nn.chunks import has_hooks
from torch_linformer.nn.options import check_new_length
from torch_linformer.nn.projection import resize_rows


class Inputs(NamedTuple):
    """What is embedded: tensors ``(B, N)``, and ``inputs_embeds`` ``(B, N, C)``."""

    input_ids: Tensor | None
    token_type_ids: Tensor | None
    position_ids: Tensor | None
    inputs_embeds: Tensor | None


def put_back(outputs: Any, rows: Padding | PackedRows | None, square: bool) -> Any:
    """Outputs where their tokens stood before they were moved to ``rows``; ``square``: attentions are (N, N)."""
    if rows is None:
        return outputs
    for name, value in outputs.items():
        if isinstance(value, Tensor):
            outputs[name] = rows.restore(value)
        elif isinstance(value, tuple):  # None at the layers that output_hidden_states does not select
            outputs[name] = tuple(None if x is None else rows.restore(x) for x in value)
    if outputs.attentions is not None and square and isinstance(rows, PackedRows):
        outputs["attentions"] = tuple(rows.restore_keys(x) for x in outputs.attentions)
    return outputs


class LinformerBackbone(LinformerPreTrainedModel):
    """Embeddings below a stack that a subclass adds, and the sizes, order and past of what it is given."""

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        self.embeddings = LinformerEmbeddings(config)

    def get_input_embeddings(self) -> nn.Embedding:
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.embeddings.word_embeddings = cast(nn.Embedding, value)

    def _prepare(
        self,
        inputs: Inputs,
        attention_mask: Tensor | Padding | None,
        past_key_values: LinformerCache | None,
        use_cache: bool | None,
        kwargs: dict[str, Any],
    ) -> tuple[Inputs, Padding | None, dict[str, Any], Padding | PackedRows | None]:
        """These arguments of ``forward``, checked: what is embedded, one document per row, the padding of its rows, the
        other arguments, and how tokens were moved to these rows, None if they were not.
        """
        input_ids, _, position_ids, inputs_embeds = inputs
        tokens = input_ids if inputs_embeds is None else inputs_embeds
        if tokens is None or (input_ids is not None and inputs_embeds is not None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        kwargs = without_unread(kwargs, position_ids)
        batch, length = tokens.shape[:2]
        documents = packed_rows(position_ids, batch) if attention_mask is None and length > 1 else None
        if documents is not None:
            length = documents.longest
            if past_key_values is not None or (use_cache and self.config.causal):
                raise ValueError(f"{SEVERAL}, but past_key_values hold one document per row: give use_cache=False")
            use_cache = False
        if isinstance(attention_mask, Padding):  # a piece of the rows
            length, use_cache = attention_mask.length, False
        cache = self._cache(past_key_values, use_cache)
        padding = self._padding(batch, length, attention_mask, cache)
        kwargs.update(past_key_values=cache, return_dict=True)
        # Tokens are moved once for all layers; but what is recorded must lead to the output, so there each layer does.
        stays = padding is None or padding.order is None or any(self._records(kwargs))
        rows = padding if documents is None else documents
        if rows is None or (stays and documents is None):
            return inputs, padding, kwargs, None
        moved = Inputs(*(None if x is None else rows.justify(x) for x in inputs))
        return moved, rows.justified, kwargs, rows

    def _cache(self, past_key_values: LinformerCache | None, use_cache: bool | None) -> LinformerCache | None:
        """The past to go on from, a new one if there is none but one is wanted, or None."""
        if past_key_values is None:
            with_cache = (self.config.use_cache and not self.training) if use_cache is None else use_cache
            if with_cache and self.config.causal and not self._computes_layers_again():
                return LinformerCache(self.config.num_hidden_layers)
            return None
        if not self.config.causal:
            raise ValueError(
                "past_key_values needs a causal model: here every token sees those after it too, and a prefix of keys "
                "and values (prefix tuning) has no place; take prompt tuning or LoRA"
            )
        if self._computes_layers_again():
            raise ValueError("past_key_values with gradient checkpointing: layers computed again would read twice")
        if not isinstance(past_key_values, LinformerCache):
            raise ValueError(
                f"past_key_values must be a LinformerCache, got {type(past_key_values).__name__}: a prefix of keys and "
                "values (prefix tuning) has no place among running sums; take prompt tuning or LoRA"
            )
        return past_key_values

    def _computes_layers_again(self) -> bool:
        return self.training and any(getattr(module, "gradient_checkpointing", False) for module in self.modules())

    def _padding(
        self, batch: int, length: int, attention_mask: Tensor | Padding | None, cache: LinformerCache | None
    ) -> Padding | None:
        """That of the N new columns; raises ``ValueError`` where sizes do not fit."""
        before = 0 if cache is None else cache.get_seq_length()
        if self.config.longest_input is not None:
            check_length(before + length, self.config.longest_input)
        if attention_mask is None or isinstance(attention_mask, Padding):
            return attention_mask
        if attention_mask.shape not in ((batch, length), (batch, before + length)):
            raise ValueError(
                f"attention_mask must have shape (B, N) = ({batch}, {length}), got {tuple(attention_mask.shape)}"
            )
        return read_attention_mask(self.config, attention_mask[:, attention_mask.shape[1] - length :])

    def check_resize(self, max_len: int, mode: str) -> None:
        """Raise ``ValueError`` where the model cannot be made to take inputs up to ``max_len``, before it changes."""
        check_new_length(max_len, mode, self.config.slots, "k")
        if not self.config.causal:
            check_exact_tokens(self.config.exact_first, self.config.exact_last, max_len)
        if self.config.longest_input is None:
            raise ValueError(
                f"nothing to resize: a causal model with position_embedding={self.config.position_embedding!r} reads "
                "inputs of any length"
            )

    def resize_positions(self, max_len: int, mode: str) -> None:
        """Stretch or keep learned positions, and let the configuration say ``max_len``."""
        positions = self.embeddings.position_embeddings
        if positions is not None:
            resized = resize_rows(positions.weight.detach(), max_len, mode, std=self.config.initializer_range)
            positions.weight = nn.Parameter(resized, requires_grad=positions.weight.requires_grad)
            positions.num_embeddings = max_len
        self.config.max_position_embeddings = max_len

    def _embed(self, inputs: Inputs, padding: Padding | None, cache: LinformerCache | None) -> Tensor:
        """The embeddings of rows whose real tokens are counted, wherever they stand."""
        input_ids, token_type_ids, position_ids, inputs_embeds = inputs
        start = None if cache is None else cache.tokens
        if padding is not None:
            inputs_embeds = None if inputs_embeds is None else padding.clean(inputs_embeds)
            if position_ids is None:
                position_ids = padding.ranks if start is None else padding.ranks + start.unsqueeze(-1)
        embedded: Tensor = self.embeddings(input_ids, inputs_embeds, token_type_ids, position_ids, start)
        return embedded

    def _records(self, kwargs: dict[str, Any]) -> tuple[bool, bool]:
        """Whether attention weights and hidden states are recorded."""
        weights, layers = (
            bool(kwargs.get(name, getattr(self.config, name))) for name in ("output_attentions", "output_hidden_states")
        )
        return weights, layers


class LinformerModel(LinformerBackbone):
    """The bare model: token ids in, hidden states out.

    Padding may stand on either side, or in the middle: only ``attention_mask`` tells where it is, and the real
    tokens come out as if the row had none.
    """

    takes_pieces = True

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__(config)
        if config.backbone_config is not None:
            raise ValueError(
                "backbone_config is for heads of rows, tokens and answers: open the folder as one of these, or take "
                "the encoder itself, torch_linformer.linearize"
            )
        self.encoder = build_encoder(config)
        self.post_init()

    @known_arguments()
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | Padding | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: LinformerCache | None = None,
        use_cache: bool | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Run a batch.

        Args:
            input_ids: ``(B, N)`` token ids.
            attention_mask: ``(B, N)``, nonzero at real tokens; None means all are. After a past, columns of the past
                may stand before these N. Or a ``torch_linformer.distributed.SequencePiece``, where this process holds
                only a piece of the rows: ``(B, n)`` of the other arguments, and of the hidden states.
            token_type_ids: ``(B, N)``, 0 by default.
            position_ids: ``(B, N)``; by default each row's real tokens are counted from 0, or go on from the past.
                Rotary positions always do. Without an ``attention_mask``, positions that begin again (0 1 2 0 1: every
                one follows the one before it or is the lowest of its row) part a packed row into documents, and each
                comes out as it does in a row of its own. Any other positions leave a row one document.
            inputs_embeds: ``(B, N, C)`` instead of ``input_ids``.
            past_key_values: what a causal model has read so far; this call adds its input.
            use_cache: return ``past_key_values``; by default a causal model does unless it is training, or rows are
                packed.
            **kwargs: ``output_hidden_states``, ``output_attentions``, ``return_dict``, as usual; boundaries of packed
                documents that transformers' collators write beside ``position_ids`` are not read. What is recorded
                leads to the output, so its gradients can be retained, except copies: all of packed rows, the inner
                hidden states of ``activation_memory="reversible"``, and the attentions of Linformer attention that is
                causal or has a window.

        Raises:
            TypeError: for an argument of another name.
            ValueError: if not exactly one of ``input_ids`` and ``inputs_embeds`` is given, there are more tokens than
                ``config.longest_input``, ``attention_mask`` does not fit, a past is given to a model that is not
                causal, or packed rows are to be kept in one.
            RuntimeError: for packed rows in a compiled or exported graph, which cannot look for them.
        """
        inputs = Inputs(input_ids, token_type_ids, position_ids, inputs_embeds)
        inputs, padding, options, rows = self._prepare(inputs, attention_mask, past_key_values, use_cache, kwargs)
        outputs = self._run(inputs, padding, **options)
        return cast(BaseModelOutputWithPast, put_back(outputs, rows, self.config.attention == "full"))

    @recording
    def _run(
        self, inputs: Inputs, padding: Padding | None, past_key_values: LinformerCache | None, **kwargs: Any
    ) -> BaseModelOutputWithPast:
        need_weights, need_layers = self._records(kwargs)
        hidden = self.encoder(
            self._embed(inputs, padding, past_key_values),
            src_key_padding_mask=padding,
            need_weights=need_weights,
            need_layers=need_layers,
            # In chunks the embeddings are a tensor of their own, whatever was given.
            overwrite=runs_in_chunks(self.config.chunk_size) and not need_layers and not has_hooks(self.embeddings),
            pasts=None if past_key_values is None else past_key_values.pasts,
        )
        if past_key_values is not None:
            past_key_values.add_columns(hidden.shape[1])
        return BaseModelOutputWithPast(last_hidden_state=hidden, **cast(Any, {CACHE: past_key_values}))


def read_attention_mask(config: LinformerConfig, attention_mask: Tensor) -> Padding:
    """The padding, and the order of the real tokens where the attention asks for one."""
    mask = attention_mask == 0
    return Padding(mask, in_order=config.attention == "full")
