"""Word, position and token-type embeddings."""

import math

import torch
from torch import Tensor, nn

from torch_linformer.functional.pytorch import runs_in_chunks
from torch_linformer.models.configuration import LinformerConfig
from torch_linformer.nn.chunks import cut, gather


class LinformerEmbeddings(nn.Module):
    """Sum of the embeddings, normalized unless the configuration says otherwise.

    Expects real tokens first: position i is the i-th real token, or the i-th after ``start`` ``(B,)`` earlier ones.
    """

    def __init__(self, config: LinformerConfig) -> None:
        super().__init__()
        width = config.hidden_size
        self.word_embeddings = nn.Embedding(config.vocab_size, width, padding_idx=config.pad_token_id)
        self.position_embeddings = (
            nn.Embedding(config.max_position_embeddings, width) if config.position_embedding == "learned" else None
        )
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, width) if config.type_vocab_size else None
        self.sinusoidal = config.position_embedding == "sinusoidal"
        self.norm = nn.LayerNorm(width, eps=config.layer_norm_eps) if config.embedding_norm else None
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.chunk_size = config.chunk_size

    def forward(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor | None,
        start: Tensor | None = None,
    ) -> Tensor:
        inputs = input_ids if inputs_embeds is None else inputs_embeds
        assert inputs is not None
        length = inputs.shape[1]
        if position_ids is None:
            position_ids = torch.arange(length, device=inputs.device).unsqueeze(0)
            if start is not None:
                position_ids = position_ids + start.unsqueeze(-1)
        if self.chunk_size is None or not runs_in_chunks(self.chunk_size):
            return self._embed(input_ids, inputs_embeds, token_type_ids, position_ids)

        def embed(chunk: slice) -> Tensor:
            ids, embeds, types = (
                None if x is None else x[:, chunk] for x in (input_ids, inputs_embeds, token_type_ids)
            )
            return self._embed(ids, embeds, types, position_ids[:, chunk])

        return gather(((chunk, [embed(chunk)]) for chunk in cut(length, self.chunk_size)), length, dim=1)[0]

    def _embed(
        self,
        input_ids: Tensor | None,
        inputs_embeds: Tensor | None,
        token_type_ids: Tensor | None,
        position_ids: Tensor,
    ) -> Tensor:
        embeddings: Tensor = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if self.position_embeddings is not None:
            embeddings = embeddings + self.position_embeddings(position_ids)
        elif self.sinusoidal:
            embeddings = embeddings + sinusoids(position_ids, embeddings.shape[-1]).to(embeddings.dtype)
        if self.token_type_embeddings is not None:
            if token_type_ids is None:
                token_type_ids = torch.zeros_like(position_ids)
            embeddings = embeddings + self.token_type_embeddings(token_type_ids)
        output: Tensor = self.dropout(embeddings if self.norm is None else self.norm(embeddings))
        return output


def sinusoids(position_ids: Tensor, width: int) -> Tensor:
    r"""``(…, width)``: sin and cos of :math:`p / 10000^{2i / width}` side by side, in float32."""
    half = (width + 1) // 2
    exponents = torch.arange(half, device=position_ids.device, dtype=torch.float32) * (-2 / width)
    angles = position_ids.unsqueeze(-1).float() * torch.exp(exponents * math.log(10000.0))
    return torch.cat([angles.sin(), angles.cos()], dim=-1)[..., :width]
