"""Folders that the Auto classes open, heads of every family after a step of their loss, copies and pickles."""

import copy
import json
import math
import pickle
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
import transformers
from encoders.families import (
    FAMILIES,
    LENGTH,
    TEXTS,
    VOCABULARY,
    base_class,
    hidden,
    inputs_of,
    linear,
    original,
    random_model,
)
from safetensors.torch import load_file, save_file
from torch.testing import assert_close
from transformers import AutoConfig, AutoModel, AutoModelForSequenceClassification

from torch_linformer.encoders import linearize
from torch_linformer.encoders.classes import LinearConfig, LinearEncoder
from torch_linformer.encoders.linearize import with_options

SAME = {"rtol": 0, "atol": 1e-12}  # sums depend on where a tensor lies in memory
CLASSES = {"labels": torch.tensor([0, 1])}
TOKENS = {"labels": torch.arange(2 * LENGTH).view(2, LENGTH)}
TARGETS = {
    "AutoModelForSequenceClassification": CLASSES,
    "AutoModelForTokenClassification": {"labels": TOKENS["labels"] % 2},
    "AutoModelForQuestionAnswering": {"start_positions": torch.tensor([2, 3]), "end_positions": torch.tensor([5, 28])},
    "AutoModelForMaskedLM": {"labels": TOKENS["labels"] % VOCABULARY},
    "AutoModelForMultipleChoice": CLASSES,
    "AutoModelForImageClassification": CLASSES,
    "AutoModelForAudioClassification": CLASSES,
    "AutoModelForCTC": {"labels": torch.tensor([[3, 4, 5], [6, 7, 8]])},
    "AutoModelForAudioFrameClassification": {"labels": torch.eye(2)[TOKENS["labels"] % 2]},
}
HEADS = [
    (family, auto)
    for family in FAMILIES
    for auto in TARGETS
    if family.name != "Whisper" and type(family.config) in getattr(transformers, auto)._model_mapping
]
STEP = 1e-5  # small enough for the loss of a steep model to fall

every_family = pytest.mark.parametrize("family", FAMILIES, ids=repr)


def batch_of(family, auto):
    """A batch of the task of an Auto class."""
    inputs = inputs_of(family)
    if auto == "AutoModelForMultipleChoice":
        inputs = {name: torch.stack([x, x.flip(-1)], dim=1) for name, x in inputs.items()}
    return {**inputs, **TARGETS[auto]}


@pytest.mark.parametrize(("family", "auto"), HEADS, ids=str)
def test_a_head_learns_and_is_opened(family, auto, tmp_path):
    opens = getattr(transformers, auto)
    whole = random_model(opens._model_mapping[type(family.config)], family.config)
    model, batch = linear(whole), batch_of(family, auto)
    before = model(**batch).loss
    before.backward()
    slots = [x for name, x in model.named_parameters() if ".linformer." in name]
    assert slots and all(x.grad.any() for x in slots)
    torch.optim.SGD(model.parameters(), lr=STEP).step()
    assert model(**batch).loss < before
    model.save_pretrained(tmp_path)
    opened = opens.from_pretrained(tmp_path).eval()
    assert type(opened) is type(model) and type(opened).__name__ == f"Linear{type(whole).__name__}"
    assert_close(opened(**batch).loss, model(**batch).loss, **SAME)
    base = AutoModel.from_pretrained(tmp_path).eval()
    assert isinstance(base, LinearEncoder) and isinstance(base, type(original(family)))
    inputs = inputs_of(family)
    assert_close(hidden(base, **inputs), hidden(model.base_model, **inputs), **SAME)


@every_family
@torch.no_grad()
def test_an_encoder_is_saved_and_opened(family, tmp_path):
    model = linear(original(family), exact_below=11)
    model.save_pretrained(tmp_path)
    opened = AutoModel.from_pretrained(tmp_path).eval()
    assert type(opened) is type(model)
    assert isinstance(model, base_class(family)) and isinstance(model.config, type(family.config))
    assert_close(hidden(opened, **inputs_of(family)), hidden(model, **inputs_of(family)), **SAME)
    config = AutoConfig.from_pretrained(tmp_path)
    assert type(config) is type(model.config) and isinstance(config, LinearConfig)
    assert config.linear_options == model.config.linear_options
    written = json.loads((tmp_path / "config.json").read_text())
    assert written["model_type"] == "linear_encoder"
    assert written["encoder_class"] == f"{base_class(family).__module__}.{base_class(family).__qualname__}"


@every_family
@torch.no_grad()
def test_copies_and_pickles(family):
    model = linear(original(family))
    expected = hidden(model, **inputs_of(family))
    # Weights as torch.nn.utils.parametrizations keeps them are not pickled, in a linear model or another.
    pickled = [] if family.name in ("Wav2Vec2", "Hubert") else [pickle.loads(pickle.dumps(model))]
    for twin in (copy.deepcopy(model), *pickled):
        assert type(twin) is type(model)
        assert_close(hidden(twin, **inputs_of(family)), expected, **SAME)
    for twin in (copy.deepcopy(model.config), pickle.loads(pickle.dumps(model.config))):
        assert twin.to_dict() == model.config.to_dict() and twin.attentions == model.config.attentions


@torch.no_grad()
def test_an_encoder_without_weights_of_a_head_gets_new_ones(tmp_path):
    """As in transformers; and the slots keep what they have learned."""
    model = linear(original(TEXTS[0]))
    model.save_pretrained(tmp_path)
    opened, report = AutoModelForSequenceClassification.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == {"classifier.weight", "classifier.bias"}
    assert_close(hidden(opened.bert.eval(), **inputs_of(TEXTS[0])), hidden(model, **inputs_of(TEXTS[0])), **SAME)


def test_slots_that_a_folder_lacks_begin_as_means_of_segments(tmp_path):
    linear(original(TEXTS[0])).save_pretrained(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    kept = {name: x for name, x in weights.items() if ".linformer." not in name}
    save_file(kept, tmp_path / "model.safetensors", {"format": "pt"})
    opened, report = AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert report["missing_keys"] == weights.keys() - kept.keys()
    for name, parameter in opened.named_parameters():
        if name in report["missing_keys"]:
            spread = 0.02 if name.endswith("proj_k.weight") else 0.0
            assert parameter.std().item() == pytest.approx(spread, abs=0.005), name


def test_what_is_not_changed(tmp_path):
    """The model that is made linear, and the classes of transformers."""
    family = TEXTS[0]
    whole = random_model(base_class(family), family.config)
    before = copy.deepcopy(whole.state_dict())
    attention, expected = whole.config._attn_implementation, hidden(whole, **inputs_of(family))
    model = linearize(whole, k=7)
    assert whole.config.to_dict() == random_model(base_class(family), family.config).config.to_dict()
    assert_close(dict(whole.state_dict()), dict(before), **SAME)
    assert whole.config._attn_implementation == attention != "linformer"
    assert_close(hidden(whole, **inputs_of(family)), expected, **SAME)
    assert not any(".linformer." in name for name in before) and type(whole) is transformers.BertModel
    shared = {x.data_ptr() for x in whole.parameters()} & {x.data_ptr() for x in model.parameters()}
    assert not shared
    whole.save_pretrained(tmp_path)
    assert type(AutoModel.from_pretrained(tmp_path)) is transformers.BertModel


def test_making_linear_twice_is_a_class_once():
    first, second = (linear(original(TEXTS[0])) for _ in range(2))
    assert type(first) is type(second) and type(first.config) is type(second.config)


@pytest.mark.parametrize("usual", [None, 20], ids=["all positions", "fewer in use"])
def test_longer_texts_repeat_learned_positions(usual):
    """As in windows one after the other: without those of special tokens, and what RoBERTa's kin keep for padding."""
    window = usual or 50
    for family, offset in ((TEXTS[0], 0), (TEXTS[1], 2)):
        table = original(family).embeddings.position_embeddings.weight
        longer = linearize(original(family), k=7, max_length=120, usual_length=usual)
        for model in (longer, with_options(longer, replace(longer.config.linear_options, max_length=140))):
            made, length = model.embeddings.position_embeddings.weight, model.config.longest_input
            assert len(made) == model.config.max_position_embeddings == length + offset
            rows = [*range(window), *((row - 1) % (window - 2) + 1 for row in range(window, length))]
            assert_close(made[:offset], table[:offset], **SAME)
            assert_close(made[offset:], table[offset:][rows], **SAME)
            assert hidden(model, **inputs_of(family, length=length)).shape[1] == length


def test_an_encoder_that_is_used_with_fewer_tokens_than_it_could_read():
    """Its window is what it is used with, no longer row is read at once, and slots begin light."""
    options = linearize(original(TEXTS[0]), k=7, max_length=120, usual_length=20).config.linear_options
    assert (options.window, options.exact_below) == (20, 20)
    as_told = linearize(original(TEXTS[0]), 7, 4, max_length=120, usual_length=20, exact_below=30)
    assert (as_told.config.linear_options.window, as_told.config.linear_options.exact_below) == (4, 30)
    for model, tokens in ((as_told, 16), (linearize(original(TEXTS[0]), 7, 4, max_length=50), 50)):
        mass = model.encoder.layer[0].attention.self.linformer.slot_terms.mass
        assert_close(mass, torch.full_like(mass, math.log(tokens / model.config.longest_input)))


def test_the_plain_import_opens_a_folder(tmp_path):
    """In a process of its own; attn_implementation='linformer' is known too."""
    model = linear(original(TEXTS[0]))
    model.save_pretrained(tmp_path / "model")
    (tmp_path / "config.pickle").write_bytes(pickle.dumps(model.config))
    code = """
import pickle, torch_linformer, transformers
print(type(transformers.AutoModel.from_pretrained("model")).__name__, "linformer" in transformers.AttentionInterface())
print(type(pickle.load(open("config.pickle", "rb"))).__name__)"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == ["LinearBertModel True", "LinearBertConfig"], done.stderr
