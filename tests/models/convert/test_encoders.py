"""Encoders of transformers: with a slot for every token their own states and scores, with fewer means of segments."""

import json
import pickle
import re

import pytest
import torch
import transformers
from torch.testing import assert_close
from transformers import BertConfig, DistilBertConfig, DistilBertModel, RobertaConfig, XLMRobertaConfig

from torch_linformer import models
from torch_linformer.models.convert import from_bert, from_distilbert, from_roberta, from_xlm_roberta

LENGTH = 29
SIZES = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
}
FAMILIES = {  # what imports each, and its configuration; the position tables of two have rows for padding
    "Bert": (from_bert, BertConfig, {**SIZES, "max_position_embeddings": LENGTH}),
    "DistilBert": (
        from_distilbert,
        DistilBertConfig,
        {"vocab_size": 37, "dim": 15, "n_layers": 2, "n_heads": 3, "hidden_dim": 23, "max_position_embeddings": LENGTH},
    ),
    "Roberta": (from_roberta, RobertaConfig, {**SIZES, "max_position_embeddings": LENGTH + 2, "type_vocab_size": 1}),
    "XLMRoberta": (
        from_xlm_roberta,
        XLMRobertaConfig,
        {**SIZES, "max_position_embeddings": LENGTH + 6, "pad_token_id": 5},
    ),
}
TARGETS = {
    **{
        f"{family}{task}": f"Linformer{task}"
        for family in FAMILIES
        for task in (
            "Model",
            "ForMaskedLM",
            "ForTokenClassification",
            "ForQuestionAnswering",
            "ForSequenceClassification",
            "ForMultipleChoice",
        )
    },
    "BertForPreTraining": "LinformerForMaskedLM",
    "BertForNextSentencePrediction": "LinformerModel",
}
SCORES = ("logits", "prediction_logits", "start_logits", "end_logits")


def family_of(name):
    return FAMILIES[name.partition("For")[0].removesuffix("Model")]


@pytest.fixture
def original(randomize):
    """Function: a small model of transformers by its name, no parameter of which is at a special value."""

    def build(name, **fields):
        _, config_class, sizes = family_of(name)
        return randomize(getattr(transformers, name)(config_class(**{**sizes, **fields})))

    return build


def imported(model, **options):
    convert, _, _ = family_of(type(model).__name__)
    return convert(model, **options)


def batch_for(model, padded=True):
    """Ids and a mask, and types where the model has them; where padded, the first row has ten real tokens."""
    generator = torch.Generator(torch.get_default_device()).manual_seed(1)
    ids = torch.randint(6, 37, (2, LENGTH), generator=generator)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, 10:] = 0
        ids[0, 10:] = model.config.pad_token_id
    batch = {"input_ids": ids, "attention_mask": mask}
    if hasattr(model.config, "type_vocab_size"):
        batch["token_type_ids"] = torch.randint(model.config.type_vocab_size, (2, LENGTH), generator=generator)
    return batch


@torch.no_grad()
def largest_difference(ours, theirs, batch):
    """Between the scores, and between the hidden states of every layer, at real tokens."""
    real = batch["attention_mask"].bool()
    expected = theirs.base_model(**batch, output_hidden_states=True).hidden_states
    found = ours.base_model(**batch, output_hidden_states=True).hidden_states
    pairs = [(a[real], b[real]) for a, b in zip(found, expected, strict=True)]
    if type(ours) is not models.LinformerModel:
        if type(ours) is models.LinformerForMultipleChoice:
            batch = {name: tensor.unsqueeze(0) for name, tensor in batch.items()}
        found, expected = ([out[name] for name in SCORES if name in out] for out in (ours(**batch), theirs(**batch)))
        for a, b in zip(found, expected, strict=True):
            assert a.shape == b.shape
            pairs.append((a[real], b[real]) if a.shape[:2] == real.shape else (a, b))
    return max((a - b).abs().max().item() for a, b in pairs)


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("name", TARGETS)
def test_a_slot_for_every_token_gives_the_original(original, name, padded):
    theirs = original(name)
    ours = imported(theirs, k=LENGTH)
    assert type(ours).__name__ == TARGETS[name]
    assert largest_difference(ours, theirs, batch_for(theirs, padded)) < 1e-5


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
    model = from_bert(original("BertModel"), k=LENGTH, projection="linear")
    projection = model.encoder.layers[0].self_attn.context.proj_k
    tokens = torch.randn(1, 10, 15)
    assert_close(projection(tokens)[:, :10], tokens)


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


def test_settings_are_kept(original):
    fields = {"hidden_act": "relu", "layer_norm_eps": 1e-3, "hidden_dropout_prob": 0.25, "num_labels": 5}
    theirs = original("BertForTokenClassification", attention_probs_dropout_prob=0.5, pad_token_id=3, **fields)
    config = from_bert(theirs).config
    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.attention_probs_dropout_prob, config.pad_token_id) == (0.5, 3)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_classifier_keeps_its_labels_its_problem_and_its_dropout(original, family):
    labels = {"id2label": {0: "mud", 1: "sea", 2: "sand"}, "label2id": {"mud": 0, "sea": 1, "sand": 2}}
    dropout = {"seq_classif_dropout" if family == "DistilBert" else "classifier_dropout": 0.375}
    fields = {**labels, "problem_type": "multi_label_classification"}
    config = imported(original(f"{family}ForSequenceClassification", **fields, **dropout)).config
    assert {name: getattr(config, name) for name in fields} == fields
    assert (config.classifier_dropout, config.pooling) == (0.375, "cls")
    assert config.classifier_hidden_act == ("relu" if family == "DistilBert" else "tanh")


def test_settings_of_distilbert_are_kept(original):
    fields = {"activation": "relu", "dropout": 0.25, "attention_dropout": 0.5, "seq_classif_dropout": 0.375}
    config = imported(original("DistilBertForTokenClassification", **fields)).config
    assert (config.hidden_act, config.hidden_dropout_prob, config.attention_probs_dropout_prob) == ("relu", 0.25, 0.5)
    assert (config.type_vocab_size, config.layer_norm_eps) == (0, 1e-12)
    assert config.classifier_dropout is None, "tokens are read through the dropout of the layers"


def test_sinusoids_of_distilbert_are_a_table_like_any_other():
    theirs = DistilBertModel(DistilBertConfig(**FAMILIES["DistilBert"][2], sinusoidal_pos_embds=True)).eval()
    assert largest_difference(from_distilbert(theirs, k=LENGTH), theirs, batch_for(theirs)) < 1e-5


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
        ("BertForSequenceClassification", []),
        ("BertForNextSentencePrediction", ["bert.pooler.dense.weight", "cls.seq_relationship.weight"]),
        ("RobertaForSequenceClassification", []),
        ("XLMRobertaModel", ["pooler.dense.bias", "pooler.dense.weight"]),
        ("DistilBertModel", []),
        ("DistilBertForMultipleChoice", []),
    ],
)
def test_what_is_left_out_is_logged(original, caplog, name, left_out):
    imported(original(name))
    assert len(caplog.messages) == bool(left_out)
    for message in caplog.messages:
        assert message.startswith("left out, having no counterpart: ")
        assert all(part in message for part in left_out)


@pytest.mark.parametrize("name", TARGETS)
def test_a_folder_gives_what_the_model_gives(original, tmp_path, capfd, name):
    theirs = original(name)
    theirs.save_pretrained(tmp_path)
    capfd.readouterr()
    convert, _, _ = family_of(name)
    ours = convert(tmp_path, k=5)
    assert_close(dict(ours.state_dict()), dict(imported(theirs, k=5).state_dict()), rtol=0, atol=0)
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_that_names_no_class_holds_a_bare_model(original, tmp_path, family):
    theirs = original(f"{family}Model")
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["architectures"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    convert, _, _ = FAMILIES[family]
    assert_close(dict(convert(tmp_path).state_dict()), dict(imported(theirs).state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("BertForMaskedLM", ["bert.pooler.dense.weight", "cls.seq_relationship.bias", "bert.embeddings.position_ids"]),
        ("XLMRobertaForMaskedLM", ["roberta.pooler.dense.weight", "roberta.embeddings.position_ids"]),
        ("XLMRobertaModel", ["classifier.dense.weight"]),
        ("DistilBertModel", ["pre_classifier.weight", "classifier.weight"]),
    ],
)
def test_a_checkpoint_of_another_task_around_the_same_model(original, tmp_path, name, others):
    """As the first were published: a masked-language-modeling head, saved with the other heads of pretraining."""
    theirs = original(name)
    theirs.save_pretrained(tmp_path)
    rewrite(tmp_path, {name: torch.ones(2) for name in others})
    convert, _, _ = family_of(name)
    assert_close(dict(convert(tmp_path).state_dict()), dict(imported(theirs).state_dict()), rtol=0, atol=0)


def rewrite(folder, change):
    """Save the weights of a folder again with some tensors changed, added, or (None) removed."""
    from safetensors.torch import load_file, save_file

    state = load_file(folder / "model.safetensors") | change
    save_file({k: v for k, v in state.items() if v is not None}, folder / "model.safetensors", {"format": "pt"})


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "BertForMaskedLM",
            {"bert.encoder.layer.1.output.dense.bias": None},
            "a bert model: missing bert.encoder.layer.1.output.dense.bias",
        ),
        (
            "BertForMaskedLM",
            {"bert.encoder.layer.1.extra": torch.ones(2)},
            "a bert model: unknown bert.encoder.layer.1.extra",
        ),
        (
            "BertForSequenceClassification",
            {"bert.pooler.dense.weight": None},
            "a bert model: missing bert.pooler.dense.weight",
        ),
        (
            "RobertaForSequenceClassification",
            {"classifier.dense.bias": None},
            "a roberta model: missing classifier.dense.bias",
        ),
        (
            "XLMRobertaForMultipleChoice",
            {"roberta.pooler.dense.bias": None},
            "a xlm-roberta model: missing roberta.pooler.dense.bias",
        ),
        (
            "DistilBertForSequenceClassification",
            {"pre_classifier.weight": None, "distilbert.transformer.layer.1.extra": torch.ones(2)},
            "a distilbert model: missing pre_classifier.weight; unknown distilbert.transformer.layer.1.extra",
        ),
    ],
)
def test_names_that_do_not_fit_are_listed(original, tmp_path, name, change, message):
    original(name).save_pretrained(tmp_path)
    rewrite(tmp_path, change)
    convert, _, _ = family_of(name)
    with pytest.raises(ValueError, match=f"^these are not the weights of {re.escape(message)}$"):
        convert(tmp_path)


@pytest.mark.parametrize(
    ("name", "part"), [("BertModel", ""), ("RobertaForSequenceClassification", "classifier"), ("DistilBertModel", "")]
)
def test_a_model_with_more_than_the_table_knows_is_refused(original, name, part):
    theirs = original(name)
    theirs.get_submodule(part).adapter = torch.nn.Linear(2, 3)
    prefix = f"{part}." if part else ""
    message = f"{theirs.config.model_type} model: unknown {prefix}adapter.bias, {prefix}adapter.weight"
    with pytest.raises(ValueError, match=re.escape(message) + "$"):
        imported(theirs)


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


@pytest.mark.parametrize(
    ("convert", "name", "kind"),
    [
        (from_bert, "RobertaModel", "bert"),
        (from_roberta, "XLMRobertaForMaskedLM", "roberta"),
        (from_xlm_roberta, "RobertaForMaskedLM", "xlm-roberta"),
        (from_distilbert, "BertForSequenceClassification", "distilbert"),
    ],
)
def test_other_models_are_refused(original, tmp_path, convert, name, kind):
    theirs = original(name)
    theirs.save_pretrained(tmp_path)
    for source in (theirs, tmp_path):
        with pytest.raises(
            ValueError, match=f"^a {name} cannot be imported as {kind}, only one of [A-Z][A-Za-z]+Model, "
        ):
            convert(source)


@pytest.mark.parametrize("family", ["Bert", "Roberta", "XLMRoberta"])
@pytest.mark.parametrize("field", ["is_decoder", "add_cross_attention"])
def test_decoders_are_refused(family, field):
    convert, config_class, sizes = FAMILIES[family]
    config = config_class(**sizes, **{"is_decoder": True, field: True})
    with pytest.raises(ValueError, match=r"^a decoder \(is_decoder, add_cross_attention\) cannot be expressed$"):
        convert(getattr(transformers, f"{family}Model")(config))


def test_relative_positions_are_refused(original):
    """Of models with code of their own: transformers itself reads them as if their positions were learned."""
    model = original("BertModel")
    model.config.position_embedding_type = "alibi"
    with pytest.raises(
        ValueError, match=r"^positions are alibi \(position_embedding_type\): scores depend on the dist"
    ):
        from_bert(model)


@pytest.mark.parametrize("family", ["Roberta", "XLMRoberta"])
def test_a_head_with_an_activation_of_its_own_is_refused(original, family):
    with pytest.raises(
        ValueError,
        match=r"^the masked-language-modeling head uses gelu, the layers use relu: here both use the same activation$",
    ):
        imported(original(f"{family}ForMaskedLM", hidden_act="relu"))
