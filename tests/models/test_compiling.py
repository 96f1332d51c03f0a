"""One compiled or exported graph serves every batch and length, with padding, as the eager model does."""

import copy

import pytest
import torch
from budgets import EXACT
from torch._dynamo.testing import CompileCounterWithBackend
from torch.testing import assert_close

from torch_linformer.models import (
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForSequenceClassification,
    LinformerModel,
)

CLASSES = LinformerForSequenceClassification
SHAPES = [(3, 11), (2, 29), (5, 7), (4, 2)]


@pytest.fixture
def draw_batch(token_ids):
    """A function: a batch of so many rows and tokens, with padding on the left and on the right."""

    def draw(batch, length):
        tokens = torch.arange(batch).unsqueeze(1) % (length - 1) + 1
        columns = torch.arange(length).expand(batch, length)
        right, left = columns < tokens, columns >= length - tokens
        mask = torch.where(torch.arange(batch).unsqueeze(1) % 2 == 0, right, left)
        return {"input_ids": token_ids(batch, length), "attention_mask": mask.long()}

    return draw


@pytest.fixture
def batches(draw_batch):
    return [draw_batch(*shape) for shape in SHAPES]


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compiled_training_step(build, batches, fresh_compiler):
    fields = {
        "pooling": "mean_max",
        "class_weights": [1.0, 3.0],
        "num_hidden_layers": 1,
        "classifier_hidden_act": "tanh",
    }
    model = build(LinformerForSequenceClassification, **fields)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter, dynamic=True)
    graphs = set()
    for batch in batches:
        labels = torch.arange(batch["input_ids"].shape[0]) % 2
        results = []
        for function in (model, compiled):
            model.zero_grad()
            outputs = function(**batch, labels=labels)
            outputs.loss.backward()
            gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
            results.append((outputs.logits, outputs.loss, gradients))
        assert_close(results[1], results[0], rtol=1e-6, atol=1e-9)
        graphs.add(counter.frame_count)
    assert len(graphs) == 1, "compiled again for another shape"


TEN_SHAPES = [(2 + i % 5, length) for i, length in enumerate((23, 9, 17, 4, 21, 6, 13, 2, 11, 19))]
BOTH, TRAINS, READS = (True, False), (True,), (False,)
ONE_GRAPH = {  # the model, its fields, whether its gradients are taken, other arguments
    "slots": (LinformerModel, {}, BOTH, {"attention_mask": None}),
    "dynamic": (LinformerModel, {"projection": "dynamic", "sharing": "kv", "exact_first": 1, "window": 4}, TRAINS, {}),
    "causal": (LinformerModel, {"causal": True, "window": 4, "k": 0}, TRAINS, {"attention_mask": None}),
    "hidden states": (LinformerModel, {"projection": "mean", "window": 4}, TRAINS, {"output_hidden_states": True}),
    "full": (CLASSES, {"attention": "full", "pooling": "cls", "classifier_hidden_act": "relu"}, READS, {}),
}


@pytest.mark.parametrize(("model_class", "fields", "modes", "arguments"), ONE_GRAPH.values(), ids=ONE_GRAPH)
def test_one_graph_for_ten_batches_and_lengths(
    build, draw_batch, fresh_compiler, model_class, fields, modes, arguments
):
    """A graph that trains and one that only reads, without a break in either, whatever shapes come."""
    model, eager = (build(model_class, num_hidden_layers=1, **fields) for _ in range(2))
    counter = CompileCounterWithBackend("eager")
    model.compile(fullgraph=True, backend=counter, dynamic=True)
    no_cache = {"use_cache": False} if model_class is LinformerModel else {}
    graphs = []
    for batch, length in TEN_SHAPES:
        inputs = {**draw_batch(batch, length), **no_cache, **arguments}
        for mode in modes:
            with torch.set_grad_enabled(mode):
                outputs, expected = model(**inputs), eager(**inputs)
            tensors = [outputs[0], *(outputs.hidden_states or ())]
            assert (len(tensors) == 3) == ("output_hidden_states" in arguments)
            assert_close(tensors, [expected[0], *(expected.hidden_states or ())], rtol=0, atol=EXACT)
            if mode:
                sum(tensor.sum() for tensor in tensors).backward()
        graphs.append(counter.frame_count)
    assert graphs == [len(modes)] * len(TEN_SHAPES)


@torch.no_grad()
def test_compiled_step_writes_on_at_every_length(build, token_ids, fresh_compiler):
    """One graph for the first step of a decoder, and one for all that follow."""
    model = build(LinformerForCausalLM, num_hidden_layers=1, exact_first=2)
    counter = CompileCounterWithBackend("eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    ids, graphs = token_ids(2, 20), []
    expected = model(ids).logits
    past = model(ids[:, :8], use_cache=True).past_key_values
    for place in range(8, 20):
        outputs = compiled(input_ids=ids[:, place : place + 1], past_key_values=past, use_cache=True)
        past = outputs.past_key_values
        assert_close(outputs.logits[:, 0], expected[:, place])
        graphs.append(counter.frame_count)
    assert graphs[-1] == graphs[1] <= 2


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        (LinformerModel, {}),
        (CLASSES, {"attention": "full", "pooling": "max"}),
        (CLASSES, {"window": 5, "projection": "max", "slot_mass": "learned", "exact_first": 1, "exact_last": 1}),
    ],
    ids=["linformer", "full", "window"],
)
@torch.no_grad()
def test_exported_model(build, batches, model_class, fields):
    model = build(model_class, num_hidden_layers=1, **fields)
    batch, length = torch.export.Dim("batch"), torch.export.Dim("length", max=29)
    shapes = {key: {0: batch, 1: length} for key in ("input_ids", "attention_mask")}
    program = torch.export.export(model, (), kwargs=batches[0], dynamic_shapes=shapes)
    exported = program.module()
    for inputs in batches:
        assert_close(exported(**inputs)[0], model(**inputs)[0], rtol=0, atol=EXACT)


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        (LinformerForCausalLM, {"window": None, "position_embedding": "rotary"}),
        (LinformerForConditionalGeneration, {"decoder": {"exact_first": 2}}),
    ],
    ids=["causal", "seq2seq"],
)
@torch.no_grad()
def test_an_exported_step_writes_on_token_by_token(build, token_ids, model_class, fields):
    ids, name, source, model = token_ids(2, 9), "input_ids", {}, build(model_class, **fields)
    if model_class is LinformerForConditionalGeneration:
        name = "decoder_input_ids"
        source = {"input_ids": ids, "attention_mask": (torch.arange(9) > torch.tensor([[2], [-1]])).long()}
    expected = model(**{**source, name: ids}).logits
    cache = model(**{**source, name: ids[:, :5]}).past_key_values
    step = {name: ids[:, 5:6], "past_key_values": copy.deepcopy(cache)}
    run = torch.export.export(model, (), step).module()
    for position in range(5, 9):
        outputs = run(**{name: ids[:, position : position + 1], "past_key_values": cache})
        cache = outputs.past_key_values
        assert_close(outputs.logits[:, 0], expected[:, position], rtol=0, atol=EXACT)
    assert cache.tokens.tolist() == [9, 9]


@torch.no_grad()
def test_exported_causal_language_model(build, token_ids):
    model = build(LinformerForCausalLM, num_hidden_layers=1, position_embedding="rotary", window=None)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}

    def inputs(batch, length):
        mask = torch.arange(length) >= torch.arange(batch).unsqueeze(1)
        return {"input_ids": token_ids(batch, length), "attention_mask": mask.long(), "use_cache": False}

    shapes = {"input_ids": sizes, "attention_mask": sizes, "use_cache": None}
    exported = torch.export.export(model, (), kwargs=inputs(3, 11), dynamic_shapes=shapes).module()
    for batch, length in [(3, 11), (2, 64), (1, 2), (4, 150), (1, 1100)]:
        rows = inputs(batch, length)
        assert_close(exported(**rows)[0], model(**rows)[0], rtol=0, atol=EXACT)
