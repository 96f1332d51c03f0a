"""What cannot be computed in pieces is refused, in a line."""

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from transformers import AutoConfig

from torch_linformer import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForConditionalGeneration,
    LinformerForMultipleChoice,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerModel,
    LinformerSeq2SeqConfig,
)
from torch_linformer.distributed import SequencePiece, context_parallel
from torch_linformer.nn import LinformerAttention, LinformerEncoder, Past

SIZES = {"vocab_size": 20, "hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "k": 4}


@pytest.fixture(scope="module", autouse=True)
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def piece():
    return SequencePiece(dist.group.WORLD, 1, 10)


@pytest.mark.parametrize("bounds", [[], [0, 5], [1, 10], [0, 10, 10], [10, 0]])
def test_bounds(bounds):
    with pytest.raises(ValueError, match="bounds must be 2 positions from 0 to 10, in order, got"):
        SequencePiece(dist.group.WORLD, 1, 10, bounds=bounds)


def test_a_mesh_of_two_dimensions():
    mesh = DeviceMesh("cpu", [[0]], mesh_dim_names=("dp", "cp"))
    with pytest.raises(ValueError, match=r"has 2: name one of \('dp', 'cp'\), as in mesh\['cp'\]"):
        SequencePiece(mesh, 1, 10)
    assert SequencePiece(mesh["cp"], 1, 10).stop == 10


def test_no_processes():
    with pytest.raises(ValueError, match=r"call torch\.distributed\.init_process_group first"):
        SequencePiece(None, 1, 10)


def test_a_mask_of_another_shape():
    with pytest.raises(ValueError, match=r"key_padding_mask must have shape \(B, M\) = \(1, 10\), got \(1, 9\)"):
        SequencePiece(dist.group.WORLD, 1, 10, key_padding_mask=torch.zeros(1, 9, dtype=torch.bool))


def test_rows_of_another_length(piece):
    with pytest.raises(ValueError, match=r"rows must be \(1, 10\) first, got \(1, 9, 4\)"):
        piece.cut(torch.zeros(1, 9, 4))


def test_a_sequence_that_is_too_long():
    piece = SequencePiece(dist.group.WORLD, 1, 10)
    with pytest.raises(ValueError, match="the sequence has 10 positions but max_len is 9"):
        LinformerAttention(8, 2, max_len=9, k=4)(torch.zeros(1, 10, 8), key_padding_mask=piece)


def test_full_attention(piece):
    model = LinformerModel(LinformerConfig(attention="full", **SIZES))
    with pytest.raises(ValueError, match="full attention needs whole rows"):
        model(torch.zeros(1, 10, dtype=torch.long), piece)
    with pytest.raises(ValueError, match="LinformerModel with full attention cannot be computed in pieces"):
        context_parallel(model, dist.group.WORLD)


def test_a_past(piece):
    attention = LinformerAttention(8, 2, max_len=10, k=4, causal=True)
    with pytest.raises(ValueError, match="past goes with whole rows"):
        attention(torch.zeros(1, 10, 8), key_padding_mask=piece, past=Past())


def test_chunks(piece):
    encoder = LinformerEncoder(8, 2, 1, max_len=10, k=4, chunk_size=4)
    with torch.no_grad(), pytest.raises(ValueError, match="a piece of the rows is not read in chunks"):
        encoder.layers[0].run_in_chunks([torch.zeros(1, 10, 8)], piece, None)


@pytest.mark.parametrize(
    "model_class",
    [
        LinformerForQuestionAnswering,
        LinformerForMultipleChoice,
        LinformerForCausalLM,
        LinformerForConditionalGeneration,
    ],
)
def test_heads_that_need_whole_rows(model_class, piece):
    if model_class is LinformerForConditionalGeneration:
        config = LinformerSeq2SeqConfig(encoder=SIZES, decoder=SIZES)
    else:
        config = LinformerConfig(causal=model_class is LinformerForCausalLM, **SIZES)
    model, ids = model_class(config), torch.zeros(1, 10, dtype=torch.long)
    with pytest.raises(ValueError, match=f"{model_class.__name__} needs whole rows"):
        model(ids, piece)
    with pytest.raises(ValueError, match=f"{model_class.__name__} needs whole rows"):
        model(input_ids=ids, attention_mask=piece)
    with pytest.raises(ValueError, match=f"{model_class.__name__} cannot be computed in pieces"):
        context_parallel(model, dist.group.WORLD)


def test_twice():
    model = context_parallel(LinformerModel(LinformerConfig(**SIZES)), dist.group.WORLD)
    with pytest.raises(ValueError, match="LinformerModel is computed in pieces already"):
        context_parallel(model, dist.group.WORLD)


@pytest.mark.parametrize("name", ["cp_size", "sp_size"])
def test_pieces_that_accelerate_cuts(name, monkeypatch):
    from accelerate import ParallelismConfig
    from accelerate.state import AcceleratorState, PartialState

    monkeypatch.setattr(PartialState, "_shared_state", {"backend": "gloo"})
    monkeypatch.setattr(AcceleratorState, "_shared_state", {"parallelism_config": ParallelismConfig(**{name: 2})})
    model = LinformerModel(LinformerConfig(**SIZES))
    with pytest.raises(ValueError, match=f"{name} of accelerate's ParallelismConfig gives each process a piece"):
        model(torch.zeros(1, 4, dtype=torch.long))


def test_positions_of_packed_rows():
    model = context_parallel(LinformerModel(LinformerConfig(**SIZES)), dist.group.WORLD)
    with pytest.raises(ValueError, match="position_ids cannot be given with context_parallel"):
        model(torch.zeros(1, 4, dtype=torch.long), position_ids=torch.tensor([[0, 1, 0, 1]]))


def test_a_lexical_head_without_the_whole_row(piece):
    model = LinformerForSequenceClassification(LinformerConfig(lexical_features=8, **SIZES))
    with pytest.raises(ValueError, match="the lexical head reads whole rows"):
        model(torch.zeros(1, 10, dtype=torch.long), piece)


def test_a_piece_moves_with_its_model(piece):
    moved = SequencePiece(dist.group.WORLD, 1, 10, key_padding_mask=torch.zeros(1, 10, dtype=torch.bool)).to("meta")
    assert isinstance(moved, SequencePiece) and moved.mask.device.type == moved.tokens.device.type == "meta"
    assert piece.to("cpu") is piece


def test_an_encoder_that_needs_whole_rows(linear_folder, piece):
    config = LinformerConfig(backbone_config=AutoConfig.from_pretrained(linear_folder("MPNet")))
    model = LinformerForSequenceClassification(config)
    with pytest.raises(ValueError, match="cannot be computed in pieces: its encoder counts positions itself, or has"):
        context_parallel(model, dist.group.WORLD)
    with pytest.raises(ValueError, match="EncoderBackbone needs whole rows"):
        model(torch.zeros(1, 10, dtype=torch.long), piece)
