"""What stands on an encoder of transformers: which head a model has, and its logits from given hidden states."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Literal, cast

import torch
import transformers
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPooling

from torch_linformer.encoders.classes import LinearEncoder, opened_by

Head = Literal["masked words", "rows", "tokens", "answers", "choices", "none"]
AUTO_OF_HEAD: dict[Head, Any] = {
    "masked words": transformers.AutoModelForMaskedLM,
    "rows": transformers.AutoModelForSequenceClassification,
    "tokens": transformers.AutoModelForTokenClassification,
    "answers": transformers.AutoModelForQuestionAnswering,
    "choices": transformers.AutoModelForMultipleChoice,
}


def head_of(model: PreTrainedModel) -> Head:
    """The head of a model of transformers, linear or not."""
    original = type(model).__mro__[2] if isinstance(model, LinearEncoder) else type(model)
    config_class = cast(Any, original).config_class
    for head, auto in AUTO_OF_HEAD.items():
        if opened_by(auto, config_class) is original:
            return head
    return "none"


def head_logits(model: PreTrainedModel, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """The logits that a model's head makes of last hidden states ``(B, N, C)``, or of single ones ``(n, C)``."""
    rows = hidden if hidden.dim() == 3 else hidden.unsqueeze(0)
    base: Any = model.base_model
    with _replaced_forward(base, BaseModelOutputWithPooling(rows, _pooled(base, rows))):
        logits: Tensor = model(inputs_embeds=rows, attention_mask=attention_mask).logits
    return logits if hidden.dim() == 3 else logits.squeeze(0)


@contextmanager
def predicts_at(model: PreTrainedModel, chosen: Tensor) -> Iterator[None]:
    """Meanwhile the head of a model reads only the positions ``chosen``, bool ``(B, N)``: its logits are ``(1, n, V)``.

    Of a masked language model's step most of the work would be logits that its loss ignores.
    """

    def choose(module: nn.Module, args: Any, outputs: Any) -> Any:
        outputs["last_hidden_state"] = outputs["last_hidden_state"][chosen].unsqueeze(0)
        return outputs

    hook = cast(nn.Module, model.base_model).register_forward_hook(choose)
    try:
        yield
    finally:
        hook.remove()


def _pooled(base: Any, hidden: Tensor) -> Tensor | None:
    """What the pooler of a base model makes of its last hidden states, if it has one."""
    pooler = getattr(base, "pooler", None)
    if pooler is None:
        return None
    if isinstance(pooler, nn.Linear):  # ALBERT's, whose activation stands beside it
        return cast(Tensor, base.pooler_activation(pooler(hidden[:, 0])))
    return cast(Tensor, pooler(hidden))


@contextmanager
def _replaced_forward(base: Any, outputs: Any) -> Iterator[None]:
    base.forward = lambda *args, **kwargs: outputs
    try:
        yield
    finally:
        del base.forward
