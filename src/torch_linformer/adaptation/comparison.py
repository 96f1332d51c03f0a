"""How near the student is to its teacher, on texts that the distillation has not seen."""

from collections.abc import Callable

import torch
from datasets import Dataset
from torch import Tensor

from torch_linformer.adaptation.objectives import Batch, Embeddings, Outputs
from torch_linformer.adaptation.teacher import Teacher
from torch_linformer.models import LinformerPreTrainedModel
from torch_linformer.opening.devices import autocast


class TeacherComparison:
    """Texts that both have read.

    Args:
        teacher: reads them once, at the first comparison.
        objective: what is compared.
        windows: the texts, tokenised, with ``input_ids``, ``length`` and ``document``.
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
        self.wanted: Outputs | None = None

    def scores(self, student: LinformerPreTrainedModel) -> dict[str, float]:
        """Scores of the student, by the names that ``objective.titles`` explains."""
        was_training = student.training
        student.eval()
        base = student.base_model
        given = self._outputs(
            student, lambda batch: base(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        )
        student.train(was_training)
        return {**self.objective.likeness(given, self._wanted()), **self.objective.quality(given, self.documents)}

    def of_the_original(self) -> dict[str, float]:
        """Those that the original has itself."""
        return self.objective.quality(self._wanted(), self.documents)

    def _wanted(self) -> Outputs:
        if self.wanted is None:
            read = self.teacher.hidden_states
            self.wanted = self._outputs(
                self.teacher.model, lambda batch: read(batch["input_ids"], batch["attention_mask"])[-1]
            )
        return self.wanted

    @torch.no_grad()
    def _outputs(self, model: LinformerPreTrainedModel, hidden_of: Callable[[Batch], Tensor]) -> Outputs:
        parts, device = [], model.device
        # Texts of similar length together, longest first.
        order = torch.argsort(torch.tensor(self.windows["length"][:]), descending=True, stable=True)
        with autocast(device.type, self.precision):
            for numbers in order.split(self.batch_size):
                batch = {name: x.to(device) for name, x in self.collate(self._examples(numbers)).items()}
                parts.append(self.objective.read(model, hidden_of(batch), batch))
        back = torch.argsort(order)
        return {name: torch.cat([part[name].cpu() for part in parts])[back] for name in parts[0]}

    def _examples(self, numbers: Tensor) -> list[dict[str, object]]:
        return [self.windows[number] for number in numbers.tolist()]
