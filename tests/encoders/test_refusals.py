"""What cannot be linear, or not so, is refused in one line that names the remedy."""

import copy
import json
import sys

import pytest
import torch
import transformers
from encoders.families import TEXTS, VOCABULARY, base_class, inputs_of, linear, original, random_model
from transformers import AutoConfig, AutoModel

from torch_linformer.encoders import LinearOptions, linearize
from torch_linformer.encoders.families import check_kind

SLOT = "its tokens see only what comes before them, and a slot mixes all positions"
DISTANCE = "scores depend on the distance to a key"
ENCODER_ALONE = r"is an encoder-decoder: its encoder alone can be linear, linearize\(model\.get_encoder\(\)\)"
KINDS = {
    "GPT2": rf"GPT2 \(gpt2\) is a decoder: {SLOT}",
    "Llama": rf"\(llama\) is a decoder: {SLOT}",
    "Bart": ENCODER_ALONE,
    "T5": rf"\(t5\): {DISTANCE}",
    "Deberta": rf"\(deberta\): {DISTANCE}",
    "DebertaV2": rf"\(deberta-v2\): {DISTANCE}",
    "Longformer": r"\(longformer\): it is linear already, by windows and global tokens",
    "BigBird": r"\(big_bird\): it is linear already, by blocks",
}
BERT = TEXTS[0]
MASK = torch.ones(2, 1, 29, 29, dtype=torch.bool)


def config_of(name, **fields):
    return getattr(transformers, f"{name}Config")(**fields)


def one_line(error):
    return "\n" not in str(error.value)


@pytest.mark.parametrize("name", KINDS)
def test_kinds_are_told_from_their_configuration(name):
    with pytest.raises(ValueError, match=KINDS[name]) as error:
        check_kind(name, config_of(name))
    assert one_line(error)


def test_an_encoder_of_relative_positions_in_its_scores():
    """T5's, which no family's name refuses when its scores are another's: by its field."""
    encoder = transformers.T5EncoderModel(config_of("T5", d_model=8, d_kv=4, num_heads=2, num_layers=1, d_ff=8))
    with pytest.raises(ValueError, match=rf"T5EncoderModel \(t5\): {DISTANCE}") as error:
        linearize(encoder)
    assert one_line(error)


@pytest.mark.parametrize("fields", [{"is_decoder": True}, {"is_decoder": True, "add_cross_attention": True}])
def test_an_encoder_that_decodes(fields):
    with pytest.raises(ValueError, match=r"BertModel \(bert\) is a decoder"):
        linearize(random_model(base_class(BERT), config_of("Bert", **{**BERT.fields, **fields})))


def test_what_is_linear_already():
    with pytest.raises(ValueError, match=r"LinearBertModel \(linear_encoder\): is linear already"):
        linearize(linear(original(BERT)))


NOTHING = "k=0 leaves only the window, and without a window nothing is left to attend to"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"k": 51}, "k must be at most the 50 tokens read at once, got 51"),
        *(
            ({name: -1}, f"{name} must be at least 0, got -1")
            for name in ("k", "exact_first", "exact_last", "exact_below")
        ),
        ({"window": -2}, "window"),
        ({"projection": "conv"}, "projection must be .*dynamic.*mean"),
        *(({"max_length": number}, f"max_length must be at least 1, got {number}") for number in (0, -5)),
        ({"k": 0, "window": 0}, NOTHING),
        *(({"usual_length": x}, f"usual_length must lie between 3 and the 50 tokens .*, got {x}") for x in (2, 51)),
    ],
    ids=str,
)
def test_numbers_out_of_range(options, said):
    with pytest.raises(ValueError, match=said) as error:
        linearize(original(BERT), **options)
    assert one_line(error)
    if "usual_length" not in options:
        with pytest.raises(ValueError, match=said):
            LinearOptions(**{"k": 7, "max_length": 50, **options, "window": options.get("window", 128) or None})


def test_a_text_that_is_too_long():
    model = linear(original(TEXTS[-1]), max_length=40)
    with pytest.raises(ValueError, match="has 41 positions and this encoder reads 40"):
        model(**inputs_of(TEXTS[-1], length=41))


@pytest.mark.parametrize("mask", [MASK, MASK.double()], ids=["bool", "float"])
def test_masks_of_pairs(mask):
    with pytest.raises(
        ValueError, match=r"cannot be applied to slots: give one of shape \(B, N\), 0 at padding"
    ) as error:
        linear(original(BERT))(**inputs_of(BERT), attention_mask=mask)
    assert one_line(error)


def test_packed_rows():
    family = TEXTS[-1]
    ends = torch.tensor([0, 10, 29], dtype=torch.int32)
    with pytest.raises(ValueError, match="cu_seq_lens_q cannot be applied to slots: leave it out"):
        linear(original(family))(**inputs_of(family), cu_seq_lens_q=ends, cu_seq_lens_k=ends)


def test_causal_modules_under_the_name():
    """Whose masks are theirs, and not only padding."""
    small = {"vocab_size": VOCABULARY, "n_embd": 8, "n_head": 2, "n_layer": 1, "bos_token_id": 1, "eos_token_id": 2}
    model = transformers.GPT2Model._from_config(config_of("GPT2", **small), attn_implementation="linformer")
    with pytest.raises(ValueError, match="the attention of gpt2 is causal: its tokens see only what comes before them"):
        model(**inputs_of(BERT))


def test_attention_to_another_sequence():
    attend = transformers.AttentionInterface()["linformer"]
    query, others = torch.zeros(2, 3, 29, 8), torch.zeros(2, 3, 17, 8)
    with pytest.raises(ValueError, match="attends to another sequence, or to a cache: linformer attention is self-"):
        attend(torch.nn.Module(), query, others, others)


@pytest.fixture
def folder(tmp_path):
    """A function: a saved linear BERT whose config.json is changed."""
    linear(original(BERT)).save_pretrained(tmp_path)
    file = tmp_path / "config.json"

    def change(function):
        fields = json.loads(file.read_text())
        function(fields)
        file.write_text(json.dumps(fields))
        return tmp_path

    return change


def test_another_attention_for_a_linear_folder(folder):
    with pytest.raises(ValueError, match=r"attn_implementation='sdpa' is not for a linear encoder, .*: leave it out"):
        AutoModel.from_pretrained(folder(lambda fields: None), attn_implementation="sdpa")
    model = linear(original(BERT))
    with pytest.raises(ValueError, match="the attention of a linear encoder is 'linformer', not 'eager'"):
        model.set_attn_implementation("eager")
    model.set_attn_implementation("linformer")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda fields: fields["linformer"]["options"].update(exact_middle=3),
            "exact_middle is no option of a linear enc",
        ),
        (
            lambda fields: fields.pop("linformer"),
            "says nothing of linformer: make such a model by torch_linformer.linear",
        ),
        (
            lambda fields: fields["linformer"]["attentions"].update(nowhere=[1, 1, 1, None]),
            "attentions has nowhere, and",
        ),
        (lambda fields: fields["positions"].update(tables=["nowhere"]), "positions has nowhere, and"),
        (lambda fields: fields["positions"].update(longest="50"), "has no positions of a linear encoder"),
    ],
)
def test_a_folder_that_says_otherwise_or_nothing(folder, change, said):
    with pytest.raises(ValueError, match=rf"config\.json:? .*{said}") as error:
        AutoModel.from_pretrained(folder(change))
    assert one_line(error)


@pytest.mark.parametrize(
    "name",
    [
        "this_module.Encoder",
        "transformers.models.bert.modeling_bert.NoSuchModel",
        "transformers.models.bert.modeling_bert.BertConfig",
        "transformers.models.nothing.modeling_nothing.Model",
        "transformers.models..this_module.Encoder",
        "transformers.models.bert.modeling_bert.torch.nn.Linear",
        "BertModel",
        None,
        3,
    ],
)
def test_a_class_that_is_not_of_transformers_is_not_imported(folder, name, monkeypatch):
    changed = folder(lambda fields: fields.update(encoder_class=name))
    (changed / "this_module.py").write_text("raise SystemExit('imported')")
    monkeypatch.syspath_prepend(changed)
    with pytest.raises(ValueError, match=r"encoder_class .* is no model of transformers .*; update tr") as error:
        AutoConfig.from_pretrained(changed)
    assert one_line(error) and "this_module" not in sys.modules


def test_what_is_no_whole_number_and_no_model():
    for name, value in (("k", 2.5), ("window", True), ("exact_below", "8"), ("max_length", 7.0)):
        with pytest.raises(ValueError, match=f"{name} must be a whole number, got {value!r}"):
            LinearOptions(**{name: value})
    with pytest.raises(TypeError, match="takes a model of transformers, got str"):
        linearize("path/to/bert")


def test_slots_that_are_never_used_are_told(caplog):
    linearize(original(BERT), k=8, window=8, max_length=2 * 8 + 8 + 640 + 1)
    assert "never used" not in caplog.text
    linearize(original(BERT), k=8, window=8, max_length=2 * 8 + 8 + 640)
    assert "exact_below = 664 tokens get full attention" in caplog.text and "never used" in caplog.text


def test_what_was_frozen_stays_frozen():
    model = copy.deepcopy(original(BERT))
    model.embeddings.requires_grad_(False)
    made = linearize(model, k=8, window=8)
    assert not any(parameter.requires_grad for parameter in made.embeddings.parameters())
    assert all(parameter.requires_grad for parameter in made.encoder.parameters())
