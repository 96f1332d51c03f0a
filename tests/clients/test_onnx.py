import json

import numpy as np
import onnxruntime
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoTokenizer

from torch_linformer.inference.export import export_model
from torch_linformer.models import (
    LinformerConfig,
    LinformerForCausalLM,
    LinformerForMaskedLM,
    LinformerForQuestionAnswering,
    LinformerForSequenceClassification,
    LinformerForTokenClassification,
    LinformerModel,
)
from torch_linformer.models.lexical_head import NOTHING as NO_WORD
from torch_linformer.models.lexical_parts import LexicalVector
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.sentence_transformers import write_sentence_modules

PROJECTIONS = ["linear", "random", "conv", "mean", "max", "dynamic"]
BESIDE_SLOTS = {"exact_first": 1, "exact_last": 1, "window": 5}

CAUSAL = {"causal": True, "window": 5, "num_hidden_layers": 1, "max_position_embeddings": 150}


@torch.no_grad()
def test_a_program_of_torch_scores_texts_of_any_length(config, tokenizer, tmp_path):
    torch.manual_seed(0)
    model = LinformerForCausalLM(LinformerConfig(**{**config.to_diff_dict(), **CAUSAL})).eval()
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert export_model(str(tmp_path / "model"), tmp_path / "out", "torch") < 1e-5
    program = torch.export.load(tmp_path / "out" / "model.pt2").module()
    for length in (3, 64, 129):
        ids = torch.arange(length).expand(2, -1) % model.config.vocab_size
        inputs = ids, torch.ones_like(ids), torch.zeros_like(ids)
        assert torch.allclose(program(*inputs)[0], model(*inputs).logits, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("letters", [0, 2], ids=["words", "and n-grams"])
def test_a_lexical_head_counts_the_same_words(config, tokenizer, tmp_path, letters):
    torch.manual_seed(0)
    fields = {**config.to_diff_dict(), "lexical_features": 4096, "lexical_letters": letters}
    model = LinformerForSequenceClassification(LinformerConfig(**fields))
    head = model.lexical
    tokens = torch.arange(len(head.spelling))
    head.spelling.copy_(tokens * 7919)
    head.sizes.fill_(2)
    head.joins.copy_(torch.stack([tokens % 3 == 0, tokens % 5 > 0]))
    head.spelling[:2] = NO_WORD
    if letters:
        head.letters.copy_(97 + torch.stack([tokens % 26, tokens % 7], dim=1))
    words = head.words(tokens.repeat(8)[None])
    codes = words.codes[words.real].unique()
    head.codes[: len(codes[:4096])] = codes[:4096]
    head.codes.copy_(head.codes.sort().values)
    for tensor in (head.weight, head.bias, head.idf):
        tensor.uniform_(0.1, 2.0)
    model.save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert export_model(str(tmp_path / "model"), tmp_path / "onnx", "onnx") < 1e-5


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        *((LinformerForSequenceClassification, {"projection": projection}) for projection in PROJECTIONS),
        (LinformerForSequenceClassification, {"attention": "full", "pooling": "mean_max", "norm_first": True}),
        (LinformerForMaskedLM, {"position_embedding": "sinusoidal", "sharing": "layerwise"}),
        (LinformerForQuestionAnswering, {}),
        (LinformerForTokenClassification, {"type_vocab_size": 0}),
        (LinformerForSequenceClassification, {"window": 5, "projection": "max"}),
        *(
            (LinformerForSequenceClassification, {"projection": "dynamic", "sharing": sharing, **BESIDE_SLOTS})
            for sharing in ("kv_per_head", "kv")
        ),
        (LinformerModel, {"projection": "mean", "slot_mass": "learned", **BESIDE_SLOTS}),
        (LinformerModel, {"k": 0, **BESIDE_SLOTS}),
        (LinformerForCausalLM, CAUSAL),
        (LinformerModel, {"slot_bias": True, "final_norm": False, "norm_first": True}),
    ],
    ids=lambda value: value if isinstance(value, str) else getattr(value, "__name__", str(value)),
)
def test_onnxruntime_computes_the_same(config, tokenizer, tmp_path, model_class, fields):
    torch.manual_seed(0)
    model_class(LinformerConfig(**{**config.to_diff_dict(), **fields})).save_pretrained(tmp_path / "model")
    tokenizer.save_pretrained(tmp_path / "model")
    assert export_model(str(tmp_path / "model"), tmp_path / "onnx", "onnx") < 1e-5
    assert {"model.onnx", "tokenizer.json", "config.json"} <= {path.name for path in (tmp_path / "onnx").iterdir()}
    session = onnxruntime.InferenceSession(tmp_path / "onnx" / "model.onnx", providers=["CPUExecutionProvider"])
    types = ["token_type_ids"] if fields.get("type_vocab_size") != 0 else []
    assert {each.name: each.shape for each in session.get_inputs()} == {
        name: ["batch", "tokens"] for name in ("input_ids", "attention_mask", *types)
    }
    assert all(each.shape[0] == "batch" for each in session.get_outputs())


@pytest.mark.parametrize("words", [0, 40])
def test_the_folder_of_an_embedder_has_what_text_embeddings_inference_reads(config, tokenizer, texts, tmp_path, words):
    """The names of files and fields that its ONNX backend asks for, and the vectors of sentence-transformers."""
    torch.manual_seed(0)
    folder, out = tmp_path / "model", tmp_path / "onnx"
    LinformerModel(
        LinformerConfig(**{**config.to_diff_dict(), "projection": "dynamic", **BESIDE_SLOTS})
    ).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    lexical = LexicalVector(config.vocab_size, 24, words) if words else None
    if lexical is not None:
        lexical.idf.uniform_(0.5, 2.0)
        lexical.counts_as.copy_(torch.arange(config.vocab_size))
    write_sentence_modules(config, folder, DocumentVectors("cls", lexical))
    (folder / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the "}}')
    assert export_model(str(folder), out, "onnx") < 1e-5
    read = {str(file.relative_to(out)): json.loads(file.read_text()) for file in out.rglob("*.json") if file.is_file()}
    assert (out / "model.onnx").is_file() and "tokenizer.json" in read
    assert read["config.json"]["architectures"] == ["LinformerModel"]
    for name in ("max_position_embeddings", "pad_token_id", "hidden_size", "num_hidden_layers", "num_attention_heads"):
        assert isinstance(read["config.json"][name], int)
    pooling = {name: on for name, on in read["1_Pooling/config.json"].items() if name.startswith("pooling_mode_")}
    ways = ("cls_token", "max_tokens", "mean_sqrt_len_tokens", "mean_tokens")
    assert pooling == {f"pooling_mode_{way}": way == "cls_token" for way in ways}
    assert read["sentence_bert_config.json"]["max_seq_length"] == 32
    assert read["tokenizer_config.json"].get("padding_side", "right") in ("left", "right")
    assert read["config_sentence_transformers.json"] == {"prompts": {"query": "the "}}
    session = onnxruntime.InferenceSession(out / "model.onnx", providers=["CPUExecutionProvider"])
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("last_hidden_state", ["batch", "tokens", 24]),
        ("sentence_embedding", ["batch", 24 + words]),
    ]
    rows = AutoTokenizer.from_pretrained(out)(texts[0], padding=True, return_tensors="np", return_token_type_ids=True)
    rows = {each.name: rows[each.name] for each in session.get_inputs()}
    (vectors,) = session.run(["sentence_embedding"], rows)
    original = SentenceTransformer(str(folder), device="cpu", trust_remote_code=bool(words)).encode(texts[0])
    np.testing.assert_allclose(vectors, original, atol=1e-5)


@pytest.mark.parametrize(("family", "head"), [("Roberta", "Model"), ("ModernBert", "ForSequenceClassification")])
def test_folders_of_linear_encoders(linear_folder, tmp_path, family, head):
    """With rows of one token, short ones that are read exactly, and the longest."""
    folder = linear_folder(family, head, id2label={0: "rain", 1: "snow", 2: "sun"})
    assert export_model(str(folder), tmp_path / "onnx", "onnx") < 1e-5
