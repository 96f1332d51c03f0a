import time
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import Dataset
from transformers import TrainerCallback

from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification
from torch_linformer.opening.folder import Spent, checkpoints, is_whole, read_spent
from torch_linformer.tasks.task import Examples
from torch_linformer.tasks.whole_documents import Classification
from torch_linformer.training.batches import LengthGroupedSampler
from torch_linformer.training.task_trainers import DocumentTrainer
from torch_linformer.training.trainer import RunCallback, quiet_arguments
from torch_linformer.training.training_screen import TrainingScreen

PEAK = 0.01


def order(lengths, *, batch_size=8, seed=0, epoch=0):
    sampler = LengthGroupedSampler(lengths, batch_size, seed)
    sampler.set_epoch(epoch)
    assert len(sampler) == len(lengths)
    return list(sampler)


def batches_of(order):
    """As the loader cuts them: by counting, so that only the last one may be short."""
    return [order[start : start + 8] for start in range(0, len(order), 8)]


# The order of the documents


@pytest.mark.parametrize("number", [1, 7, 8, 9, 11, 64, 400, 403, 1_003])
def test_the_order_of_an_epoch(number):
    """Every document once, the longest batch first, and else in batches of similar length that follow no length."""
    lengths = torch.randint(3, 500, (number,), generator=torch.Generator().manual_seed(0)).tolist()
    at_random = torch.randperm(number, generator=torch.Generator().manual_seed(0)).tolist()

    def padding(order):
        return sum(8 * max(lengths[i] for i in batch) for batch in batches_of(order)) - sum(lengths)

    orders = {(seed, epoch): order(lengths, seed=seed, epoch=epoch) for seed in (0, 1) for epoch in (0, 1, 5)}
    torch.rand(5)  # whatever was drawn elsewhere
    for (seed, epoch), drawn in orders.items():
        assert drawn == order(lengths, seed=seed, epoch=epoch) and sorted(drawn) == list(range(number))
        tokens = [sum(lengths[i] for i in batch) for batch in batches_of(drawn)]
        assert tokens[0] == max(tokens)
        if number >= 400:
            assert 0.3 < np.mean(np.diff(tokens[1:-1]) > 0) < 0.7
            assert padding(drawn) < padding(at_random) / 3
            # None but the last batch was short, which would push the others out of step with their neighbours.
            assert np.median([np.ptp([lengths[i] for i in batch]) for batch in batches_of(drawn)]) < 100
    assert number < 64 or len(set(map(tuple, orders.values()))) == 6


# Training


class Recorder(TrainerCallback):
    """The learning rate of each step, and the documents of each batch: the collator of the trainer as well."""

    def __init__(self, collate):
        self.collate, self.rates, self.batches, self.epochs = collate, [], [], []

    def __call__(self, examples):
        self.batches.append([example["input_ids"] for example in examples])
        return self.collate(examples)

    def set_epoch(self, epoch):
        self.epochs.append(epoch)

    def on_step_begin(self, args, state, control, optimizer=None, **kwargs):
        self.rates.append(optimizer.param_groups[0]["lr"])


class Recorded(Classification):
    """A task whose batches for training are recorded."""

    def __init__(self, *args):
        super().__init__(*args)
        self.recorder = Recorder(self.collate)

    def collator(self, training):
        return self.recorder if training else self.collate


@pytest.fixture
def documents():
    """26 distinct documents of 3 to 9 tokens, one window each."""
    ids = [[1, *[4 + i] * (1 + i % 7), 2] for i in range(26)]
    labels, lengths = [i % 2 for i in range(26)], [len(each) for each in ids]
    columns = {"document": list(range(26)), "input_ids": ids, "length": lengths, "labels": labels}
    labeled = Dataset.from_dict({"label": ["ab"[label] for label in labels]})
    return Examples(labeled, Dataset.from_dict(columns), np.array(lengths))


@pytest.fixture
def build_trainer(request, tmp_path, documents):
    """A function: a trainer of a tiny classifier with its recorder attached."""

    def build(steps, *, minutes=None, **arguments):
        config = LinformerConfig(
            vocab_size=260,
            hidden_size=8,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=12,
            max_position_embeddings=9,
            k=3,
        )
        task = Recorded(build_tokenizer("bytes", [], max_length=9), ["a", "b"])
        recorder = task.recorder
        trainer = DocumentTrainer(
            model=LinformerForSequenceClassification(config),
            args=quiet_arguments(
                tmp_path,
                max_steps=steps,
                batch_size=4,
                learning_rate=PEAK,
                device="cpu",
                precision="fp32",
                **{"save_strategy": "no", **arguments},
            ),
            task=task,
            train_dataset=documents.windows,
            validation=documents,
            minutes=minutes,
        )
        trainer.add_callback(recorder)
        callback = RunCallback(trainer, TrainingScreen())
        trainer.add_callback(callback)
        request.addfinalizer(callback.close)  # as `fit` does: what signals do is as before
        return trainer, recorder

    return build


@pytest.mark.parametrize("steps", [40, 1])
def test_the_rate_warms_up_and_decays_to_nearly_nothing(build_trainer, steps):
    trainer, recorder = build_trainer(steps)
    trainer.train()
    expected = [PEAK * min(10 * (step + 1) / steps, (1 - step / steps) / 0.9, 1) for step in range(steps)]
    assert recorder.rates == pytest.approx(expected) and max(recorder.rates) == PEAK


class Clock(TrainerCallback):
    """The time, which passes by steps only."""

    now, seconds_of_a_step = 0.0, 1.0

    def on_step_begin(self, *args, **kwargs):
        self.now += self.seconds_of_a_step


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(time, "monotonic", lambda: clock.now)
    return clock


def test_minutes_end_the_training_with_a_whole_cycle_of_the_rate(build_trainer, clock):
    trainer, recorder = build_trainer(1_000_000, minutes=2, eval_strategy="steps", eval_steps=1e6)
    trainer.add_callback(clock)
    trainer.train()
    state = trainer.state
    assert state.global_step == trainer.spent.seconds == 120
    expected = [PEAK * min(max(step, 120e-6) / 12, (1 - step / 120) / 0.9, 1) for step in range(120)]
    assert recorder.rates == pytest.approx(expected)
    # However many steps there may be, a kill -9 costs a tenth of the time, and the best weights are looked for.
    assert evaluated(state) == list(range(12, 121, 12))
    saved = sorted(checkpoints(Path(trainer.args.output_dir)), key=lambda path: read_spent(path).seconds)
    assert [path.name for path in saved] == [f"checkpoint-{step}" for step in evaluated(state)]
    assert [read_spent(path).seconds for path in saved] == evaluated(state)
    assert all(is_whole(path) for path in saved)


def test_evaluations_by_the_clock_take_no_more_than_their_share_of_it(build_trainer, clock, monkeypatch):
    """One of 32 seconds may come every 320, and at the end."""
    trainer, _ = build_trainer(1_000_000, minutes=10, eval_strategy="steps", eval_steps=1e6)
    clock.seconds_of_a_step = 4.0
    trainer.add_callback(clock)
    evaluate = trainer.evaluate

    def slow(*args, **kwargs):
        clock.now += 32
        return evaluate(*args, **kwargs)

    monkeypatch.setattr(trainer, "evaluate", slow)
    trainer.train()
    assert evaluated(trainer.state) == [15, 105, 134]  # after 60 seconds, 60 + 32 + 320 at least, and 600


def evaluated(state):
    """The steps after which the validation documents were scored."""
    return [each["step"] for each in state.log_history if "eval_loss" in each]


@pytest.mark.parametrize(
    ("before", "steps"),
    [
        (Spent(seconds=59.5, tokens=1_000), 4),  # by earlier processes
        (Spent(head_seconds=59.5), 4),  # on a first head
        (Spent(head_seconds=70.0), 1),
    ],
)
def test_time_spent_before_counts(build_trainer, clock, before, steps):
    trainer, _ = build_trainer(1_000_000, minutes=1)
    clock.seconds_of_a_step = 0.125
    trainer.add_callback(clock)
    trainer.before = before
    trainer.train()
    spent = trainer.spent
    assert trainer.state.global_step == steps and spent.tokens > before.tokens
    assert spent.seconds == before.seconds + 0.125 * steps
    assert spent.all_seconds == before.all_seconds + 0.125 * steps


def test_the_trainer_reads_in_the_order_of_the_sampler_and_counts_tokens_without_padding(build_trainer, documents):
    trainer, recorder = build_trainer(14)  # two epochs of seven batches
    trainer.train()
    texts, lengths = documents.windows["input_ids"][:], documents.windows["length"][:]
    for epoch, batches in enumerate((recorder.batches[:7], recorder.batches[7:14])):
        expected = order(lengths, batch_size=4, seed=trainer.args.seed, epoch=epoch)
        assert [ids for batch in batches for ids in batch] == [texts[i] for i in expected]
    assert recorder.epochs == [0, 1]
    assert trainer.spent.tokens == 2 * documents.num_tokens.sum()


def test_evaluation_has_a_collator_of_its_own_and_sorts_by_length(build_trainer, documents):
    trainer, recorder = build_trainer(1)
    windows = documents.windows
    output = trainer.predict(windows)
    assert not recorder.batches and trainer.data_collator is recorder
    assert sorted(output.label_ids.tolist()) == sorted(windows["labels"])
    lengths = [batch["attention_mask"].sum(dim=1) for batch in trainer.get_test_dataloader(windows)]
    assert torch.cat(lengths).tolist() == sorted(windows["length"], reverse=True)
    trainer.train()
    assert recorder.batches


def test_scores_are_those_of_each_document_read_alone(build_trainer, documents):
    """The order of evaluation is another: an answer must still meet its own document."""
    trainer, _ = build_trainer(30)
    trainer.train()
    model = trainer.model.eval()
    with torch.no_grad():
        alone = [int(model(torch.tensor([ids])).logits.argmax()) for ids in documents.windows["input_ids"]]
    right = [prediction == label for prediction, label in zip(alone, documents.windows["labels"], strict=True)]
    assert 0 < sum(right) < 26 or len(set(alone)) > 1  # otherwise any order would do
    assert trainer.evaluate()["eval_accuracy"] == pytest.approx(sum(right) / 26)
    assert trainer.scores_of(documents)["accuracy"] == pytest.approx(sum(right) / 26)
