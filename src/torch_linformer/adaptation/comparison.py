"""How near the student is to its teacher, on texts that the distillation has not seen."""

from collections.abc import Callable
from functools import cached_property
from itertools import zip_longest
from typing import Any, cast

import torch
from datasets import Dataset
from torch import Tensor, nn
from transformers import PreTrainedModel

from torch_linformer.adaptation.objectives import Embeddings, Outputs
from torch_linformer.adaptation.teacher import Teacher
from torch_linformer.opening import processes
from torch_linformer.opening.devices import autocast


class TeacherComparison:
    """Texts on which a student is compared with its teacher.

    Args:
        teacher: reads them once, at the first comparison.
        objective: what is compared.
        windows: the texts, tokenized, with ``input_ids``, ``length`` and ``document``.
        documents: the texts as they were read, perhaps with labels.
        batch_size: texts at once.
        precision: of the arithmetic, as it will be used.
    """

    def __init__(
        self,
        teacher: Teacher,
        objective: Embeddings,
        windows: Dataset,
        documents: Dataset,
        batch_size: int,
        precision: str,
    ) -> None:
        self.teacher, self.objective, self.documents = teacher, objective, documents
        self.windows, self.batch_size, self.precision = windows, batch_size, precision
        self.collate = objective.collator(training=False)

    def scores(self, student: PreTrainedModel) -> dict[str, float]:
        """Scores of the student, by the names that ``objective.titles`` explains."""
        was_training = student.training
        cast(nn.Module, student).eval()
        given = self._outputs(student, _last_hidden_states(student))
        student.train(was_training)
        return {**self.objective.likeness(given, self.wanted), **self.objective.quality(given, self.documents)}

    def of_the_original(self) -> dict[str, float]:
        """Scores that the original has by itself."""
        return self.objective.quality(self.wanted, self.documents)

    @cached_property
    def wanted(self) -> Outputs:
        """What the teacher makes of the texts."""
        return self._outputs(self.teacher.model, lambda ids, mask: self.teacher.hidden_states(ids, mask)[-1])

    @torch.no_grad()
    def _outputs(self, model: PreTrainedModel, hidden_of: Callable[[Tensor, Tensor], Tensor]) -> Outputs:
        parts, device = list[Outputs](), model.device
        # Texts of similar length together, longest first.
        order = torch.argsort(torch.tensor(self.windows["length"][:]), descending=True, stable=True)
        with autocast(device.type, self.precision):
            batches = torch.split(order, self.batch_size)
            for numbers in batches[processes.rank() :: processes.count()]:
                batch = self.collate([self.windows[number] for number in numbers.tolist()])
                batch = {name: x.to(device) for name, x in batch.items()}
                hidden = hidden_of(batch["input_ids"], batch["attention_mask"])
                parts.append({name: x.cpu() for name, x in self.objective.read(model, hidden, batch).items()})
        found = [part for turn in zip_longest(*processes.gathered(parts)) for part in turn if part is not None]
        back = torch.argsort(order)
        return {name: torch.cat([part[name] for part in found])[back] for name in found[0]}


def _last_hidden_states(model: PreTrainedModel) -> Callable[[Tensor, Tensor], Tensor]:
    base: Any = model.base_model

    def read(input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden: Tensor = base(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return hidden

    return read
