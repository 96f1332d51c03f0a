"""What the student learns: the teacher's hidden states, layer by layer, and the embeddings made of them."""

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import Optimizer
from transformers import PreTrainedModel

from torch_linformer.adaptation.objectives import Embeddings
from torch_linformer.adaptation.teacher import Teacher
from torch_linformer.models.pooling import embed
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.training.trainer import RunTrainer, precision_of

EMBEDDING = 10.0  # weight of 1 - cosine; the error of the hidden states is a share of their variance


def distillation_loss(student: list[Tensor], teacher: list[Tensor], attention_mask: Tensor, pooling: str) -> Tensor:
    r"""How far the student's hidden states are from the teacher's.

    .. math:: \frac{1}{L} \sum_l \frac{\overline{(h_l - t_l)^2}}{\mathrm{var}(t_l)} + 10\,(1 - \cos(e, e_t))

    over the real tokens of ``(B, N, C)`` each, with the embeddings e of the last layer. Of several processes, each
    with as many texts, the mean is that over the texts of all.
    """
    real = attention_mask.bool()
    errors = []
    for own, wanted in zip(student, teacher, strict=True):
        target = wanted[real].float()
        errors.append(F.mse_loss(own[real].float(), target) / _variance(target))
    cosine = (embed(student[-1], attention_mask, pooling) * embed(teacher[-1], attention_mask, pooling)).sum(dim=-1)
    return processes.mean_over_all(torch.stack(errors).mean(), real.sum()) + EMBEDDING * (1 - cosine).mean()


def _variance(states: Tensor) -> Tensor:
    """That of ``(tokens, C)``, over the tokens of all processes."""
    if processes.count() == 1:
        return states.var()
    number = processes.total(states.new_tensor(states.numel()))
    mean = processes.total(states.sum()) / number
    return processes.total((states - mean).square().sum()) / (number - 1)


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
            groups: list[dict[str, Any]] = [{"params": others}]
            if new:
                groups.append({"params": new, "lr": self.slot_learning_rate})
            self.optimizer = kind(groups, **options)
        return self.optimizer

    def compute_loss(self, model: nn.Module, inputs: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        model.eval()  # dropout would be compared as if the student had meant it
        with self.objective.reading(cast(PreTrainedModel, self.model if self.pieces is None else self.pieces), inputs):
            outputs = model(input_ids=ids, attention_mask=mask, output_hidden_states=True)
        with autocast(self.args.device.type, precision_of(self.args)):
            targets = self.teacher.hidden_states(ids, mask)
            of_head = self.objective.loss(outputs, self.teacher.model, targets[-1], inputs)
        of_head = processes.mean_over_all(torch.as_tensor(of_head, device=mask.device), self.objective.items(inputs))
        return distillation_loss(outputs.hidden_states[1:], targets, mask, self.objective.pooling) + of_head

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Scores of the student, which the Trainer asks for between steps."""
        with self.whole() as student:
            found = self.compare(student)
        scores = {f"eval_{name}": value for name, value in found.items()}
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores
