"""Nothing assumes a CPU: there, "meta" stands for every other device.

Its tensors have no numbers and refuse to be asked for one, as a GPU would make the program wait; they take the ways of
other devices than a CPU. Modules and inputs are made there, and then no tensor may be made anywhere else.
"""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from torch_linformer.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
    LinformerSeq2SeqConfig,
)

META = torch.device("meta")
LENGTH = 50
SIZES = {
    "vocab_size": 97,
    "hidden_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "k": 8,
}
ENCODERS = {
    "headwise": {},
    "none": {"sharing": "none"},
    "kv": {"sharing": "kv"},
    "layerwise": {"sharing": "layerwise"},
    "mean": {"projection": "mean"},
    "max": {"projection": "max"},
    "conv": {"projection": "conv"},
    "random": {"projection": "random"},
    "means and a window": {"projection": "mean", "window": 8},
    "masses": {"projection": "mean", "slot_mass": "fixed", "slot_bias": True},
    "chosen by the input": {
        "projection": "dynamic",
        "sharing": "kv_per_head",
        "window": 8,
        "exact_first": 1,
        "exact_last": 1,
        "slot_mass": "learned",
    },
    "no slots": {"k": 0, "window": 8, "exact_first": 1},
    "full": {"attention": "full"},
    "reversible": {"activation_memory": "reversible", "norm_first": True},
    "sinusoidal": {"position_embedding": "sinusoidal"},
    "chunks": {"chunk_size": 16},
    "checkpoint": {"activation_memory": "checkpoint"},
    "gated": {"norm_first": True, "gated": True},
}
DECODERS = {
    "causal": {},
    "window": {"window": 8, "exact_first": 1},
    "rotary": {"window": 8, "position_embedding": "rotary"},
    "no slots": {"window": 8, "k": 0},
    "full": {"attention": "full"},
}
HEADS = (
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
)
masked = pytest.mark.parametrize("masked", [False, True], ids=["whole", "masked"])


class NowhereElse(TorchDispatchMode):
    """Fails where an operation is given, or gives, a tensor of another device than ``META``."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        devices = {x.device for x in tree_leaves((args, kwargs, result)) if isinstance(x, torch.Tensor)}
        assert devices <= {META}, f"{function} has tensors on {', '.join(sorted(map(str, devices)))}"
        return result


@pytest.fixture
def nowhere_else():
    with NowhereElse():
        yield


def build(model_class, **fields):
    with META:
        return model_class(LinformerConfig(**{**SIZES, **fields}))


def ids_and_mask(masked, *shape):
    mask = torch.ones(shape, device=META) if masked else None
    return {"input_ids": torch.zeros(shape, dtype=torch.long, device=META), "attention_mask": mask}


@masked
@pytest.mark.parametrize("kind", ENCODERS)
@pytest.mark.usefixtures("nowhere_else")
def test_an_encoder(kind, masked):
    model, inputs = build(LinformerModel, **ENCODERS[kind]), ids_and_mask(masked, 2, LENGTH)
    model(**inputs).last_hidden_state.sum().backward()
    with torch.no_grad():
        outputs = model.eval()(**inputs, output_attentions=True, output_hidden_states=True)
    assert outputs.last_hidden_state.shape == (2, LENGTH, 96) and len(outputs.attentions) == 2


@masked
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.usefixtures("nowhere_else")
def test_a_training_step_and_a_step_of_generation(kind, masked):
    model = build(LinformerForCausalLM, causal=True, **DECODERS[kind])
    inputs, following = ids_and_mask(masked, 2, LENGTH), ids_and_mask(masked, 2, LENGTH + 1)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    with torch.no_grad():
        read = model.eval()(**inputs, use_cache=True)
        following["input_ids"] = following["input_ids"][:, :1]
        step = model(**following, past_key_values=read.past_key_values)
    assert step.logits.shape == (2, 1, 97)


@masked
@pytest.mark.parametrize("kind", DECODERS)
@pytest.mark.usefixtures("nowhere_else")
def test_an_encoder_and_decoder(kind, masked):
    sides = {
        "encoder": LinformerConfig(**SIZES),
        "decoder": LinformerConfig(**{**SIZES, "causal": True, **DECODERS[kind]}),
    }
    with META:
        model = LinformerForConditionalGeneration(LinformerSeq2SeqConfig(**sides, bos_token_id=1, eos_token_id=2))
    inputs, first = ids_and_mask(masked, 2, LENGTH), ids_and_mask(False, 2, 1)["input_ids"]
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    with torch.no_grad():
        read = model.eval()(**inputs, decoder_input_ids=first, use_cache=True)
        memory = {"encoder_outputs": (read.encoder_last_hidden_state,), "attention_mask": inputs["attention_mask"]}
        step = model(**memory, decoder_input_ids=first, past_key_values=read.past_key_values)
    assert step.logits.shape == (2, 1, 97)


@masked
@pytest.mark.parametrize("model_class", HEADS)
@pytest.mark.usefixtures("nowhere_else")
def test_heads_and_their_losses(labels_of, model_class, masked):
    choices = (3,) if model_class is LinformerForMultipleChoice else ()
    inputs = ids_and_mask(masked, 2, *choices, LENGTH)
    build(model_class)(**inputs, **labels_of(model_class, inputs)).loss.backward()
