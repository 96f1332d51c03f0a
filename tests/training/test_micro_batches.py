"""Batches in parts."""

import torch

from torch_linformer.training.batches import parts_of


def test_rows_of_a_batch_in_parts():
    """Every row once, longest first, with its labels and without padding that its part does not need."""
    lengths = [3, 7, 1, 5, 4]
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).long()
    batch = {
        "input_ids": torch.arange(45).view(5, 9) * mask,
        "attention_mask": mask,
        "labels": torch.arange(45).view(5, 9),
    }
    parts = parts_of(batch, 18)  # two rows of nine columns
    assert [part["attention_mask"].sum(dim=1).tolist() for part in parts] == [[7, 5], [4, 3], [1]]
    assert [part["labels"].shape for part in parts] == [(2, 7), (2, 4), (1, 1)]
    assert [part["input_ids"][:, 0].tolist() for part in parts] == [[9, 27], [36, 0], [18]]
    assert parts_of(batch, 45) == [batch] and len(parts_of(batch, 1)) == 5
