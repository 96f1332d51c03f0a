"""BERT and RoBERTa: with a slot for every token their own hidden states, with fewer the means of segments."""

import pickle

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers import BertConfig, BertModel, RobertaConfig

from torch_linformer import models
from torch_linformer.models.convert import from_bert, from_roberta
from torch_linformer.models.convert.bert import segment_means

LENGTH = 29
SIZES = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
}
TARGETS = {
    "BertModel": "LinformerModel",
    "BertForMaskedLM": "LinformerForMaskedLM",
    "BertForPreTraining": "LinformerForMaskedLM",
    "BertForTokenClassification": "LinformerForTokenClassification",
    "BertForQuestionAnswering": "LinformerForQuestionAnswering",
    "BertForSequenceClassification": "LinformerModel",
    "BertForMultipleChoice": "LinformerModel",
    "BertForNextSentencePrediction": "LinformerModel",
    "RobertaModel": "LinformerModel",
    "RobertaForMaskedLM": "LinformerForMaskedLM",
    "RobertaForTokenClassification": "LinformerForTokenClassification",
    "RobertaForQuestionAnswering": "LinformerForQuestionAnswering",
    "RobertaForSequenceClassification": "LinformerModel",
    "RobertaForMultipleChoice": "LinformerModel",
}
SCORES = ("logits", "prediction_logits", "start_logits", "end_logits")


@pytest.fixture
def original(randomize):
    """Function: a small model of transformers by its name, no parameter of which is at a special value."""

    def build(name, **fields):
        if name.startswith("Bert"):
            config = BertConfig(**{**SIZES, "max_position_embeddings": LENGTH, **fields})
        else:
            config = RobertaConfig(**{**SIZES, "max_position_embeddings": LENGTH + 2, "type_vocab_size": 1, **fields})
        return randomize(getattr(transformers, name)(config))

    return build


def imported(model, **options):
    return (from_bert if type(model).__name__.startswith("Bert") else from_roberta)(model, **options)


def batch_for(model, padded=True):
    """Ids, a mask and token types; where padded, the first row has ten real tokens."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(2, 37, (2, LENGTH), generator=generator)
    types = torch.randint(model.config.type_vocab_size, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 10:] = 0
        ids[0, 10:] = model.config.pad_token_id
    return {"input_ids": ids, "attention_mask": mask, "token_type_ids": types}


@torch.no_grad()
def largest_difference(ours, theirs, batch):
    """Between the scores, and between the hidden states of every layer, at real tokens."""
    real = batch["attention_mask"].bool()
    expected = theirs.base_model(**batch, output_hidden_states=True).hidden_states
    found = ours.base_model(**batch, output_hidden_states=True).hidden_states
    pairs = list(zip(found, expected, strict=True))
    if type(ours) is not models.LinformerModel:
        found, expected = ours(**batch), theirs(**batch)
        wanted = [expected[name] for name in SCORES if name in expected]
        pairs += zip([found[name] for name in SCORES if name in found], wanted, strict=True)
    return max((a[real] - b[real]).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("name", TARGETS)
def test_a_slot_for_every_token_gives_the_original(original, name):
    theirs = original(name)
    ours = imported(theirs, k=LENGTH)
    assert type(ours).__name__ == TARGETS[name]
    assert largest_difference(ours, theirs, batch_for(theirs)) < 1e-5


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaModel"])
def test_learned_maps_begin_as_the_means(original, name):
    theirs = original(name)
    ours = imported(theirs, k=LENGTH, projection="linear")
    assert largest_difference(ours, theirs, batch_for(theirs, padded=False)) < 1e-5
    few, means = (imported(theirs, k=4, projection=projection) for projection in ("linear", "mean"))
    batch = batch_for(theirs, padded=False)
    hidden = [model.base_model(**batch).last_hidden_state for model in (few, means)]
    assert_close(*hidden, rtol=0, atol=1e-5)
    assert [p.shape for name, p in few.named_parameters() if ".proj_" in name] == [(LENGTH, 4)] * 4
    assert all(p.requires_grad for p in few.parameters())


def test_learned_maps_take_a_short_row_as_it_is(original):
    """A factor for the length would move the means away from the tokens they are made of."""
    projection = from_bert(original("BertModel"), k=LENGTH, projection="linear").encoder.layers[0].self_attn.proj_k
    tokens = torch.randn(1, 10, 15)
    assert_close(projection(tokens)[:, :10], tokens)


def test_segment_means_written_out():
    third, half = 1 / 3, 1 / 2
    expected = [[third, 0], [third, 0], [third, 0], [0, half], [0, half]]
    assert_close(segment_means(5, 3), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize(
    ("options", "max_len", "k"),
    [
        ({}, LENGTH, 7),
        ({"k": 7}, LENGTH, 6),  # segments of 5 tokens: six of them
        ({"max_len": 11}, 11, 2),
        ({"max_len": 61, "k": 61}, 61, 61),
        ({"max_len": 2048}, 2048, 256),
    ],
)
def test_length_and_slots(original, options, max_len, k):
    theirs = original("BertModel")
    ours = from_bert(theirs, **options)
    assert ours.config.max_position_embeddings == max_len
    window = -(-max_len // options.get("k", max(1, min(256, max_len // 4))))
    assert ours.config.k == -(-max_len // window)
    rows = theirs.embeddings.position_embeddings.weight
    expected = torch.stack([rows[position % LENGTH] for position in range(max_len)])
    assert torch.equal(ours.embeddings.position_embeddings.weight, expected)
    assert ours(torch.ones(1, max_len, dtype=torch.long)).last_hidden_state.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_the_dtype_stays(original, dtype):
    assert {p.dtype for p in from_bert(original("BertModel").to(dtype), projection="linear").parameters()} == {dtype}


def test_settings_come_along(original):
    fields = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.25, "num_labels": 5}
    theirs = original("BertForTokenClassification", attention_probs_dropout_prob=0.5, pad_token_id=3, **fields)
    config = from_bert(theirs).config
    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.attention_probs_dropout_prob, config.pad_token_id) == (0.5, 3)


def test_an_untied_head_stays_untied(original):
    theirs = original("BertForMaskedLM", tie_word_embeddings=False)
    ours = from_bert(theirs, k=LENGTH)
    assert not ours.config.tie_word_embeddings
    assert largest_difference(ours, theirs, batch_for(theirs)) < 1e-5


@pytest.mark.parametrize(
    ("name", "left_out"),
    [
        ("BertModel", ["pooler.dense.bias", "pooler.dense.weight"]),
        ("BertForMaskedLM", []),
        ("RobertaForSequenceClassification", ["classifier.dense.bias", "classifier.out_proj.weight"]),
    ],
)
def test_what_is_left_out_is_said(original, caplog, name, left_out):
    imported(original(name))
    assert len(caplog.messages) == bool(left_out)
    for message in caplog.messages:
        assert message.startswith("left out, having no counterpart: ")
        assert all(part in message for part in left_out)


@pytest.mark.parametrize("name", ["BertForMaskedLM", "RobertaForTokenClassification", "BertModel"])
def test_a_folder_gives_what_the_model_gives(original, tmp_path, capfd, name):
    theirs = original(name)
    theirs.save_pretrained(tmp_path)
    capfd.readouterr()
    ours = (from_bert if name.startswith("Bert") else from_roberta)(tmp_path, k=5)
    assert_close(dict(ours.state_dict()), dict(imported(theirs, k=5).state_dict()), rtol=0, atol=0)
    assert capfd.readouterr().out == ""


def test_a_checkpoint_of_another_task_around_the_same_model(original, tmp_path):
    """As the first BERTs were published: a head for masked words, saved with what pretraining had beside it."""
    theirs = original("BertForPreTraining")
    theirs.save_pretrained(tmp_path)
    config = theirs.config
    config.architectures = ["BertForMaskedLM"]
    config.save_pretrained(tmp_path)
    assert_close(dict(from_bert(tmp_path).state_dict()), dict(from_bert(theirs).state_dict()), rtol=0, atol=0)


def rewrite(folder, change):
    """Save the weights of a folder anew with some tensors changed, added, or (None) removed."""
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors") | change
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bert.encoder.layer.1.output.dense.bias": None}, "missing bert.encoder.layer.1.output.dense.bias$"),
        ({"bert.encoder.layer.1.extra": torch.ones(2)}, "unknown bert.encoder.layer.1.extra$"),
    ],
)
def test_names_that_do_not_fit_are_listed(original, tmp_path, change, message):
    original("BertForMaskedLM").save_pretrained(tmp_path)
    rewrite(tmp_path, change)
    with pytest.raises(ValueError, match=f"these are not the weights of a bert model: {message}"):
        from_bert(tmp_path)


def test_a_model_with_more_than_the_table_knows_is_refused(original):
    theirs = original("BertModel")
    theirs.adapter = torch.nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"a bert model: unknown adapter\.bias, adapter\.weight$"):
        from_bert(theirs)


class Custom:
    """A class of whoever saved the file."""


def test_a_pickle_that_would_run_code_is_refused(original, tmp_path):
    theirs = original("BertModel")
    theirs.config.architectures = ["BertModel"]
    theirs.config.save_pretrained(tmp_path)
    torch.save({**theirs.state_dict(), "x": Custom()}, tmp_path / "pytorch_model.bin", pickle_module=pickle)
    with pytest.raises(ValueError, match=r"refused, because it holds .*Custom, and loading that would run code"):
        from_bert(tmp_path)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projection": "conv"}, "projection must be mean or linear, got 'conv'"),
        ({"k": 30}, r"k must lie between 1 and max_len \(--max-length\) = 29, got 30"),
        ({"k": 0}, "k must lie between 1 and max_len"),
        ({"max_len": 0}, r"max_len \(--max-length\) must be at least 1, got 0"),
    ],
)
def test_options_out_of_range(original, options, message):
    with pytest.raises(ValueError, match=message):
        from_bert(original("BertModel"), **options)


def test_other_models_are_refused(original, tmp_path):
    with pytest.raises(ValueError, match="a RobertaModel cannot be imported as bert, only one of BertModel, "):
        from_bert(original("RobertaModel"))
    original("RobertaModel").save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="a RobertaModel cannot be imported as bert"):
        from_bert(tmp_path)
    with pytest.raises(ValueError, match=r"a decoder \(is_decoder, add_cross_attention\) cannot be expressed"):
        from_bert(BertModel(BertConfig(**SIZES, is_decoder=True)))
    with pytest.raises(ValueError, match="RoBERTa's head for masked words uses gelu, its layers relu"):
        from_roberta(original("RobertaForMaskedLM", hidden_act="relu"))
