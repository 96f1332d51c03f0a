"""What the student learns: the teacher's hidden states, layer by layer, and the embeddings made of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from transformers import PreTrainedModel

from torch_linformer.adaptation.objectives import Embeddings
from torch_linformer.adaptation.teacher_and_student import Teacher
from torch_linformer.distributed import processes
from torch_linformer.models.pooling import embed
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.opening.devices import autocast
from torch_linformer.training.batches import TOKENS_AT_ONCE, Batch, parts_of, without_padding
from torch_linformer.training.trainer import RunTrainer, precision_of

EMBEDDING = 10.0  # weight of 1 - cosine; the error of the hidden states is a share of their variance


def distillation_loss(
    student: Sequence[Tensor],
    teacher: Sequence[Tensor],
    attention_mask: Tensor,
    pooling: str,
    *,
    variances: Sequence[Tensor] | None = None,
    batch: Tensor | None = None,
) -> Tensor:
    r"""How far the student's hidden states are from the teacher's.

    .. math:: \frac{1}{L} \sum_l \frac{\overline{(h_l - t_l)^2}}{\mathrm{var}(t_l)} + 10\,(1 - \cos(e, e_t))

    over the real tokens of ``(B, N, C)`` each, with the embeddings e of the last layer. Of several processes, each
    with as many texts, the mean is that over the texts of all.

    Args:
        student: hidden states of each layer.
        teacher: those that they are to be.
        attention_mask: ``(B, N)``.
        pooling: that of embeddings.
        variances: of each layer; those of these hidden states if None.
        batch: the mask of the batch of which these texts are a part; the losses of the parts add up to the batch's.
    """
    variances = layer_variances([(teacher, attention_mask)]) if variances is None else variances
    real = attention_mask.bool()
    errors = [
        F.mse_loss(_accurate(own[real]), _accurate(wanted[real])) / variance
        for own, wanted, variance in zip(student, teacher, variances, strict=True)
    ]
    cosine = (embed(student[-1], attention_mask, pooling) * embed(teacher[-1], attention_mask, pooling)).sum(dim=-1)
    share = 1.0 if batch is None else len(attention_mask) / len(batch)
    tokens = None if batch is None else batch.sum()
    hidden = processes.mean_over_all(torch.stack(errors).mean(), real.sum(), tokens)
    return hidden + EMBEDDING * share * (1 - cosine).mean()


def layer_variances(parts: Sequence[tuple[Sequence[Tensor], Tensor]]) -> list[Tensor]:
    """That of the hidden states of each layer, over the real tokens of all parts of a batch and of all processes.

    ``parts`` are hidden states ``(B, N, C)`` of each layer, with their mask.
    """
    masks = [mask.bool() for _, mask in parts]
    layers = zip(*(states for states, _ in parts), strict=True)
    return [_variance([_accurate(x[real]) for x, real in zip(layer, masks, strict=True)]) for layer in layers]


def _variance(parts: list[Tensor]) -> Tensor:
    """That of all of ``(tokens, C)``."""
    if processes.count() == 1 and len(parts) == 1:
        return parts[0].var()
    number = processes.total(parts[0].new_tensor(sum(part.numel() for part in parts)))
    mean = processes.total(torch.stack([part.sum() for part in parts]).sum()) / number
    squares = torch.stack([(part - mean).square().sum() for part in parts]).sum()
    return processes.total(squares) / (number - 1)


def _accurate(states: Tensor) -> Tensor:
    """In float32 at least."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def split_slot_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that choose slots by the input and weigh them, and all others."""
    of_maps = {
        id(p) for module in model.modules() if isinstance(module, DynamicProjection) for p in module.parameters()
    }
    new, others = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        (new if id(parameter) in of_maps or name.endswith("slot_terms.mass") else others).append(parameter)
    return new, others


class DistillationTrainer(RunTrainer):
    """A Trainer whose student learns from a teacher; ``compare`` scores the student on texts for validation."""

    most_at_once = TOKENS_AT_ONCE

    def __init__(
        self,
        *,
        teacher: Teacher,
        objective: Embeddings,
        compare: Callable[[PreTrainedModel], dict[str, float]],
        slot_learning_rate: float,
        **kwargs: Any,
    ) -> None:
        super().__init__(data_collator=objective.collator(training=True), **kwargs)
        self.teacher, self.compare = teacher, compare
        self.objective: Embeddings = objective
        self.slot_learning_rate = slot_learning_rate

    def optimizer_of(self, model: nn.Module | None) -> Optimizer:
        """The Trainer's optimizer, with a learning rate of its own for what chooses the slots: it begins at nothing."""
        if self.optimizer is None:
            kind, options = self.get_optimizer_cls_and_kwargs(self.args)
            new, others = split_slot_parameters(cast(nn.Module, self.model if model is None else model))
            groups: list[dict[str, Any]] = []
            if any(parameter.requires_grad for parameter in others):
                groups.append({"params": others})
            if new:
                groups.append({"params": new, "lr": self.slot_learning_rate})
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        model.eval()  # dropout would be compared as if the student had meant it
        parts = [without_padding(part) for part in parts_of(inputs, self.tokens_at_once)]
        targets = []
        for part in parts:
            self.heed_signals(together=len(parts) > 1)
            with autocast(self.args.device.type, precision_of(self.args)):
                targets.append(self.teacher.hidden_states(part["input_ids"], part["attention_mask"]))
        variances = layer_variances([(x, part["attention_mask"]) for x, part in zip(targets, parts, strict=True)])
        whole = inputs if len(parts) > 1 else None
        return self.sum_in_turn(
            partial(self._loss_of, model, *part, variances=variances, batch=whole)
            for part in zip(parts, targets, strict=True)
        )

    def _loss_of(
        self, model: nn.Module, part: Batch, targets: list[Tensor], *, variances: list[Tensor], batch: Batch | None
    ) -> Tensor:
        """What a part adds to the loss of a batch; its own loss where ``batch`` is None."""
        mask = part["attention_mask"]
        with self.objective.reading(cast(PreTrainedModel, self.model if self.pieces is None else self.pieces), part):
            outputs = model(input_ids=part["input_ids"], attention_mask=mask, output_hidden_states=True)
        with autocast(self.args.device.type, precision_of(self.args)):
            of_head = self.objective.loss(outputs, self.teacher.model, targets[-1], part)
        items, of = self.objective.items(part), None if batch is None else self.objective.items(batch)
        of_head = processes.mean_over_all(torch.as_tensor(of_head, device=mask.device), items, of)
        whole, pooling = None if batch is None else batch["attention_mask"], self.objective.pooling
        loss = of_head + distillation_loss(
            outputs.hidden_states[1:], targets, mask, pooling, variances=variances, batch=whole
        )
        if not loss.requires_grad:  # only slots are trained, and all of these texts are read exactly
            loss = loss + 0.0 * sum(x.sum() for x in model.parameters() if x.requires_grad)
        return loss

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Scores of the student, which the Trainer asks for between steps."""
        with self.whole() as student:
            scores_of_student = self.compare(student)
        scores = {f"eval_{name}": value for name, value in scores_of_student.items()}
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores
