"""The pipeline "text-generation" of transformers, from the saved folder of a causal model; also streamed.

The texts are made up: the days of the week, from any day on.
Install: pip install "torch-linformer[train]"
Run: python examples/pipeline_text_generation.py
"""

import tempfile

from transformers import TextStreamer, Trainer, TrainingArguments, pipeline, set_seed

from documents import word_tokenizer
from torch_linformer import LinformerConfig, LinformerForCausalLM

DAYS = ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


def days(first, count):
    return " ".join(DAYS[(first + number) % 7] for number in range(count))


set_seed(0)
train = [days(number % 7, 20) for number in range(700)]
tokenizer = word_tokenizer(train, max_length=32)
tokenizer.padding_side = "left"  # the next word follows the last one
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    causal=True,
    window=4,
    k=8,
    position_embedding="rotary",
    norm_first=True,
    embedding_norm=False,
)
with tempfile.TemporaryDirectory() as folder:
    trainer = Trainer(
        model=LinformerForCausalLM(config),
        args=TrainingArguments(
            folder,
            num_train_epochs=3,
            per_device_train_batch_size=16,
            learning_rate=3e-3,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        ),
        train_dataset=[
            {"input_ids": ids, "labels": ids} for ids in tokenizer(train, add_special_tokens=False)["input_ids"]
        ],
        processing_class=tokenizer,
    )
    trainer.train()
    trainer.save_model(f"{folder}/model")  # and the tokenizer
    generator = pipeline("text-generation", model=f"{folder}/model")

options = {"add_special_tokens": False, "do_sample": False}
generator("friday saturday", max_new_tokens=5, streamer=TextStreamer(generator.tokenizer), **options)

# Ten times as long as a training text, and prompts of different lengths in one batch.
prompts = [days(number % 7, 1 + number % 5) for number in range(14)]
answers = generator(prompts, max_new_tokens=200, batch_size=7, return_full_text=False, **options)
texts = [answer[0]["generated_text"].split() for answer in answers]
wanted = [days(number % 7 + 1 + number % 5, 200).split() for number in range(14)]
right = sum(
    found == word for text, words in zip(texts, wanted, strict=True) for found, word in zip(text, words, strict=True)
)
print("text-generation, share of right days:", right / (14 * 200))
