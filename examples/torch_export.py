"""torch.export and ONNX: one file each, for every batch size and length, that runs without this package.

`linformer export` does the same with the folder of a trained model, and adds its tokenizer.
Install: pip install "torch-linformer[onnx]"
Run: python examples/torch_export.py
"""

import tempfile

import onnxruntime
import torch
from torch.export import Dim

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


def encoded(some_texts):
    return dict(tokenizer(some_texts, padding=True, truncation=True, return_tensors="pt"))


sizes = {0: Dim("batch"), 1: Dim("length", max=256)}
program = torch.export.export(
    model, (), encoded(texts[:2]), dynamic_shapes={"input_ids": sizes, "attention_mask": sizes}
)
with tempfile.TemporaryDirectory() as folder:
    torch.export.save(program, f"{folder}/model.pt2")
    torch.onnx.export(program, output_names=["logits"], dynamo=True, verbose=False).save(f"{folder}/model.onnx")
    exported = torch.export.load(f"{folder}/model.pt2").module()
    session = onnxruntime.InferenceSession(f"{folder}/model.onnx", providers=["CPUExecutionProvider"])
    for some_texts in (texts[:1], texts[2:9], ["import asyncio"]):
        batch = encoded(some_texts)
        with torch.no_grad():
            expected = model(**batch).logits
        rows, length = batch["input_ids"].shape
        (scores,) = session.run(["logits"], {name: value.numpy() for name, value in batch.items()})
        difference = (exported(**batch).logits - expected).abs().max().item()
        print(f"torch.export, {rows} x {length}, largest difference of a score:", difference)
        difference = (torch.from_numpy(scores) - expected).abs().max().item()
        print(f"onnxruntime, {rows} x {length}, largest difference of a score:", difference)
