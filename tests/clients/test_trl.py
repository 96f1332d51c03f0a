"""TRL's trainers, given the path of a model's folder: they find our class through its Auto class."""

import math

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from torch.testing import assert_close
from transformers import PreTrainedTokenizerFast
from trl import DPOConfig, DPOTrainer, GRPOConfig, GRPOTrainer, SFTConfig, SFTTrainer

from torch_linformer import LinformerConfig, LinformerForCausalLM

WORDS = ["[PAD]", "[BOS]", "[EOS]", "[UNK]", "wet", "grey", "mud", "sun", "warm", "sand", "sea", "the", "of", "and"]
TEXTS = ["wet grey mud and the sea", "sun warm sand"]


@pytest.fixture
def folder(tmp_path):
    """The path of a small causal model and its tokenizer."""
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "bos", "eos", "unk")}
    config = LinformerConfig(
        vocab_size=len(WORDS),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=20,
        max_position_embeddings=64,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        initializer_range=0.3,
        k=4,
        window=8,
        causal=True,
        position_embedding="rotary",
        lm_head_transform=False,
    )
    torch.manual_seed(0)
    LinformerForCausalLM(config).save_pretrained(tmp_path / "model")
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(tmp_path / "model")
    return str(tmp_path / "model")


@pytest.fixture
def options(tmp_path):
    """Options that all three trainers take: a few steps of four rows."""
    return {
        "output_dir": str(tmp_path / "run"),
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.02,
        "lr_scheduler_type": "constant",
        "logging_steps": 1,
        "report_to": "none",
        "save_strategy": "no",
        "use_cpu": True,
        "bf16": False,
    }


def history(trainer, name):
    trainer.train()
    assert type(trainer.model) is LinformerForCausalLM
    return [entry[name] for entry in trainer.state.log_history if name in entry]


def loss_of(folder, texts):
    """Mean loss of all tokens of the texts with their end, each text read by itself."""
    model = LinformerForCausalLM.from_pretrained(folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    rows = [torch.tensor([tokenizer(text)["input_ids"] + [tokenizer.eos_token_id]]) for text in texts]
    with torch.no_grad():
        losses = [(model(input_ids=row, labels=row).loss.item(), row.shape[1] - 1) for row in rows]
    return sum(loss * tokens for loss, tokens in losses) / sum(tokens for _, tokens in losses)


def test_sft_learns_from_the_loss_that_the_rows_have(folder, options):
    data = Dataset.from_list([{"text": text} for text in TEXTS * 2])
    losses = history(SFTTrainer(folder, args=SFTConfig(**options), train_dataset=data), "loss")
    assert losses[0] == pytest.approx(loss_of(folder, TEXTS), rel=1e-4)
    assert losses[-1] < 0.8 * losses[0]


def test_sft_of_packed_rows_has_the_loss_of_the_rows(folder, options):
    data = Dataset.from_list([{"text": text} for text in TEXTS * 8])
    arguments = SFTConfig(**{**options, "per_device_train_batch_size": 1}, packing=True, max_length=12)
    trainer = SFTTrainer(folder, args=arguments, train_dataset=data)
    (batch,) = [trainer.data_collator([trainer.train_dataset[0]])]
    with torch.no_grad():
        loss = trainer.model(**batch).loss
    assert_close(loss.item(), loss_of(folder, TEXTS), rtol=1e-4, atol=0.0)


def test_dpo_starts_at_the_reference_and_tells_the_answers_apart(folder, options):
    data = Dataset.from_list([{"prompt": "wet grey", "chosen": " mud", "rejected": " sun"}] * 4)
    trainer = DPOTrainer(folder, args=DPOConfig(**options), train_dataset=data)
    losses = history(trainer, "loss")
    assert losses[0] == pytest.approx(math.log(2), abs=1e-3) and losses[-1] < 0.8 * losses[0]
    assert trainer.state.log_history[-2]["rewards/accuracies"] == 1.0


def test_grpo_generates_and_is_rewarded(folder, options):
    data = Dataset.from_list([{"prompt": "wet grey"}, {"prompt": "sun warm"}] * 8)
    arguments = GRPOConfig(**{**options, "max_steps": 12}, num_generations=4, max_completion_length=6)
    seen = []

    def seas(completions, **others):
        seen.extend(completions)
        return [float(completion.count("sea")) for completion in completions]

    rewards = history(GRPOTrainer(folder, reward_funcs=seas, args=arguments, train_dataset=data), "reward")
    assert all(math.isfinite(reward) for reward in rewards) and sum(rewards[-4:]) > sum(rewards[:4])
    assert len(seen) == 4 * 12 and len(set(seen)) > 12
