"""torch.nn.TransformerEncoder with our layers instead of its own, trained on padded batches; needs only torch.

The task needs the whole sequence: which of eight signs is the most frequent?
Install: pip install torch-linformer
Run: python examples/torch_encoder.py
"""

import torch
from torch import nn
from torch.nn import functional as F

from torch_linformer.nn import LinformerEncoderLayer

SIGNS, LONGEST = 8, 60


def draw(rows):
    """Signs (rows, 60), True where they are padding (beyond 20 to 60), and the most frequent sign of each row."""
    padding = torch.arange(LONGEST) >= torch.randint(20, LONGEST + 1, (rows, 1))
    signs = torch.multinomial(torch.rand(rows, SIGNS) ** 2, LONGEST, replacement=True)
    counts = F.one_hot(signs, SIGNS).masked_fill(padding[..., None], 0).sum(dim=1)
    return signs, padding, counts.argmax(dim=-1)


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(SIGNS, 32)
        layer = LinformerEncoderLayer(d_model=32, nhead=4, dim_feedforward=64, dropout=0.0, max_len=LONGEST, k=16)
        self.encoder = nn.TransformerEncoder(layer, num_layers=2, enable_nested_tensor=False)
        self.head = nn.Linear(32, SIGNS)

    def forward(self, signs, padding):
        hidden = self.encoder(self.embedding(signs), src_key_padding_mask=padding)
        real = ~padding[..., None]
        return self.head((hidden * real).sum(dim=1) / real.sum(dim=1))


torch.manual_seed(0)
model = Classifier()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
signs, padding, frequent = draw(1000)
print("accuracy before:", (model(signs, padding).argmax(dim=-1) == frequent).float().mean().item())
for _ in range(300):
    some_signs, some_padding, wanted = draw(64)
    loss = F.cross_entropy(model(some_signs, some_padding), wanted)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()

model.eval()
with torch.no_grad():
    scores = model(signs, padding)
    length = int((~padding[0]).sum())
    alone = model(signs[:1, :length], padding[:1, :length])
print("accuracy after:", (scores.argmax(dim=-1) == frequent).float().mean().item())
print("largest difference of a score without the padding:", (alone - scores[:1]).abs().max().item())
