"""Transformers' Seq2SeqTrainer on the encoder-decoder: label smoothing, generation while it evaluates, saving."""

import random

import pytest
import torch
from torch.testing import assert_close
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from torch_linformer.models import LinformerForConditionalGeneration, LinformerSeq2SeqConfig

PAD, START, END = 0, 2, 3  # [PAD], [CLS] and [SEP] of the tokenizer


@pytest.fixture
def model(tokenizer):
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": 24,
        "num_hidden_layers": 1,
        "num_attention_heads": 3,
        "intermediate_size": 40,
        "max_position_embeddings": 16,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "k": 8,
        "projection": "mean",
    }
    tokens = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    torch.manual_seed(0)
    config = LinformerSeq2SeqConfig(
        encoder=sizes, decoder={**sizes, "projection": "linear", "window": 4, "max_position_embeddings": 8}, **tokens
    )
    return LinformerForConditionalGeneration(config)


@pytest.fixture
def pairs(tokenizer):
    """Texts of one topic among words of none, and the topic's first word as often as the source has words of it."""
    draw, rows = random.Random(0), []
    for _ in range(96):
        topic = draw.choice([["wet", "grey", "mud"], ["warm", "sand", "sea"]])
        words = draw.choices([*topic, "the", "of"], k=draw.randint(3, 12))
        ids = tokenizer(" ".join(words), return_token_type_ids=False)["input_ids"]
        target = [tokenizer.convert_tokens_to_ids(topic[0])] * (1 + (words.count("the") > 2))
        rows.append({"input_ids": ids, "labels": [*target, END]})
    return rows


def trainer_of(model, tokenizer, pairs, output, **options):
    arguments = Seq2SeqTrainingArguments(
        output_dir=str(output),
        per_device_train_batch_size=16,
        per_device_eval_batch_size=16,
        learning_rate=5e-3,
        lr_scheduler_type="constant",
        label_smoothing_factor=0.1,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        save_strategy="no",
        **options,
    )
    return Seq2SeqTrainer(
        model=model,
        args=arguments,
        train_dataset=pairs[:64],
        eval_dataset=pairs[64:],
        processing_class=tokenizer,
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        compute_metrics=lambda found: {"first": float((found.predictions[:, 1] == found.label_ids[:, 0]).mean())},
    )


def test_training_with_label_smoothing_evaluating_by_generation_and_saving(model, tokenizer, pairs, tmp_path):
    generation = {"predict_with_generate": True, "generation_max_length": 6}
    trainer = trainer_of(model, tokenizer, pairs, tmp_path / "run", max_steps=80, **generation)
    before = trainer.evaluate()
    trainer.train()
    after = trainer.evaluate()
    assert after["eval_first"] > 0.9 and after["eval_loss"] < 0.5 * before["eval_loss"]
    beams = trainer.predict(pairs[64:], max_length=6, num_beams=3)
    assert beams.metrics["test_first"] > 0.9 and beams.predictions.shape[0] == 32
    trainer.save_model(tmp_path / "saved")
    loaded = LinformerForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)


def test_the_smoothed_loss_is_that_of_its_definition(model, tokenizer, pairs, tmp_path):
    trainer = trainer_of(model, tokenizer, pairs, tmp_path)
    batch = trainer.data_collator(pairs[:5])
    logits = model(**batch).logits
    scores, labels = logits.log_softmax(-1).flatten(0, 1), batch["labels"].flatten()
    counted, wanted = scores[labels != -100], labels[labels != -100]
    plain = -counted.gather(1, wanted[:, None]).mean()
    assert_close(trainer.compute_loss(model, dict(batch)), 0.9 * plain - 0.1 * counted.mean())
