"""Transformers' Seq2SeqTrainer on the encoder-decoder: label smoothing, scores of generated text, beam search.

The sources are made up, words of two seasons in any order; the target names both, the more frequent one first.
Install: pip install "torch-linformer[train]"
Run: python examples/seq2seq_trainer.py
"""

import random
import tempfile

from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments, set_seed

from documents import word_tokenizer
from torch_linformer import LinformerForConditionalGeneration, LinformerSeq2SeqConfig

SEASONS = {
    "spring": ["bud", "lamb", "seed", "nest", "shower"],
    "summer": ["heat", "beach", "swim", "thunder", "drought"],
    "autumn": ["fog", "harvest", "leaf", "mushroom", "storm"],
    "winter": ["frost", "snow", "ice", "skate", "fire"],
}


def draw():
    most, fewer = random.sample(list(SEASONS), 2)
    count = random.randint(20, 40)
    words = random.choices(SEASONS[most], k=count) + random.choices(SEASONS[fewer], k=count // 2)
    return " ".join(random.sample(words, len(words))), f"{most} {fewer}"


set_seed(0)
pairs = [draw() for _ in range(1200)]
tokenizer = word_tokenizer([" ".join(pair) for pair in pairs], max_length=64)
rows = [
    {
        "input_ids": tokenizer(source, truncation=True, return_token_type_ids=False)["input_ids"],
        "labels": [*tokenizer(target, add_special_tokens=False)["input_ids"], tokenizer.sep_token_id],
    }
    for source, target in pairs
]
sizes = {
    "vocab_size": len(tokenizer),
    "hidden_size": 48,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "intermediate_size": 96,
    "norm_first": True,
}
config = LinformerSeq2SeqConfig(
    encoder={**sizes, "max_position_embeddings": 64, "k": 16, "projection": "mean"},
    decoder={**sizes, "max_position_embeddings": 8, "k": 4, "window": 4},
    pad_token_id=tokenizer.pad_token_id,
    bos_token_id=tokenizer.cls_token_id,
    eos_token_id=tokenizer.sep_token_id,
)
model = LinformerForConditionalGeneration(config)


def share_of_right_texts(outputs):
    texts, targets = (
        tokenizer.batch_decode(ids.clip(min=0), skip_special_tokens=True)
        for ids in (outputs.predictions, outputs.label_ids)
    )
    return {"right": sum(text == target for text, target in zip(texts, targets, strict=True)) / len(texts)}


with tempfile.TemporaryDirectory() as folder:
    trainer = Seq2SeqTrainer(
        model=model,
        args=Seq2SeqTrainingArguments(
            folder,
            num_train_epochs=8,
            per_device_train_batch_size=32,
            per_device_eval_batch_size=64,
            learning_rate=4e-3,
            label_smoothing_factor=0.1,
            predict_with_generate=True,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=rows[:1000],
        eval_dataset=rows[1000:],
        data_collator=DataCollatorForSeq2Seq(tokenizer, model=model),
        processing_class=tokenizer,
        compute_metrics=share_of_right_texts,
    )
    print("held-out targets written right before:", trainer.evaluate(max_new_tokens=4)["eval_right"])
    trainer.train()
    print("held-out targets written right after:", trainer.evaluate(max_new_tokens=4)["eval_right"])
    print("held-out targets written right by beams:", trainer.evaluate(max_new_tokens=4, num_beams=3)["eval_right"])
