"""Heads of this package on linear encoders of transformers: BERT, RoBERTa, DistilBERT and ModernBERT."""

import copy

import pytest
import torch
import transformers
from transformers import AutoModel, AutoModelForSequenceClassification, AutoModelForTokenClassification

from torch_linformer.encoders import linearize
from torch_linformer.models import (
    LinformerConfig,
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.load import load_model

SIZES = {"vocab_size": 37, "initializer_range": 0.3}
USUAL = {**SIZES, "hidden_size": 12, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 20}
ENCODERS = {
    "Bert": {**USUAL, "max_position_embeddings": 29},
    "Roberta": {**USUAL, "max_position_embeddings": 31, "pad_token_id": 1},
    "DistilBert": {
        **SIZES,
        **{"dim": 12, "n_layers": 2, "n_heads": 3, "hidden_dim": 20, "max_position_embeddings": 29},
    },
    "ModernBert": {**USUAL, "max_position_embeddings": 29, "local_attention": 6, "global_attn_every_n_layers": 2},
}
IDS = {name: 2 for name in ("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")}
HEADS = (LinformerForSequenceClassification, LinformerForTokenClassification, LinformerForQuestionAnswering)


@pytest.fixture(scope="module", params=ENCODERS)
def encoder(request):
    """A linear encoder whose rows of at most 9 tokens are read exactly, in float64."""
    torch.manual_seed(0)
    ids = IDS if request.param == "ModernBert" else {}
    config = getattr(transformers, f"{request.param}Config")(**{**ids, **ENCODERS[request.param]})
    original = getattr(transformers, f"{request.param}Model")(config).double().eval()
    return linearize(original, k=5, window=4, exact_below=9, max_length=29)


@pytest.fixture
def build(encoder):
    """A function: a head of a class on the encoder, in float64, with the encoder's weights."""

    def build_head(model_class=LinformerForSequenceClassification, **fields):
        torch.manual_seed(1)
        config = LinformerConfig(backbone_config=copy.deepcopy(encoder.config), num_labels=3, **fields)
        model = model_class(config).double().eval()
        weights = {name: x for name, x in encoder.state_dict().items() if not name.startswith("pooler.")}
        model.linformer.body.load_state_dict(weights)
        return model

    return build_head


def ids_of(*shape):
    return torch.randint(3, 37, shape, generator=torch.Generator(torch.get_default_device()).manual_seed(1))


def test_hidden_states_are_those_of_the_encoder(encoder, build):
    ids = ids_of(2, 20)
    backbone = build().linformer
    assert isinstance(backbone, EncoderBackbone)
    torch.testing.assert_close(backbone(ids).last_hidden_state, encoder(ids).last_hidden_state)
    outputs = backbone(ids, output_hidden_states=True, output_attentions=True)
    expected = encoder(ids, output_hidden_states=True, output_attentions=True)
    assert len(outputs.hidden_states) == 3 and len(outputs.attentions) == 2
    torch.testing.assert_close(outputs.hidden_states, expected.hidden_states)
    torch.testing.assert_close(outputs.attentions, expected.attentions)
    assert backbone(ids).hidden_states is None


def test_types_are_read_where_there_are_some(encoder, build):
    ids, backbone = ids_of(2, 20), build().linformer
    types = torch.ones_like(ids)
    with_types, without = (backbone(ids, **more).last_hidden_state for more in ({"token_type_ids": types}, {}))
    has_types = "token_type_ids" in backbone.takes and encoder.config.type_vocab_size > 1
    assert torch.equal(with_types, without) is not has_types
    assert backbone.takes >= {"input_ids", "attention_mask", "position_ids", "inputs_embeds"}


@pytest.mark.parametrize(("side", "tokens"), [("right", 7), ("left", 18), ("holes", 7)])
@pytest.mark.parametrize("model_class", HEADS)
def test_a_padded_row_is_the_row_alone(build, model_class, side, tokens):
    model = build(model_class)
    row, other = ids_of(1, tokens), ids_of(1, 25)
    columns = {"right": torch.arange(tokens), "left": torch.arange(25 - tokens, 25)}
    random = torch.Generator(torch.get_default_device()).manual_seed(2)
    columns["holes"] = torch.randperm(25, generator=random)[:tokens].sort().values
    mask = torch.zeros(1, 25, dtype=torch.long)
    mask[0, columns[side]] = 1
    # Ids at padding are those of ordinary tokens: only the mask counts.
    padded = ids_of(1, 25).index_copy(1, columns[side], row)
    batch = {"input_ids": torch.cat([padded, other]), "attention_mask": torch.cat([mask, torch.ones_like(mask)])}
    together, alone = model(**batch).to_tuple(), model(row).to_tuple()
    for ours, theirs in zip(together, alone, strict=True):
        at_tokens = ours[:1] if ours.shape[1] != 25 else ours[:1, columns[side]]
        torch.testing.assert_close(at_tokens, theirs)


def test_nan_in_padded_embeddings_changes_nothing(build):
    model, mask = build(), torch.ones(2, 20)
    mask[1, 15:] = 0
    vectors = model.get_input_embeddings()(ids_of(2, 20)).detach()
    clean = model(inputs_embeds=vectors, attention_mask=mask).logits
    poisoned = vectors.masked_fill(mask.unsqueeze(-1) == 0, torch.nan).requires_grad_()
    logits = model(inputs_embeds=poisoned, attention_mask=mask).logits
    torch.testing.assert_close(logits, clean)
    logits.sum().backward()
    assert (poisoned.grad[1, 15:] == 0).all() and poisoned.grad.isfinite().all()


def test_every_parameter_learns(build):
    model = build(LinformerForTokenClassification)
    mask = torch.ones(2, 25, dtype=torch.long)
    mask[1, 12:] = 0
    model(ids_of(2, 25), mask, labels=ids_of(2, 25) % 3).loss.backward()
    without = {name for name, x in model.named_parameters() if x.grad is None}
    assert without == set()  # a pooler would be among them
    assert all(x.grad.isfinite().all() for x in model.parameters())
    slots = [x for name, x in model.named_parameters() if ".linformer.proj_k." in name]
    assert slots and all(x.grad.abs().max() > 0 for x in slots)


@pytest.mark.parametrize("way", ["activation_memory", "switched on"])
def test_checkpointing_gives_the_same_gradients(build, way, enable_checkpointing):
    def gradients(model):
        model.train()
        for module in model.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        model(ids_of(2, 20), labels=torch.tensor([0, 2])).loss.backward()
        return {name: x.grad for name, x in model.named_parameters()}

    def without_dropout(**fields):
        model = build(**fields)
        for module in model.modules():
            for name in ("dropout_prob", "attention_dropout"):
                if isinstance(getattr(module, name, None), float):
                    setattr(module, name, 0.0)
        return model

    plain = without_dropout()
    kept = without_dropout(**({"activation_memory": "checkpoint"} if way == "activation_memory" else {}))
    if way == "switched on":
        enable_checkpointing(kept)
    counts = [0, 0]
    for number, model in enumerate((plain, kept)):
        attention = model.linformer.body.get_submodule(next(iter(model.config.backbone_config.attentions)))

        def count(*args, number=number):
            counts[number] += 1

        attention.register_forward_hook(count)
    torch.testing.assert_close(gradients(kept), gradients(plain))
    assert counts == [1, 2]


@pytest.mark.parametrize(
    ("model_class", "auto"),
    [
        (LinformerForSequenceClassification, AutoModelForSequenceClassification),
        (LinformerForTokenClassification, AutoModelForTokenClassification),
    ],
)
def test_saved_and_opened(build, tmp_path, model_class, auto):
    model = build(
        model_class, **({"lexical_features": 4} if model_class.__name__.endswith("SequenceClassification") else {})
    )
    model.save_pretrained(tmp_path)
    ids = ids_of(2, 20)
    for opened in (auto.from_pretrained(tmp_path), load_model(str(tmp_path)).double()):
        assert type(opened) is model_class and opened.config.to_dict() == model.config.to_dict() | {
            "_name_or_path": opened.config._name_or_path,
            "architectures": [model_class.__name__],
            "dtype": opened.config.to_dict()["dtype"],
        }
        torch.testing.assert_close(opened.eval()(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)


def test_new_tokens_reach_the_encoder(build, tmp_path):
    model = build(lexical_features=4)
    before = model(ids_of(2, 20)).logits
    model.resize_token_embeddings(41)
    assert model.config.vocab_size == model.config.backbone_config.vocab_size == 41
    torch.testing.assert_close(model(ids_of(2, 20)).logits, before)
    model(torch.full((1, 12), 40))
    model.save_pretrained(tmp_path)
    assert AutoModelForSequenceClassification.from_pretrained(tmp_path).get_input_embeddings().num_embeddings == 41


@pytest.mark.parametrize("mode", ["keep", "interpolate"])
def test_longer_inputs(build, tmp_path, mode):
    model = build()
    before = model(ids_of(2, 20)).logits
    model.get_input_embeddings().requires_grad_(False)
    with pytest.raises(ValueError, match="has 40 positions but max_len is 29"):
        model(ids_of(1, 40))
    model.resize_max_len(40, mode)
    assert model.config.max_position_embeddings == model.config.backbone_config.longest_input == 40
    assert model(ids_of(1, 40)).logits.isfinite().all()
    if mode == "keep":
        torch.testing.assert_close(model(ids_of(2, 20)).logits, before)
    assert not model.get_input_embeddings().weight.requires_grad
    model.save_pretrained(tmp_path)
    opened = AutoModelForSequenceClassification.from_pretrained(tmp_path).double().eval()
    torch.testing.assert_close(opened(ids_of(1, 40)).logits, model(ids_of(1, 40)).logits, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="max_len must be at least k = 5, got 4"):
        model.resize_max_len(4)


def test_the_configuration_says_what_the_encoder_is(encoder, build):
    config = build().config
    assert (config.vocab_size, config.hidden_size, config.num_hidden_layers, config.num_attention_heads) == (
        37,
        12,
        2,
        3,
    )
    assert (config.max_position_embeddings, config.longest_input) == (29, 29)
    assert (config.k, config.window, config.projection, config.slot_mass) == (5, 4, "dynamic", "learned")
    assert (config.exact_first, config.exact_last, config.causal) == (1, 1, False)
    assert config.pad_token_id == encoder.config.pad_token_id
    assert config.type_vocab_size == (2 if type(encoder).__name__ == "LinearBertModel" else config.type_vocab_size)
    assert LinformerConfig.from_dict(config.to_diff_dict()).to_dict() == config.to_dict()


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"k": 6}, "k=6 is not that of backbone_config, 5: leave it out, or change it there"),
        ({"hidden_dropout_prob": 0.7}, "hidden_dropout_prob=0.7 is not that of backbone_config"),
        ({"gated": True}, "gated=True is for layers of Linformer, and backbone_config has others: leave it out"),
        ({"chunk_size": 5}, "chunk_size=5 is for layers of Linformer"),
        ({"causal": True}, "causal=True is not that of backbone_config"),
        ({"activation_memory": "reversible"}, "take 'checkpoint'"),
    ],
)
def test_options_without_effect_are_refused(build, fields, problem):
    with pytest.raises(ValueError, match=problem):
        build(**fields)


def test_other_encoders_and_other_models_are_refused(encoder, build, tmp_path):
    plain = transformers.BertConfig()
    for backbone in (plain, plain.to_dict()):
        with pytest.raises(ValueError, match="must be that of a linear encoder, got one of bert: take torch_linformer"):
            LinformerConfig(backbone_config=backbone)
    for model_class in (LinformerModel, LinformerForMaskedLM):
        with pytest.raises(ValueError, match="backbone_config is for heads of rows, tokens and answers"):
            build(model_class)
    build().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="backbone_config is for heads"):
        AutoModel.from_pretrained(tmp_path)
    with pytest.raises(ValueError, match="an EncoderBackbone needs backbone_config"):
        EncoderBackbone(LinformerConfig())


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({}, "give exactly one of input_ids and inputs_embeds"),
        ({"position_ids": torch.tensor([[0, 1, 2, 0, 1, 2]])}, "reads one document per row"),
        ({"past_key_values": object()}, "past_key_values needs a causal model"),
        ({"input_id": 1}, "unexpected keyword argument 'input_id'"),
    ],
)
def test_arguments_that_cannot_be_read_are_refused(build, arguments, problem):
    ids = {} if not arguments else {"input_ids": ids_of(1, 6)}
    with pytest.raises((ValueError, TypeError), match=problem):
        build(LinformerForTokenClassification)(**ids, **arguments)
