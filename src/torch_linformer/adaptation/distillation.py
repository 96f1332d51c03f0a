"""What the student learns from its teacher: hidden states, layer by layer, and the embeddings made of them."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence
from torch.optim import Optimizer
from transformers import PreTrainedModel

from torch_linformer.adaptation.objectives import Embeddings
from torch_linformer.distributed import processes
from torch_linformer.models.pooling import embed
from torch_linformer.nn.dynamic_projection import DynamicProjection
from torch_linformer.opening.devices import autocast
from torch_linformer.training.batches import TOKENS_AT_ONCE, Batch, parts_of, without_padding
from torch_linformer.training.trainer import RunTrainer, precision_of

EMBEDDING = 10.0  # weight of 1 - cosine; the error of the hidden states is a share of their variance


class Teacher:
    """Hidden states of the original encoder for texts of any length.

    A text longer than the ``longest`` that the original reads at once goes through it as windows, each with the special
    tokens ``before`` and ``after`` it, of which the next one reads the share ``shared`` too. A token's hidden states
    come from the window in which it is farthest from the ends; those of the special tokens are means over the windows.
    """

    def __init__(self, model: PreTrainedModel, longest: int, before: int, after: int, shared: float = 0.5) -> None:
        self.model = model
        cast(nn.Module, model).requires_grad_(False).eval()
        self.encoder: Any = model.base_model
        self.longest, self.before, self.after, self.shared = longest, before, after, shared

    @torch.no_grad()
    def hidden_states(self, input_ids: Tensor, attention_mask: Tensor) -> list[Tensor]:
        """``(B, N, C)`` of each layer, of rows whose padding follows the text."""
        if input_ids.shape[1] <= self.longest:
            outputs = self.encoder(input_ids=input_ids, attention_mask=attention_mask, output_hidden_states=True)
            return list(outputs.hidden_states[1:])
        windows = self._windows(attention_mask.sum(dim=1).tolist())
        rows, columns, weights, mask = (x.to(input_ids.device) for x in windows)
        outputs = self.encoder(input_ids=input_ids[rows, columns], attention_mask=mask, output_hidden_states=True)
        shape = (*input_ids.shape, outputs.last_hidden_state.shape[-1])
        return [
            hidden.new_zeros(shape).index_put_((rows, columns), hidden * weights.to(hidden.dtype), accumulate=True)
            for hidden in outputs.hidden_states[1:]
        ]

    def _windows(self, lengths: list[int]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The W windows of L tokens into which rows of these lengths are cut.

        Their rows ``(W, 1)``; and of each token the column ``(W, L)``, the weight of its hidden states ``(W, L, 1)``
        and the mask ``(W, L)``.
        """
        before, after = self.before, self.after
        room = self.longest - before - after
        rows, columns, weights = [], [], []
        for row, length in enumerate(lengths):
            text = torch.arange(length - before - after)
            last, step = max(0, len(text) - room), max(1, int(room * (1 - self.shared)))
            starts = torch.tensor([*range(0, last, step), last] if self.shared else [*range(0, last + room, room)])
            distance = torch.minimum(text - starts[:, None], starts[:, None] + room - 1 - text)
            owner = distance.argmax(dim=0)
            for number, start in enumerate(starts.tolist()):
                inside = text[start : start + room]
                rows.append(row)
                columns.append(torch.cat([torch.arange(before), before + inside, torch.arange(length - after, length)]))
                share = torch.ones(len(columns[-1])) / len(starts)
                share[before : before + len(inside)] = (owner[inside] == number).float()
                weights.append(share)
        mask = [torch.ones_like(values) for values in columns]
        padded = [pad_sequence(values, batch_first=True) for values in (columns, weights, mask)]
        return torch.tensor(rows).unsqueeze(-1), padded[0], padded[1].unsqueeze(-1), padded[2]


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

    ``variances`` are those of each layer of ``teacher`` if None; ``batch`` is the mask of the batch of which these
    texts are a part: the losses of the parts add up to the batch's.
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
    variances = []
    for layer in zip(*(states for states, _ in parts), strict=True):
        values = [_accurate(x[mask.bool()]) for x, (_, mask) in zip(layer, parts, strict=True)]
        number = processes.total(values[0].new_tensor(sum(part.numel() for part in values)))
        mean = processes.total(torch.stack([part.sum() for part in values]).sum()) / number
        squares = torch.stack([(part - mean).square().sum() for part in values]).sum()
        variances.append(processes.total(squares) / (number - 1))
    return variances


def _accurate(states: Tensor) -> Tensor:
    """In float32 at least."""
    return states.to(torch.promote_types(states.dtype, torch.float32))


def split_slot_parameters(model: nn.Module) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """The parameters that choose slots by the input and weigh them, and all others."""
    maps = [module for module in model.modules() if isinstance(module, DynamicProjection)]
    of_maps = {id(parameter) for module in maps for parameter in module.parameters()}
    slots, others = list[nn.Parameter](), list[nn.Parameter]()
    for name, parameter in model.named_parameters():
        (slots if id(parameter) in of_maps or name.endswith("slot_terms.mass") else others).append(parameter)
    return slots, others


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
            slots, others = split_slot_parameters(cast(nn.Module, self.model if model is None else model))
            groups: list[dict[str, Any]] = []
            if any(parameter.requires_grad for parameter in others):
                groups.append({"params": others})
            if slots:
                groups.append({"params": slots, "lr": self.slot_learning_rate})
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
            scores = {f"eval_{name}": value for name, value in self.compare(student).items()}
        self.log(scores)
        self.control = self.callback_handler.on_evaluate(self.args, self.state, self.control, scores)
        return scores
