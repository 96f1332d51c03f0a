"""What the tests of the models share: a tiny configuration, and models whose every number matters."""

import pytest
import torch

from torch_linformer.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMultipleChoice,
    LinformerSeq2SeqConfig,
)

# Distinct sizes, so that no axis can stand in for another.
TINY = {
    "vocab_size": 37,
    "hidden_size": 15,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 23,
    "max_position_embeddings": 29,
    "type_vocab_size": 4,
    "k": 7,
}


@pytest.fixture(autouse=True, scope="session")
def silence(quiet_transformers):
    """The models are saved and opened without a word."""


@pytest.fixture(scope="session")
def tiny():
    """A function: the tiny configuration with the given fields changed."""
    return lambda **fields: LinformerConfig(**{**TINY, **fields})


@pytest.fixture(scope="session")
def build(tiny):
    """A function: a tiny model in eval mode, no bias of which is 0, no norm 1 and no padding token silent."""

    def build_model(model_class, *, dtype=torch.float64, decoder=None, **fields):
        torch.manual_seed(0)
        causal = {"causal": True, **({} if fields.get("attention") == "full" else {"window": 5})}
        if model_class is LinformerForConditionalGeneration:
            of_both = {name: fields.pop(name) for name in [*fields] if name.startswith(("memory_", "share_"))}
            sides = {
                "encoder": tiny(dtype=dtype, **fields),
                "decoder": tiny(dtype=dtype, **{**causal, **fields, **(decoder or {})}),
            }
            config = LinformerSeq2SeqConfig(**sides, **of_both, decoder_start_token_id=1)
        else:
            config = tiny(**{**(causal if model_class is LinformerForCausalLM else {}), **fields})
        model = model_class(config).to(dtype).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return model

    return build_model


@pytest.fixture(scope="session")
def token_ids():
    """A function: random token ids of a shape, the same at every call."""

    def draw(*shape, high=37):
        return torch.randint(high, shape, generator=torch.Generator(torch.get_default_device()).manual_seed(1))

    return draw


@pytest.fixture(scope="session")
def inputs_of(token_ids):
    """A function: the least inputs of a class, three rows of 11 tokens."""

    def make(model_class, high=37):
        shape = (3, 2, 11) if model_class is LinformerForMultipleChoice else (3, 11)
        target = model_class is LinformerForConditionalGeneration
        return {
            "input_ids": token_ids(*shape, high=high),
            **({"decoder_input_ids": token_ids(3, 7, high=high)} if target else {}),
        }

    return make


@pytest.fixture(scope="session")
def labels_of():
    """A function: labels as each head takes them, of its inputs."""

    def make(model_class, inputs):
        ids = inputs["input_ids"]
        match model_class.__name__.removeprefix("LinformerFor"):
            case "MaskedLM" | "CausalLM" | "ConditionalGeneration":
                return {"labels": inputs.get("decoder_input_ids", ids)}
            case "TokenClassification":
                return {"labels": ids % 2}
            case "QuestionAnswering":
                return {"start_positions": ids[:, 0] % 11, "end_positions": ids[:, 1] % 11}
            case _:
                return {"labels": ids.flatten(1)[:, 0] % 2}

    return make


@pytest.fixture(scope="session")
def enable_checkpointing():
    """A function: switch transformers' checkpointing on; it returns one that switches it off.

    What 5.17 calls "gradient", later versions call "activation", and warn of the old name.
    """

    def enable(model, *options):
        name = "activation" if hasattr(model, "activation_checkpointing_enable") else "gradient"
        getattr(model, f"{name}_checkpointing_enable")(*options)
        return getattr(model, f"{name}_checkpointing_disable")

    return enable


@pytest.fixture
def poisoned_memory():
    """Uninitialised memory holds NaN, so a parameter that nobody set is seen."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    assert torch.empty(3).isnan().all()
    yield
    torch.use_deterministic_algorithms(before)
