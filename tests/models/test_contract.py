"""What transformers asks of every model, asked of each of ours: with Linformer attention and with full attention."""

import pytest
import torch
from torch.testing import assert_close
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForMultipleChoice,
    AutoModelForQuestionAnswering,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
)

from torch_linformer.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)

ROWS, CHOICES, LENGTH = 3, 2, 11
AUTO_CLASSES = {
    LinformerModel: AutoModel,
    LinformerForCausalLM: AutoModelForCausalLM,
    LinformerForMaskedLM: AutoModelForMaskedLM,
    LinformerForMultipleChoice: AutoModelForMultipleChoice,
    LinformerForQuestionAnswering: AutoModelForQuestionAnswering,
    LinformerForSequenceClassification: AutoModelForSequenceClassification,
    LinformerForTokenClassification: AutoModelForTokenClassification,
}
HEADS = [model_class for model_class in AUTO_CLASSES if model_class is not LinformerModel]
SCORES = ("logits", "start_logits", "end_logits", "last_hidden_state")

pytestmark = pytest.mark.parametrize("attention", ["linformer", "full"])


def shape_of_inputs(model_class):
    return (ROWS, CHOICES, LENGTH) if model_class is LinformerForMultipleChoice else (ROWS, LENGTH)


def labels_for(model_class, ids):
    """Labels as each head takes them."""
    match model_class.__name__.removeprefix("LinformerFor"):
        case "MaskedLM" | "CausalLM":
            return {"labels": ids}
        case "TokenClassification":
            return {"labels": ids % 2}
        case "QuestionAnswering":
            return {"start_positions": ids[:, 0] % LENGTH, "end_positions": ids[:, 1] % LENGTH}
        case "MultipleChoice":
            return {"labels": ids[:, 0, 0] % CHOICES}
        case "SequenceClassification":
            return {"labels": ids[:, 0] % 2}


def scores(outputs):
    return [outputs[name] for name in SCORES if name in outputs]


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_saved_and_loaded_by_its_auto_class(build, token_ids, tmp_path, model_class, attention):
    model = build(model_class, dtype=torch.bfloat16, attention=attention, classifier_hidden_act="tanh")
    model.save_pretrained(tmp_path)
    loaded = AUTO_CLASSES[model_class].from_pretrained(tmp_path).eval()
    assert type(loaded) is model_class and {x.dtype for x in loaded.parameters()} == {torch.bfloat16}
    assert type(loaded.config) is LinformerConfig and loaded.config.architectures == [model_class.__name__]
    assert type(AUTO_CLASSES[model_class].from_config(loaded.config)) is model_class
    assert_close(dict(loaded.state_dict()), dict(model.state_dict()), rtol=0, atol=0)
    ids = token_ids(*shape_of_inputs(model_class))
    assert_close(scores(loaded(ids)), scores(model(ids)))


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_hidden_states_and_attentions(build, token_ids, model_class, attention):
    model = build(model_class, attention=attention)
    ids = token_ids(*shape_of_inputs(model_class))
    outputs = model(ids, output_hidden_states=True, output_attentions=True)
    rows = ids.flatten(0, -2).shape[0]
    assert [tuple(x.shape) for x in outputs.hidden_states] == [(rows, LENGTH, 15)] * 3
    slots_and_window = 7 + (5 if model_class is LinformerForCausalLM else 0)
    keys = slots_and_window if attention == "linformer" else LENGTH
    assert [tuple(p.shape) for p in outputs.attentions] == [(rows, 3, LENGTH, keys)] * 2
    assert_close(outputs.attentions[0].sum(-1), torch.ones(rows, 3, LENGTH).double())
    silent = model(ids)
    assert silent.hidden_states is None and silent.attentions is None
    assert_close(scores(silent), scores(outputs))


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_embeddings_stand_in_for_ids(build, token_ids, model_class, attention):
    model = build(model_class, attention=attention)
    ids = token_ids(*shape_of_inputs(model_class))
    embeds = model.get_input_embeddings()(ids)
    assert_close(scores(model(inputs_embeds=embeds)), scores(model(ids)), rtol=0, atol=0)


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_types_and_positions_are_read(build, token_ids, model_class, attention):
    model = build(model_class, attention=attention)
    ids = token_ids(*shape_of_inputs(model_class))
    plain = scores(model(ids))
    positions = torch.arange(LENGTH).expand_as(ids)
    assert_close(scores(model(ids, token_type_ids=torch.zeros_like(ids), position_ids=positions)), plain)
    for changed in ({"token_type_ids": ids % 4}, {"position_ids": positions + 1}):
        assert not any(torch.allclose(x, y) for x, y in zip(scores(model(ids, **changed)), plain, strict=True))


@pytest.mark.parametrize("model_class", HEADS)
@pytest.mark.parametrize("checkpointing", [False, True])
def test_every_parameter_learns_with_and_without_checkpointing(
    enable_checkpointing, build, token_ids, model_class, checkpointing, attention
):
    fields = {"position_embedding": "learned", "classifier_hidden_act": "tanh"}
    model = build(model_class, attention=attention, **fields).train()
    ids = token_ids(*shape_of_inputs(model_class))
    if checkpointing:
        disable_checkpointing = enable_checkpointing(model)
    torch.manual_seed(1)
    model(ids, token_type_ids=ids % 4, **labels_for(model_class, ids)).loss.backward()
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    assert all(gradient is not None and gradient.isfinite().all() for gradient in gradients.values())
    # A softmax takes the bias of keys out again, unless slots weigh it, and what all choices have in common.
    may_be_idle = ("k_proj.bias", *(["classifier.bias"] if model_class is LinformerForMultipleChoice else []))
    idle = {name for name, gradient in gradients.items() if not gradient.any()}
    assert all(name.endswith(may_be_idle) for name in idle), idle
    if checkpointing:
        disable_checkpointing()
        model.zero_grad()
        torch.manual_seed(1)
        model(ids, token_type_ids=ids % 4, **labels_for(model_class, ids)).loss.backward()
        assert_close({name: parameter.grad for name, parameter in model.named_parameters()}, gradients)


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_more_and_fewer_tokens(build, token_ids, model_class, attention):
    model = build(model_class, attention=attention)
    ids = token_ids(*shape_of_inputs(model_class), high=30)
    before = scores(model(ids))
    for size in (41, 30):
        model.resize_token_embeddings(size)
        assert model.config.vocab_size == size and model.get_input_embeddings().num_embeddings == size
        after = scores(model(ids))
        if model_class in (LinformerForMaskedLM, LinformerForCausalLM):
            assert after[0].shape[-1] == size
            assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
            after, before = [after[0][..., :30]], [before[0][..., :30]]
        assert_close(after, before)


@pytest.mark.parametrize("model_class", AUTO_CLASSES)
@torch.no_grad()
def test_eager_and_sdpa_and_a_device_map(build, token_ids, tmp_path, model_class, attention):
    model = build(model_class, attention=attention)
    model.save_pretrained(tmp_path)
    ids = token_ids(*shape_of_inputs(model_class))
    for options in ({"attn_implementation": "eager"}, {"attn_implementation": "sdpa"}, {"device_map": "auto"}):
        loaded = model_class.from_pretrained(tmp_path, **options).eval()
        assert_close(scores(loaded(ids.to(loaded.device))), scores(model(ids)), check_device=False)
