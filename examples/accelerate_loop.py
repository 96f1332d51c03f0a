"""accelerate: a training loop of your own with accumulated gradients, and its state saved and loaded.

Install: pip install "torch-linformer[train]"
Run: python examples/accelerate_loop.py, or accelerate launch examples/accelerate_loop.py
"""

import tempfile

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch.utils.data import DataLoader
from transformers import DataCollatorWithPadding

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

train, held_out = documents("asyncio", "email")
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)
train, held_out = (
    [{**tokenizer(row["text"], truncation=True), "labels": row["label"]} for row in rows] for rows in (train, held_out)
)

set_seed(0)
config = LinformerConfig(
    vocab_size=len(tokenizer),
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=128,
    max_position_embeddings=256,
    k=64,
    num_labels=2,
)
model = LinformerForSequenceClassification(config)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
collator = DataCollatorWithPadding(tokenizer)
accelerator = Accelerator(gradient_accumulation_steps=2)
model, optimizer, train_batches, test_batches = accelerator.prepare(
    model,
    optimizer,
    DataLoader(train, batch_size=8, shuffle=True, collate_fn=collator),
    DataLoader(held_out, batch_size=8, collate_fn=collator),
)


@torch.no_grad()
def scores():
    """Logits and labels of the held-out documents."""
    model.eval()
    pairs = [accelerator.gather_for_metrics((model(**batch).logits, batch["labels"])) for batch in test_batches]
    model.train()
    return (torch.cat(part) for part in zip(*pairs, strict=True))


for epoch in range(2):
    for batch in train_batches:
        with accelerator.accumulate(model):
            accelerator.backward(model(**batch).loss)
            optimizer.step()
            optimizer.zero_grad()
    logits, labels = scores()
    accuracy = (logits.argmax(-1) == labels).float().mean().item()
    accelerator.print(f"held-out accuracy after epoch {epoch + 1}: {accuracy:.4f}")

with tempfile.TemporaryDirectory() as folder:
    accelerator.save_state(folder)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    accelerator.load_state(folder)
accelerator.print("largest difference of a score once loaded:", (next(scores()) - logits).abs().max().item())
