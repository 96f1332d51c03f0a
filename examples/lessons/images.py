"""Make a vision transformer linear: 4,096 patches, distilled from its own full attention, beside the window alone.

Install: pip install "torch-linformer[hf]"
Run: python examples/lessons/images.py
"""

import argparse
import time

import torch
from torch import nn
from transformers import ViTConfig, ViTForImageClassification

from torch_linformer import linearize

parser = argparse.ArgumentParser()
parser.add_argument("--size", type=int, default=256, help="height and width of the large images, in pixels  [256]")
parser.add_argument("--steps", type=int, default=40, help="of distillation on the smallest images  [40]")
options = parser.parse_args()
PATCH, SMALL, SIZE = 4, 64, options.size
COLORS = torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 1.0, 0.0]])
print("patches:", (SIZE // PATCH) ** 2)


# 1. The task. All pixels are noise, except one patch, anywhere, of one color; the label is which of four it is. The class
# token, which comes before the first patch, has to get it from there: the mean of all pixels does not tell.
def images(generator, rows, size):
    pixels = torch.rand(rows, 3, size, size, generator=generator)
    labels = torch.randint(len(COLORS), (rows,), generator=generator)
    corners = torch.randint(size // PATCH, (rows, 2), generator=generator) * PATCH
    for image, label, (top, left) in zip(pixels, labels, corners, strict=True):
        image[:, top : top + PATCH, left : left + PATCH] = COLORS[label][:, None, None]
    return 2 * pixels - 1, labels


def read(model, pixels):
    """Positions that were learned on small images are interpolated on large ones."""
    return model(pixels, interpolate_pos_encoding=True, output_hidden_states=True)


# 2. The teacher: a small ViT of transformers with its own full attention. It learns to look for the patch in small images,
# and is then trained on a few large ones.
torch.manual_seed(0)
config = ViTConfig(
    image_size=SMALL,
    patch_size=PATCH,
    hidden_size=32,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=64,
    initializer_range=0.1,
    num_labels=len(COLORS),
)
teacher = ViTForImageClassification(config)
generator = torch.Generator().manual_seed(1)
for size, steps, rows, rate in ((16, 60, 64, 5e-3), (SMALL, 60, 16, 2e-3), (SIZE, 8, 4, 2e-3)):
    optimizer = torch.optim.AdamW(teacher.parameters(), lr=rate)
    for _ in range(steps):
        pixels, labels = images(generator, rows, size)
        loss = nn.functional.cross_entropy(read(teacher, pixels).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

# 3. Two students with its weights: slots and a window, and the window alone. A sequence of patches goes in raster order,
# row by row, and so do segments and window: one of 16 slots begins as the mean of 256 patches, which are 4 whole rows; a
# window of 128 is the row of a patch and those above and below it as far as the same column. Neither knows of
# squares. All patches see the class token itself: exact_first is 1 for a ViT, and more for a model with registers. With
# exact_below=0 small images are read by slots too, so that these learn there.
students = {
    "slots and window": linearize(teacher, k=16, window=128, exact_below=0),
    "window alone": linearize(teacher, k=0, window=128, exact_below=0),
}


# 4. Distillation: hidden states of every layer like the teacher's, and the class token's after the last. Labels are not
# needed. What chooses the slots begins at nothing, and has a higher learning rate than the weights.
def loss_of(student, pixels):
    with torch.no_grad():
        targets = read(teacher, pixels).hidden_states[1:]
    states = read(student, pixels).hidden_states[1:]
    errors = [(x - target).square().mean() / target.var() for x, target in zip(states, targets, strict=True)]
    return sum(errors) / len(errors) + 10 * (1 - torch.cosine_similarity(states[-1][:, 0], targets[-1][:, 0]).mean())


def distill(student):
    generator = torch.Generator().manual_seed(2)
    rates = [{"params": [p], "lr": 3e-2 if ".linformer." in name else 5e-4} for name, p in student.named_parameters()]
    optimizer = torch.optim.AdamW(rates)
    for size, steps, rows in (
        (SMALL, options.steps, 32),
        (2 * SMALL, options.steps // 2, 8),
        (SIZE, options.steps // 4, 4),
    ):
        for _ in range(steps):
            loss = loss_of(student, images(generator, rows, size)[0])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# 5. On large images held out. The seconds are those of one image, the least of three runs.
def labels_of(model, pixels):
    return torch.cat([read(model, rows).logits.argmax(dim=1) for rows in pixels.split(4)])


def seconds_of(model, pixels):
    times = []
    for _ in range(3):
        begin = time.perf_counter()
        read(model, pixels)
        times.append(time.perf_counter() - begin)
    return round(min(times), 3)


pixels, labels = images(torch.Generator().manual_seed(3), 32, SIZE)
with torch.inference_mode():
    teacher_labels = labels_of(teacher, pixels)
    print("full attention, accuracy:", round((teacher_labels == labels).float().mean().item(), 3))
    print("full attention, seconds of a forward pass:", seconds_of(teacher, pixels[:1]))
for name, student in students.items():
    with torch.no_grad():
        print(f"{name}, loss before:", round(loss_of(student, pixels[:8]).item(), 3))
    distill(student)
    with torch.inference_mode():
        print(f"{name}, loss distilled:", round(loss_of(student, pixels[:8]).item(), 3))
        print(
            f"{name}, same label as the teacher:",
            round((labels_of(student, pixels) == teacher_labels).float().mean().item(), 3),
        )
        print(f"{name}, seconds of a forward pass:", seconds_of(student, pixels[:1]), flush=True)
