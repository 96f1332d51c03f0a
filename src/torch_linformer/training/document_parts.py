"""What a run for whole documents learns: words, a reader or a trained network, weighed and put into the model."""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import torch
from datasets import Dataset, concatenate_datasets
from torch import Tensor

from torch_linformer.data.parts import GROUP
from torch_linformer.data.windows import DocumentEncoder, document_means
from torch_linformer.distributed import processes
from torch_linformer.models import LinformerForSequenceClassification
from torch_linformer.models.lexical_head import LexicalHead
from torch_linformer.reporting.tables import format_count, format_score, score_title
from torch_linformer.tasks.baselines import sklearn_baselines
from torch_linformer.tasks.metrics import paired_difference
from torch_linformer.tasks.task import Task
from torch_linformer.tasks.whole_documents import Classification, MultiLabel, WholeDocuments, multiply
from torch_linformer.tasks.word_features import SHORT, WordCounts
from torch_linformer.training.kept_reading import KeptReading, pooled_states
from torch_linformer.training.prepared import Start
from torch_linformer.training.task_trainers import DocumentTrainer
from torch_linformer.training.training_screen import TrainingScreen
from torch_linformer.training.words_and_reader import OF_WORDS, LinearPart, Targets, fit_reader, fit_words, weigh

NETWORK, SUM = "the network", "both"


@dataclass(frozen=True)
class Weighed:
    """The parts of a model for whole documents, as they are added in it.

    Attributes:
        parts: times their weights.
        shipped: the name of what the model gives: of a part alone, or of both.
        scores: every score of the test documents, by the name of each part alone, and of both.
        judged: how many documents have chosen the weights and what is shipped, and
        tested: how many are scored.
    """

    parts: Sequence[LinearPart]
    shipped: str
    scores: dict[str, dict[str, Any]]
    judged: int
    tested: int

    def describe(self) -> str:
        """How each part was fitted, and what it weighs, as a line."""
        spreads = [float(part.judged.double().std()) for part in self.parts]
        shares = [f"{spread / max(sum(spreads), 1e-12):.0%}" for spread in spreads]
        each = [f"{part.name} {share} ({part.chosen})" for part, share in zip(self.parts, shares, strict=True)]
        several = len(self.parts) > 1 and self.shipped != SUM
        alone = f"; both are not clearly better there than {self.shipped} alone" if several else ""
        return f"weighed on {self.judged:,} documents, each by fits that have not seen it: {', '.join(each)}{alone}"


class DocumentParts:
    """Fits the parts of a model for whole documents to all documents that are not held out.

    Before any step these are the words, and the reader where the encoder ``reads`` already; a model that is to be
    trained gets its head.
    """

    def __init__(self, start: Start, screen: TrainingScreen, *, reads: bool) -> None:
        self.start, self.settings, self.data, self.screen = start, start.settings, start.data, screen
        self.model = cast(LinformerForSequenceClassification, start.model)
        self.task = cast(WholeDocuments, start.data.task)
        self.states: tuple[Tensor, Tensor] | None = None
        self.documents = concatenate_datasets([self.data.splits.train, self.data.splits.validation])
        self.targets = self._targets(self.documents)
        self.frozen = [self.words] if self.settings.with_lexical_part else []
        self.before: dict[str, Tensor] | None = None
        if reads:
            self.frozen.append(self.reader())
        # A head of random weights would spoil what is below it, and one that knows validation would win.
        if reads and not self.settings.frozen:
            documents, (states, _) = self.data.splits.train, cast(tuple[Tensor, Tensor], self.states)
            of_train = self._targets(documents)
            self._put(weigh([fit_reader(states[: len(documents)], states[:1], of_train)], of_train))
            self.before = {name: tensor.clone() for name, tensor in self.model.state_dict().items()}

    def _targets(self, documents: Dataset) -> Targets:
        """What is known of some documents, and the folds of them."""
        config, known = self.model.config, self.task.known(documents)
        one_label = config.problem_type == "single_label_classification"
        return Targets(
            torch.tensor(known) if one_label else torch.tensor(known, dtype=torch.float32),
            len(config.label_names),
            self.model.loss_of,
            groups=documents[GROUP][:] if GROUP in documents.column_names else None,
            balanced=self.settings.class_weights == "balanced",
            seed=self.settings.seed,
        )

    def weighed(self, trainer: DocumentTrainer | None) -> Weighed:
        """The parts, in the model.

        Args:
            trainer: of the trained network, whose classifier is a part instead of the reader's if it is better on the
                validation documents; None where no step was made.
        """
        frozen = self.frozen
        if trainer is None:
            return self._weighed(frozen, self.targets)
        words = [part for part in frozen if part.name == OF_WORDS]
        network = self._network(trainer)
        rows = np.flatnonzero(self.targets.judged >= len(self.data.splits.train))  # no step has seen these
        unseen = self.targets.some(rows)
        parts, targets = [*(replace(part, judged=part.judged[rows]) for part in words), network], unseen
        if self.before is not None:
            untrained = unseen.loss(*(part.judged[rows] for part in frozen))
            trained = unseen.loss(*(part.judged for part in parts))
            fate = "kept" if trained < untrained else "not kept"
            self.screen.say(
                f"the trained encoder is {fate}: loss on validation {trained:.4f}, of the encoder as it was "
                f"{untrained:.4f}"
            )
            if trained >= untrained:
                self.model.load_state_dict(self.before)
                parts, targets = frozen, self.targets
        weighed = self._weighed(parts, targets)
        if self.settings.overflow == "windows":  # a model averages the answers to windows, not their logits
            weighed.scores[weighed.shipped] = trainer.scores_of(self.data.test)
        return weighed

    @cached_property
    def words(self) -> LinearPart:
        """The part of the words of whole documents."""
        texts, tokenizer = self.documents["text"][:], self.task.tokenizer
        self.screen.say("fitting words, by cross-validation")

        def fitted() -> LinearPart:
            if self.settings.overflow == "windows":
                ids = DocumentEncoder(tokenizer, self.settings.length).ids([*texts, *self.data.splits.test["text"][:]])
            else:
                parts = self.data.train, self.data.validation, self.data.test
                windows = [cast(Dataset, part.windows) for part in parts]
                columns = [(part["whole_ids"][:], part["input_ids"][:]) for part in windows]
                ids = [whole or row for part in columns for whole, row in zip(*part, strict=True)]
            short = sum(map(len, texts)) <= SHORT * len(texts)
            counts = WordCounts(tokenizer, self.model.config.vocab_size, ids, len(texts), characters=short)
            return fit_words(counts, self.targets)

        return processes.on_main(fitted)

    def reader(self, most: int | None = None) -> LinearPart:
        """The part of what the encoder makes of documents, or of the first tokens of each, with its last marks."""
        last = self.model.config.exact_last

        def read(part: Any) -> Tensor:
            rows = part.windows["input_ids"][:]
            if most is not None:
                rows = [row if len(row) <= most else [*row[: most - last], *row[len(row) - last :]] for row in rows]
            states = torch.cat(self._pooled.of(rows, self.screen)).numpy()
            return torch.from_numpy(document_means(states, part.windows)).float()

        of_known = torch.cat([read(part) for part in (self.data.train, self.data.validation)])
        of_test = read(self.data.test)
        self.states = self.states or (of_known, of_test)
        return fit_reader(of_known, of_test, self.targets)

    @cached_property
    def _pooled(self) -> KeptReading:
        """What the encoder makes of rows before anything is trained."""
        model, pad_token_id = cast(Any, self.model).to(self.start.device).eval(), self.task.tokenizer.pad_token_id
        return pooled_states(model, cast(int, pad_token_id), self.start.device, self.start.precision)

    def baselines(self) -> dict[str, dict[str, Any]]:
        """Scores of words and of the reader's first window alone, where the model has more, and of scikit-learn."""
        task, window = self.task, self.model.config.read_window
        rows: dict[str, dict[str, Any]] = {}
        if not self.settings.with_lexical_part:
            rows[OF_WORDS] = self._scores(weigh([self.words], self.targets), self.targets)
        reads = self.settings.frozen and window is not None  # an encoder that was trained is another reader
        if reads and max(self.data.test.windows["length"]) > cast(int, window):
            rows["first_window"] = self._scores(weigh([self.reader(window)], self.targets), self.targets)
        if isinstance(task, Classification):
            texts = [part["text"][:] for part in (self.documents, self.data.splits.test)]
            states = None if self.states is None else [state.numpy() for state in self.states]
            for name, predicted in sklearn_baselines(texts, task.known(self.documents), states).items():
                rows[name] = task.scores_of_labels(predicted, self.data.splits.test)
        return rows

    def _network(self, trainer: DocumentTrainer) -> LinearPart:
        """What a trained network says of the validation documents that are judged, and of the test documents."""
        judged, unseen = (
            torch.from_numpy(document_means(trainer.logits_of(cast(Dataset, part.windows)), cast(Any, part.windows)))
            for part in (self.data.validation, self.data.test)
        )
        numbers = self.targets.judged - len(self.data.splits.train)
        return LinearPart(NETWORK, "trained", judged[numbers[numbers >= 0]], unseen, None)

    def _weighed(self, parts: Sequence[LinearPart], targets: Targets) -> Weighed:
        """The parts times their weights, put into the model, and the scores of each alone and of both."""
        sums = {part.name: [part] for part in parts} | ({SUM: list(parts)} if len(parts) > 1 else {})
        rows = processes.on_main(lambda: {name: weigh(added, targets) for name, added in sums.items()})
        by_name = {name: self._scores(row, targets) for name, row in rows.items()}
        *_, weighed = rows.values()
        shipped = self._simplest(rows, targets) if len(parts) > 1 else parts[0].name
        self._tune(self.task, rows[shipped], targets)
        self._put(rows[shipped])
        found = Weighed(weighed, shipped, by_name, len(targets.judged), len(self.data.splits.test))
        self.screen.say(found.describe())
        if isinstance(self.task, MultiLabel):
            best = f"{self.task.threshold:.3g}, which is best for the documents that are judged"
            self.screen.say(f"labels are predicted above a probability of {best}")
        return found

    def _simplest(self, rows: dict[str, list[LinearPart]], targets: Targets) -> str:
        """The best part alone, unless both are better for the documents that judge by more than a standard error.

        The one-standard-error rule (Breiman et al., Classification and Regression Trees, 1984). The likelihood would
        keep a second part that only makes right answers surer, and what tells documents of one source by their subject
        may tell none of another (docs/log.md).
        """
        score, sign = self.task.headline[0], 1 if self.task.larger_is_better else -1
        judged = {name: self._scores(row, targets, judged=True) for name, row in rows.items()}
        best = max((name for name in rows if name != SUM), key=lambda name: sign * judged[name][score])
        gain, error = paired_difference(*(judged[name]["tallies"][score] for name in (SUM, best)))
        return SUM if sign * gain > error else best

    def _scores(self, parts: Sequence[LinearPart], targets: Targets, *, judged: bool = False) -> dict[str, Any]:
        """By a sum of parts, with what the task tunes tuned to it: of the test documents, or of those that judge."""
        task = copy.copy(self.task)
        self._tune(task, parts, targets)
        documents = self.documents.select(targets.judged) if judged else self.data.splits.test
        logits = sum(part.judged if judged else part.unseen for part in parts)
        return task.scores(self._answers(cast(Tensor, logits)), documents)

    def _tune(self, task: Task, parts: Sequence[LinearPart], targets: Targets) -> None:
        judged = cast(Tensor, sum(part.judged for part in parts))
        task.tune(self._answers(judged), self.documents.select(targets.judged))

    def _answers(self, logits: Tensor) -> np.ndarray:
        """The answers to documents, of logits of each."""
        windows: dict[str, Any] = {"document": np.arange(len(logits)), "length": np.ones(len(logits))}
        return self.task.answers(self.task.reduce(logits, None).numpy(), windows, {})

    @torch.no_grad()
    def _put(self, parts: Sequence[LinearPart]) -> None:
        """Let the model add these parts."""
        model, rest, bias = self.model, 0.0, torch.zeros(())
        for part in parts:
            if isinstance(part.layer, LexicalHead):
                model.config.lexical_features = len(part.layer.codes)
                model.config.lexical_letters = 0 if part.layer.letters is None else part.layer.letters.shape[1]
                head = copy.deepcopy(part.layer)
                multiply(head, part.factor)
                head.bias.add_(part.bias)
                model.lexical, self.task.lexical = head.to(device=model.device, dtype=model.dtype), True
                continue
            if part.layer is not None:
                for tensor, values in zip((model.classifier.weight, model.classifier.bias), part.layer, strict=True):
                    tensor.copy_(values)
            rest, bias = part.factor, part.bias
        multiply(model.classifier, rest)
        model.classifier.bias.add_(bias.to(model.classifier.bias))


def worth_of_parts(weighed: Weighed, task: Task) -> str:
    """What the first of two parts, the second and both reach, and what the second adds, as a sentence."""
    if len(weighed.parts) == 1:
        return ""
    score, scores = task.headline[0], weighed.scores
    names = (SUM, *(part.name for part in weighed.parts))
    reached = [format_score(scores[name][score]) for name in names]
    gain, error = paired_difference(*(scores[name]["tallies"][score] for name in names[:2]))
    gain, left_out = gain if task.larger_is_better else -gain, weighed.shipped != SUM
    fate = f" The model is {weighed.shipped} alone: both are not clearly better on what it is learned from."
    return (
        f"By {score_title(score)} both together reach {reached[0]}, {names[1]} alone {reached[1]}, {names[2]} alone "
        f"{reached[2]}: {names[2]} is worth {gain:+.3f} (± {error:.3f}) on {format_count(weighed.tested)} documents."
        f"{fate if left_out else ''}"
    )
