"""Write your own kind of slots: any map of positions to slots is a matrix E, and E may be made of anything.

Install: pip install torch-linformer
Run: python examples/lessons/own_slots.py
"""

import argparse

import torch
from torch import nn
from torch.nn.utils import parametrize

from torch_linformer.nn import LinformerEncoder, SequenceProjection

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=250)
options = parser.parse_args()
LENGTH, K, WIDTH, WORDS, FIRST = 512, 32, 64, 8, 48

# 1. The idea. In mails, papers and logs what counts is often told at the beginning. So let slots be fine there and
# coarse later: slot j is the mean of a segment, and segments grow. E has one column a slot, with 1/length in its
# segment's rows.
growth = torch.arange(K + 1) / K
edges = torch.maximum((LENGTH + 1) ** growth - 1, torch.arange(K + 1)).round().long()
edges[-1] = LENGTH
lengths = edges.diff()
print("tokens of the first, the middle and the last slot:", *lengths[[0, K // 2, -1]].tolist())
E = torch.zeros(LENGTH, K)
for slot in range(K):
    E[edges[slot] : edges[slot + 1], slot] = 1 / lengths[slot]


# 2. The same, learned. 2 K numbers make E: for each slot the place of its center and its width, both in logarithms of
# the position. torch's parametrizations put any function in the place of a weight; here what it is computed from is
# smaller.
class Bells(nn.Module):
    """E from centers and widths (2, K)."""

    def right_inverse(self, weight):
        """What training begins with."""
        return torch.stack([torch.linspace(0.0, 6.2, K), torch.zeros(K)])

    def forward(self, bells):
        position = torch.arange(1, LENGTH + 1).log()[:, None]
        return (-((position - bells[0]) * 4 * bells[1].exp()).square()).softmax(dim=0)


# 3. Into an encoder. "random" is the kind with a fixed E, "linear" the one whose E is learned; length_scaling=False
# leaves E as it is. Everything else goes on as before: padding, any length up to max_len, compiling, saving, sharing
# among layers.
def encoder_with(kind):
    torch.manual_seed(0)
    projection = {"own, fixed": "random", "own, learned": "linear", "learned E": "linear"}.get(kind, "mean")
    scaling = {} if projection == "mean" else {"sharing": "kv", "length_scaling": not kind.startswith("own")}
    sizes = {"d_model": WIDTH, "nhead": 4, "num_layers": 1, "dim_feedforward": 128, "dropout": 0.0, "norm_first": True}
    encoder = LinformerEncoder(**sizes, max_len=LENGTH, k=K, projection=projection, **scaling)
    for module in encoder.modules():
        if isinstance(module, SequenceProjection) and kind == "own, fixed":
            module.weight.copy_(E)
    for module in [found for found in encoder.modules() if isinstance(found, SequenceProjection)]:
        if kind == "own, learned":
            parametrize.register_parametrization(module, "weight", Bells())
    return encoder


# 4. A task for which it should be right: one of the first 48 words of 512 is marked, and the label is which word it is.
def batch(generator, rows=16):
    words = torch.randint(WORDS, (rows, LENGTH), generator=generator)
    place = torch.randint(1, FIRST, (rows,), generator=generator)
    marked = torch.arange(LENGTH) == place[:, None]
    return words + WORDS * marked, words[marked]


def accuracy_of(kind):
    encoder = encoder_with(kind)
    embed, head = nn.Embedding(2 * WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
    model = nn.ModuleList([encoder, embed, head])
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(1)

    def scores(words):
        return head(encoder(embed(words))[:, 0])

    for _ in range(options.steps):
        words, labels = batch(generator)
        loss = nn.functional.cross_entropy(scores(words), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        words, labels = batch(torch.Generator().manual_seed(2), rows=512)
        of_maps = sum(p.numel() for m in encoder.modules() if isinstance(m, SequenceProjection) for p in m.parameters())
        print(f"{kind}, numbers learned for the maps: {of_maps}")
        return round((scores(words).argmax(dim=1) == labels).float().mean().item(), 3)


for kind in ("means of equal segments", "learned E", "own, fixed", "own, learned"):
    print(f"{kind}, accuracy: {accuracy_of(kind)}", flush=True)
print("accuracy of a guess:", round(1 / WORDS, 3))
