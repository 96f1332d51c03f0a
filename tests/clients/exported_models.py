"""The classifiers that other programs run, and a batch of them, with padding before the words of a row and after."""

import torch

from torch_linformer.models import LinformerConfig, LinformerForSequenceClassification

EXPORTED = {
    f"{projection}{', window' if window else ''}": {"projection": projection, "window": window}
    for projection in ("linear", "mean", "conv", "dynamic")
    for window in (None, 4)
}


def classifier(config, name):
    torch.manual_seed(0)
    fields = {**config.to_diff_dict(), **EXPORTED[name], "num_hidden_layers": 1}
    return LinformerForSequenceClassification(LinformerConfig(**fields)).eval()


def inputs_of(config, batch, length, masked=True):
    """Ids and, if they are to be, a mask, by name."""
    ids, mask = torch.randint(5, config.vocab_size, (batch, length)), torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    mask[-1, : length // 3] = 0
    return {"input_ids": ids, **({"attention_mask": mask} if masked else {})}
