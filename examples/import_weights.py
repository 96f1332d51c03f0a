"""Weights of other packages: a Linformer of lucidrains and one of linformer-pytorch give the same outputs here.

Encoders of transformers are not imported but made linear as they are: see linearize.py.
Install: pip install "torch-linformer[hf]" linformer linformer-pytorch
Run: python examples/import_weights.py
"""

import torch
from linformer import Linformer as LucidrainsLinformer
from linformer_pytorch import Linformer as PytorchLinformer

from torch_linformer.models.convert import from_linformer_pytorch, from_lucidrains

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
