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


# 1. The task. All pixels are noise, except one patch, anywhere, of one color; the label is which of four it is. The
# class token, which comes before the first patch, has to get it from there: the mean of all pixels does not tell.
def images(generator, rows, size):
    pixels = torch.rand(rows, 3, size, size, generator=generator)
    labels = torch.randint(len(COLORS), (rows,), generator=generator)
    corners = torch.randint(size // PATCH, (rows, 2), generator=generator) * PATCH
    for image, label, (top, left) in zip(pixels, labels, corners, strict=True):
        image[:, top : top + PATCH, left : left + PATCH] = COLORS[label][:, None, None]
    return 2 * pixels - 1, labels


def read(model, pixels):  # positions that were learned on small images are interpolated on large ones
    return model(pixels, interpolate_pos_encoding=True, output_hidden_states=True)


def train(optimizer, loss_of, stages, seed):
    generator = torch.Generator().manual_seed(seed)
    for size, steps, rows in stages:
        for _ in range(steps):
            loss = loss_of(*images(generator, rows, size))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


# 2. The teacher: a small ViT of transformers with its own full attention. It learns to look for the patch in small
# images, and goes on with a few large ones.
torch.manual_seed(0)
sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
config = ViTConfig(image_size=SMALL, patch_size=PATCH, num_labels=len(COLORS), initializer_range=0.1, **sizes)
teacher = ViTForImageClassification(config)
train(
    torch.optim.AdamW(teacher.parameters(), lr=3e-3),
    lambda pixels, labels: nn.functional.cross_entropy(read(teacher, pixels).logits, labels),
    stages=[(16, 100, 64), (SMALL, 60, 16), (SIZE, 8, 4)],
    seed=1,
)

# 3. Two students with its weights: slots and a window, and the window alone. Patches are in raster order, and so are
# segments and window: a slot begins as the mean of a sixteenth of the sequence, some whole rows; a window of 128 is
# in large images the row of a patch, and those above and below up to its column. Neither knows of squares.
# exact_first is 1 for a ViT, its class token, and more for models with registers: every patch sees these themselves.
# exact_below is 0 so that slots read, and learn from, small images too.
chosen = {"window": 128, "exact_below": 0}
students = {"slots and window": linearize(teacher, k=16, **chosen), "window alone": linearize(teacher, k=0, **chosen)}


# 4. Distillation: the hidden states of every layer, and the class token's after the last. No labels are needed. What
# chooses the slots begins at nothing, and has a higher learning rate than the weights.
def distance(student, pixels):
    with torch.no_grad():
        targets = read(teacher, pixels).hidden_states[1:]
    states = read(student, pixels).hidden_states[1:]
    errors = [(x - target).square().mean() / target.var() for x, target in zip(states, targets, strict=True)]
    cosine = torch.cosine_similarity(states[-1][:, 0], targets[-1][:, 0], dim=-1).mean()
    return sum(errors) / len(errors) + 10 * (1 - cosine)


def distill(student):
    rates = [{"params": [x], "lr": 3e-2 if ".linformer." in name else 5e-4} for name, x in student.named_parameters()]
    stages = [(SMALL, options.steps, 32), (2 * SMALL, options.steps // 2, 8), (SIZE, options.steps // 4, 4)]
    train(torch.optim.AdamW(rates), lambda pixels, labels: distance(student, pixels), stages, seed=2)


# 5. On large images held out. Seconds are of the processor, the least of three passes of one image.
test_pixels, test_labels = images(torch.Generator().manual_seed(3), 32, SIZE)


@torch.inference_mode()
def predict(name, model):
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        read(model, test_pixels[:1])
        seconds.append(time.process_time() - begin)
    print(f"{name}, seconds of processor time of a forward pass: {min(seconds):.3f}")
    return torch.cat([read(model, pixels).logits.argmax(dim=1) for pixels in test_pixels.split(4)])


teacher_labels = predict("full attention", teacher.eval())
print("full attention, accuracy:", round((teacher_labels == test_labels).float().mean().item(), 3))
for name, student in students.items():
    print(f"{name}, loss before distillation: {distance(student, test_pixels[:8]).item():.3f}")
    distill(student)
    print(f"{name}, loss after it: {distance(student, test_pixels[:8]).item():.3f}")
    same = predict(name, student.eval()) == teacher_labels
    print(f"{name}, same label as the teacher: {round(same.float().mean().item(), 3)}", flush=True)
