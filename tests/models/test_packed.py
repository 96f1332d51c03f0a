"""Packed rows: documents that follow each other in a row come out, and learn, as each does alone."""

import pytest
import torch
from budgets import EXACT, IMPORTED
from torch.testing import assert_close
from transformers import DataCollatorWithFlattening

from torch_linformer.models import (
    LinformerCache,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMaskedLM,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)

LENGTHS = [[7, 11, 1, 5], [13, 11]]
ENCODERS = [
    {},
    {"window": 6},
    {"projection": "max"},
    {"projection": "conv", "sharing": "none"},
    {"sharing": "layerwise", "norm_first": True, "activation_memory": "reversible"},
    {"attention": "full"},
    {"chunk_size": 3},
]
CAUSAL = [
    {"causal": True, "window": 5},
    {"causal": True, "window": None},
    {"causal": True, "window": 5, "k": 0, "position_embedding": "rotary"},
    {"causal": True, "window": 5, "position_embedding": "rotary", "chunk_size": 3},
    {"causal": True, "attention": "full", "position_embedding": "rotary"},
]
PACKED_ERROR = r"^position_ids begin again within a row \(packed documents\)"


@pytest.fixture
def rows(token_ids):
    """Two rows of documents: ids, positions, and where each document lies."""
    positions = torch.stack([torch.cat([torch.arange(n) for n in lengths]) for lengths in LENGTHS])
    spans = []
    for row, lengths in enumerate(LENGTHS):
        ends = torch.tensor(lengths).cumsum(0).tolist()
        spans += [(row, slice(end - n, end)) for n, end in zip(lengths, ends, strict=True)]
    return token_ids(2, 24), positions, spans


@pytest.mark.parametrize("fields", [*ENCODERS, *CAUSAL], ids=str)
def test_documents_come_out_as_they_do_alone(build, rows, fields):
    model = build(LinformerModel, **fields)
    ids, positions, spans = rows
    types = ids % 4
    outputs = model(
        ids, token_type_ids=types, position_ids=positions, output_hidden_states=True, output_attentions=True
    )
    assert outputs.past_key_values is None
    for row, span in spans:
        alone = model(
            ids[row : row + 1, span],
            token_type_ids=types[row : row + 1, span],
            output_hidden_states=True,
            output_attentions=True,
        )
        for ours, theirs in zip(outputs.hidden_states, alone.hidden_states, strict=True):
            assert_close(ours[row, span], theirs[0], rtol=0, atol=EXACT)
        for ours, theirs in zip(outputs.attentions, alone.attentions, strict=True):
            keys = span if fields.get("attention") == "full" else slice(None)
            assert_close(ours[row, :, span, keys], theirs[0], rtol=0, atol=EXACT)
            assert_close(ours[row].sum(-1), torch.ones(3, 24, dtype=torch.float64))
    plain = model(ids, token_type_ids=types, position_ids=positions).last_hidden_state
    assert_close(plain, outputs.last_hidden_state, rtol=0, atol=EXACT)


@pytest.mark.parametrize("fields", [*ENCODERS, *CAUSAL], ids=str)
def test_documents_learn_as_they_do_alone(build, rows, fields):
    ids, positions, spans = rows
    model_class = LinformerForCausalLM if fields.get("causal") else LinformerForMaskedLM
    model = build(model_class, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **fields).train()
    labels = ids.masked_fill(positions == 0, -100)
    model(ids, position_ids=positions, labels=labels).loss.backward()
    packed = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    for row, span in spans:
        document = slice(row, row + 1), span
        counted = (labels[document] != -100).sum()
        if counted:
            loss = model(ids[document], labels=labels[document]).loss
            (loss * counted / (labels != -100).sum()).backward()
    alone = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_close(packed, alone, rtol=0, atol=IMPORTED)


@pytest.mark.parametrize("fields", [*ENCODERS, *CAUSAL], ids=str)
def test_no_document_sees_another(build, rows, fields):
    model = build(LinformerModel, **fields)
    ids, positions, spans = rows
    embeds = model.get_input_embeddings()(ids).detach().requires_grad_()
    hidden = model(inputs_embeds=embeds, position_ids=positions).last_hidden_state
    row, span = spans[1]
    (gradient,) = torch.autograd.grad(hidden[row, span].square().sum(), embeds)
    assert gradient[row, span].any()
    gradient[row, span] = 0
    assert not gradient.any()


def test_batches_of_the_flattening_collator(build, token_ids):
    model = build(LinformerForCausalLM, position_embedding="learned")
    documents = [token_ids(n)[:n] for n in (20, 17, 3)]  # longer than the model together, not alone
    collate = DataCollatorWithFlattening(return_flash_attn_kwargs=True, return_seq_idx=True)
    batch = collate([{"input_ids": ids.tolist()} for ids in documents])
    loss = model(**batch).loss
    losses = torch.stack([model(ids[None], labels=ids[None]).loss * (len(ids) - 1) for ids in documents])
    assert_close(loss, losses.sum() / 37, rtol=0, atol=EXACT)


@pytest.mark.parametrize("boundary", ["cu_seq_lens_q", "max_length_k", "seq_idx"])
def test_boundaries_without_positions_are_refused(build, token_ids, boundary):
    with pytest.raises(ValueError, match=f"^{boundary} without position_ids"):
        build(LinformerForCausalLM)(token_ids(1, 11), **{boundary: 5})


@pytest.mark.parametrize(
    "positions",
    [[5, 6, 7, 8, 9], [3, 3, 3, 3, 3], [0, 0, 0, 0, 0], [0, 1, 2, 7, 8], [4, 3, 2, 1, 0], [2, 0, 3, 4, 1]],
    ids=str,
)
@torch.no_grad()
def test_other_positions_leave_a_row_one_document(build, token_ids, positions):
    model = build(LinformerModel)
    ids = token_ids(2, 5)
    given = model(ids, position_ids=torch.tensor([positions])).last_hidden_state
    masked = model(ids, attention_mask=torch.ones(2, 5), position_ids=torch.tensor([positions])).last_hidden_state
    assert_close(given, masked, rtol=0, atol=EXACT)


@torch.no_grad()
def test_documents_may_begin_anywhere(build, token_ids):
    model = build(LinformerModel)
    ids = token_ids(1, 6)
    positions = torch.tensor([[4, 5, 6, 2, 3, 2]])  # a row that begins within a document, and counts from 2
    hidden = model(ids, position_ids=positions).last_hidden_state
    for span in (slice(3), slice(3, 5), slice(5, 6)):
        alone = model(ids[:, span], position_ids=positions[:, span]).last_hidden_state
        assert_close(hidden[:, span], alone, rtol=0, atol=EXACT)


@torch.no_grad()
def test_padding_with_positions_of_its_own_is_padding(build, token_ids):
    model = build(LinformerModel)
    ids, mask = token_ids(1, 7), torch.tensor([[0, 0, 0, 1, 1, 1, 1]])
    positions = torch.tensor([[0, 1, 2, 0, 1, 2, 3]])
    given = model(ids, attention_mask=mask, position_ids=positions).last_hidden_state[:, 3:]
    assert_close(given, model(ids[:, 3:]).last_hidden_state, rtol=0, atol=EXACT)


@torch.no_grad()
def test_a_document_that_is_too_long_is_refused(build, token_ids):
    model = build(LinformerModel, position_embedding="none")
    ids, positions = token_ids(1, 31), torch.cat([torch.arange(30), torch.arange(1)])[None]
    with pytest.raises(ValueError, match="30 positions but max_len is 29"):
        model(ids, position_ids=positions)


@pytest.mark.parametrize("options", [{"use_cache": True}, {"past_key_values": LinformerCache(2)}])
def test_packed_rows_and_a_cache_exclude_each_other(build, rows, options):
    ids, positions, _ = rows
    with pytest.raises(ValueError, match=PACKED_ERROR + ", but past_key_values hold one document per row"):
        build(LinformerForCausalLM)(ids, position_ids=positions, **options)


@pytest.mark.parametrize(
    "model_class",
    [LinformerForSequenceClassification, LinformerForQuestionAnswering, LinformerForMultipleChoice],
)
def test_heads_that_read_whole_rows_refuse_packed_ones(build, rows, model_class):
    ids, positions, _ = rows
    if model_class is LinformerForMultipleChoice:
        ids, positions = ids[None], positions[None]
    with pytest.raises(ValueError, match=PACKED_ERROR + ": this head reads one document per row"):
        build(model_class)(ids, position_ids=positions)


@torch.no_grad()
def test_tokens_of_packed_rows_are_classified(build, rows):
    model = build(LinformerForTokenClassification)
    ids, positions, spans = rows
    logits = model(ids, position_ids=positions).logits
    for row, span in spans:
        assert_close(logits[row, span], model(ids[row : row + 1, span]).logits[0], rtol=0, atol=EXACT)


def test_a_decoder_refuses_packed_targets(build, rows):
    ids, positions, _ = rows
    with pytest.raises(ValueError, match=PACKED_ERROR + ": a decoder takes one target a row"):
        build(LinformerForConditionalGeneration)(ids, decoder_input_ids=ids, decoder_position_ids=positions)


@torch.no_grad()
def test_a_compiled_model_refuses_packed_rows_when_it_runs(build, rows):
    model = build(LinformerModel, num_hidden_layers=1)
    ids, positions, _ = rows
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="eager")
    one = torch.arange(24).expand(2, -1)
    expected = model(ids, position_ids=one).last_hidden_state
    assert_close(compiled(ids, position_ids=one).last_hidden_state, expected)
    with pytest.raises(RuntimeError, match="a compiled or exported model takes one document per row"):
        compiled(ids, position_ids=positions)
    torch._dynamo.reset()


@torch.no_grad()
def test_an_exported_model_refuses_packed_rows_when_it_runs(build, rows):
    model = build(LinformerModel, num_hidden_layers=1)
    ids, positions, _ = rows
    one = torch.arange(24).repeat(2, 1)
    length = {1: torch.export.Dim("length", min=2, max=29)}
    shapes = {"input_ids": length, "position_ids": length}
    inputs = {"input_ids": ids, "position_ids": one}
    exported = torch.export.export(model, (), inputs, dynamic_shapes=shapes).module()
    shorter = {name: x[:, :17] for name, x in inputs.items()}
    assert_close(exported(**shorter).last_hidden_state, model(**shorter).last_hidden_state)
    with pytest.raises(RuntimeError, match="a compiled or exported model takes one document per row"):
        exported(input_ids=ids, position_ids=positions)
