"""torch.compile: the whole model as one graph, for every batch size and length, with the same scores as the model.

Install: pip install "torch-linformer[hf]", and a C++ compiler (g++ or clang++)
Run: python examples/torch_compile.py
"""

import torch

from documents import documents, word_tokenizer
from torch_linformer import LinformerConfig, LinformerForSequenceClassification

train, held_out = documents("asyncio", "email")
texts = [row["text"] for row in held_out]
tokenizer = word_tokenizer([row["text"] for row in train], max_length=256)

torch.manual_seed(0)
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
model = LinformerForSequenceClassification(config).eval()
compiled = torch.compile(model, fullgraph=True, dynamic=True)

with torch.no_grad():
    for start, rows in [(0, 4), (4, 7), (11, 2), (13, 16)]:
        batch = tokenizer(texts[start : start + rows], padding=True, truncation=True, return_tensors="pt")
        rows, length = batch["input_ids"].shape
        difference = (compiled(**batch).logits - model(**batch).logits).abs().max().item()
        print(f"{rows} x {length}, largest difference of a score:", difference)
print("graphs compiled:", torch._dynamo.utils.counters["stats"]["unique_graphs"])
