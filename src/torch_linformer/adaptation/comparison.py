"""How near the student is to its teacher on texts that it has not seen, and whether its slots earn what they cost."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import zip_longest
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.adaptation.distillation import Teacher
from torch_linformer.adaptation.objectives import Embeddings, Outputs
from torch_linformer.distributed import processes
from torch_linformer.opening.devices import autocast
from torch_linformer.training.batches import TOKENS_AT_ONCE
from torch_linformer.training.step_costs import Cost, StepCost

GROUPS = 20  # of texts, each left out once, for the error of a difference
ERRORS = 2  # standard errors from which a difference counts
WORTHWHILE = 1.1  # times the distance (1 - cosine) without slots: that of many texts differs by less beyond its error


class Gain(NamedTuple):
    """How much higher one score is than another on the same texts, and the standard error of that."""

    difference: float
    error: float

    def __str__(self) -> str:
        return f"{self.difference:+.3f} ± {self.error:.3f}"


@dataclass(eq=False)
class TeacherComparison:
    """Texts, tokenized and as read, on which a student is compared with its teacher, which reads them once."""

    teacher: Teacher
    objective: Embeddings
    windows: Dataset
    documents: Dataset
    batch_size: int
    precision: str
    before_batch: Callable[[], None] = lambda: None

    def scores(self, student: PreTrainedModel) -> dict[str, float]:
        return self.scores_of(self.read(student))

    def read(self, student: PreTrainedModel) -> Outputs:
        was_training, base = student.training, cast(Any, student.base_model)
        cast(nn.Module, student).eval()
        outputs = self._outputs(student, lambda ids, mask: base(input_ids=ids, attention_mask=mask).last_hidden_state)
        student.train(was_training)
        return outputs

    @cached_property
    def wanted(self) -> Outputs:
        """What the teacher makes of the texts."""
        return self._outputs(self.teacher.model, lambda ids, mask: self.teacher.hidden_states(ids, mask)[-1])

    def scores_of(self, outputs: Outputs, rows: np.ndarray | None = None) -> dict[str, float]:
        """Scores of what :meth:`read` gave, of some of the texts or of all."""
        wanted, documents = self.wanted, self.documents
        if rows is not None:
            numbers, documents = torch.from_numpy(rows), documents.select(rows)
            outputs, wanted = ({name: x[numbers] for name, x in side.items()} for side in (outputs, wanted))
        return {**self.objective.likeness(outputs, wanted), **self.objective.quality(outputs, documents)}

    def of_the_original(self) -> dict[str, float]:
        """Scores that the original has by itself."""
        return self.objective.quality(self.wanted, self.documents)

    def gains(self, outputs: Outputs, others: Outputs) -> dict[str, Gain]:
        r"""How much higher each score of ``outputs`` is than that of ``others``.

        .. math:: \mathrm{se}^2 = \frac{G-1}{G} \sum_g (d_g - \bar d)^2

        is the jackknife's error, with the differences d_g of the scores without group g of the G groups of texts: it
        holds for scores that are no means over texts, such as correlations (Efron and Stein 1981).
        """

        def differences(rows: np.ndarray) -> dict[str, float]:
            ours, theirs = (self.scores_of(side, rows) for side in (outputs, others))
            return {name: ours[name] - theirs[name] for name in ours}

        numbers = np.random.default_rng(0).permutation(len(self.documents))
        groups = np.array_split(numbers, min(GROUPS, len(numbers)))
        without = [differences(np.setdiff1d(numbers, group)) for group in groups]
        return {
            name: Gain(difference, float(np.sqrt((len(groups) - 1) * np.var([gain[name] for gain in without]))))
            for name, difference in differences(np.sort(numbers)).items()
        }

    @torch.no_grad()
    def _outputs(self, model: PreTrainedModel, hidden_of: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
        parts, device, collate = list[Outputs](), model.device, self.objective.collator(training=False)
        lengths = torch.tensor(self.windows["length"][:])
        order = torch.argsort(lengths, descending=True, stable=True)  # of similar length together, longest first
        batches = torch.split(order, max(1, min(self.batch_size, TOKENS_AT_ONCE // int(lengths.max()))))
        with autocast(device.type, self.precision):
            for numbers in batches[processes.rank() :: processes.count()]:
                self.before_batch()
                batch = collate([self.windows[number] for number in numbers.tolist()])
                batch = {name: x.to(device) for name, x in batch.items()}
                hidden = hidden_of(batch["input_ids"], batch["attention_mask"])
                parts.append({name: x.cpu() for name, x in self.objective.read(model, hidden, batch).items()})
        rows = [part for turn in zip_longest(*processes.gathered(parts)) for part in turn if part is not None]
        back = torch.argsort(order)
        return {name: torch.cat([part[name] for part in rows])[back] for name in rows[0]}


@dataclass(frozen=True)
class WithoutSlots:
    """The trained model with its slots taken out: its scores, and what the slots add to each.

    Costs are of a text of full length; None where they were not measured.
    """

    scores: dict[str, float]
    gains: dict[str, Gain]
    cost: Cost | None = None
    cost_with_slots: Cost | None = None


def verdict_on_slots(
    k: object, titles: Mapping[str, str], lower_is_better: frozenset[str], alone: WithoutSlots | None
) -> str:
    """What the slots add, to which scores, and what they take; ``alone`` is None where a model has nothing else."""
    if k == 0:
        return "There are no slots: each token attends to the window and the special tokens only."
    if alone is None:
        return ""
    judged: dict[str, list[str]] = {"better": [], "worse": [], "small": [], "even": []}
    for name in titles:
        if name in alone.gains:
            judged[_judge(name, alone, -1 if name in lower_is_better else 1)].append(
                f"{titles[name]} {alone.gains[name]}"
            )
    better, worse, small, even = map(", ".join, judged.values())
    if better and worse:
        verdict = f"Whether the slots earn their cost depends on the score. They help: {better}. They harm: {worse}."
    elif better:
        verdict = f"The slots earn their cost. They add: {better}."
    else:
        verdict = "The slots do not earn their cost." + (f" They harm: {worse}." if worse else "")
    verdict += f" A gain too small to count: {small}." if small else ""
    verdict += f" Slots did not help measurably: {even}." if even else ""
    if isinstance(alone.cost, StepCost) and isinstance(alone.cost_with_slots, StepCost):
        share = max(0.0, 1 - alone.cost_with_slots.tokens_per_second / alone.cost.tokens_per_second)
        verdict += f" They take {f'{share:.0%}' if share else 'no measurable part'} of a forward pass."
    return verdict if better else f"{verdict} --k 0 distills a model without them."


def _judge(name: str, alone: WithoutSlots, sign: int) -> str:
    """Whether slots make a score better, worse, or neither, measurably; ``sign`` is that of a better one."""
    gain = alone.gains[name]
    if abs(gain.difference) <= ERRORS * gain.error:
        return "even"
    if gain.difference * sign < 0:
        return "worse"
    distance = 1 - alone.scores[name]
    small = name == "cosine" and distance < WORTHWHILE * (distance - gain.difference)
    return "small" if small else "better"
