"""Choose K from a spectrum: how low the rank of your encoder's attention is on your texts, and what K slots would lose.

Install: pip install "torch-linformer[inspect,minilm]"
Run: python examples/lessons/choose_k.py
With your own: python examples/lessons/choose_k.py --model path/to/bert --texts texts/ --length 512
"""

import argparse
from pathlib import Path

import torch
from transformers import AutoModel, AutoTokenizer

from shared import source_files
from torch_linformer import encoder_folder
from torch_linformer.analysis import measure_spectrum, plot_spectrum, suggest_k

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="minilm", help="folder or hub name of an encoder, or minilm")
parser.add_argument("--texts", type=Path, help="a folder of text files  [Python's own source files]")
parser.add_argument("--length", type=int, default=256, help="tokens of a document")
parser.add_argument("--documents", type=int, default=12)
parser.add_argument("--figure", type=Path, help="file for a plot of all layers and heads")
options = parser.parse_args()

# 1. The documents: all of one length, because a spectrum belongs to a length. Shorter texts are left out, longer ones
# cut.
source = encoder_folder(options.model)
model, tokenizer = AutoModel.from_pretrained(source).eval(), AutoTokenizer.from_pretrained(source)
if options.texts is None:
    texts = [text for _, text in source_files("asyncio", "email", "unittest")]
else:
    texts = [path.read_text(encoding="utf-8") for path in sorted(options.texts.iterdir())]
ids = [tokenizer(text, truncation=True, max_length=options.length)["input_ids"] for text in texts]
documents = [torch.tensor(row) for row in ids if len(row) == options.length][: options.documents]
print("documents:", len(documents))

# 2. The measurement: singular values of every layer and head, and what the output of the attention loses where K slots
# stand for all positions. Errors are measured on other documents than those that the fitted projections were fitted to.
ks = [k for k in (8, 16, 32, 64, 128) if k < options.length]
spectrum = measure_spectrum(model, documents, ks=ks)
quarter = options.length // 4
print(
    f"share of the sum of singular values in the first {quarter}:",
    round(spectrum.cumulative_at(quarter).mean().item(), 3),
)
print("K that keeps 95 % of the energy, layer by layer, its worst head:", suggest_k(spectrum, 95).as_option())

# 3. By the loss. The rule by energy is strict, because one head that looks at its neighbors needs a K near N. A
# window of 64 tokens sees neighbors exactly, and the slots have to cover only the rest. So compare slots with a window
# before any training with the window alone: that is the row that the slots must beat.
errors = {name: values.mean(dim=(0, 1)) for name, values in spectrum.low_rank.errors.items()}
print("loss of a window of 64 and exact tokens, without slots:", round(errors["window_and_exact"][0].item(), 3))
for k, error in zip(spectrum.low_rank.ks, errors["slots_window_and_exact"].tolist(), strict=True):
    print(f"loss with {k} slots added:", round(error, 3))
enough = [k for k, loss in zip(spectrum.low_rank.ks, errors["slots_window_and_exact"], strict=True) if loss <= 0.38]
print("smallest K of these that loses at most 0.38:", enough[0] if enough else "none")

# 4. The use: linformer adapt --k, or linformer train --k. The command does all of this too: linformer spectrum MODEL
# --data.
if options.figure is not None:
    plot_spectrum(spectrum, index=quarter).savefig(options.figure)
