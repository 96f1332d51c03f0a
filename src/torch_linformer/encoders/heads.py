"""What stands on an encoder of transformers: which head a model has, and its logits from given hidden states."""

import inspect
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, cast

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
    return head_of_class(model.original if isinstance(model, LinearEncoder) else type(model))


def head_of_class(kind: Any) -> Head:
    """The head of a class of transformers: that of the Auto class that opens it."""
    return next((head for head, auto in AUTO_OF_HEAD.items() if opened_by(auto, kind.config_class) is kind), "none")


def has_token_types(model: PreTrainedModel) -> bool:
    """Whether a model, of transformers or ours, tells tokens apart by their type."""
    reads = inspect.signature(model.base_model.forward).parameters
    return "token_type_ids" in reads and getattr(model.config, "type_vocab_size", 0) > 1


def head_logits(model: PreTrainedModel, hidden: Tensor, attention_mask: Tensor | None = None) -> Tensor:
    """The logits that a model's head makes of last hidden states ``(B, N, C)``, or of single ones ``(n, C)``."""
    rows, base = hidden if hidden.dim() == 3 else hidden.unsqueeze(0), cast(Any, model.base_model)
    pooler, pooled = getattr(base, "pooler", None), None
    if isinstance(pooler, nn.Linear):  # ALBERT's, whose activation stands beside it
        pooled = base.pooler_activation(pooler(rows[:, 0]))
    elif pooler is not None:
        pooled = pooler(rows)
    with _base_replaced(model, _Base(lambda *args, **kwargs: BaseModelOutputWithPooling(rows, pooled))):
        logits: Tensor = cast(Any, model)(inputs_embeds=rows, attention_mask=attention_mask).logits
    return logits if hidden.dim() == 3 else logits.squeeze(0)


def predicts_at(model: PreTrainedModel, chosen: Tensor) -> AbstractContextManager[None]:
    """Meanwhile the head of a model reads only the positions ``chosen``, bool ``(B, N)``: its logits are ``(1, n, V)``.

    Of a masked language model's step most of the work would be logits that its loss ignores.
    """
    base = model.base_model

    def compute(*args: Any, **kwargs: Any) -> Any:
        outputs = base(*args, **kwargs)
        outputs["last_hidden_state"] = outputs["last_hidden_state"][chosen].unsqueeze(0)
        return outputs

    return _base_replaced(model, _Base(compute, base))


class _Base(nn.Module):
    """In the place of a base model: what a function computes, by the modules of another."""

    def __init__(self, compute: Callable[..., Any], base: nn.Module | None = None) -> None:
        super().__init__()
        self.compute, self.base = compute, base

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.compute(*args, **kwargs)


@contextmanager
def _base_replaced(model: Any, other: nn.Module) -> Iterator[None]:
    """Another module in the place of the base model: what is compiled, wrapped or in pieces stays as it is."""
    name, base = model.base_model_prefix, model.base_model
    setattr(model, name, other)
    try:
        yield
    finally:
        setattr(model, name, base)
