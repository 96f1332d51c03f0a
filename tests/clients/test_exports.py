"""Models as other programs run them: ONNX, torch.export, OpenVINO, ExecuTorch; each computes what the model does."""

import json
import warnings

import numpy as np
import onnxruntime
import pytest
import torch
from encoders.families import TEXTS, VOCABULARY, base_class, linear, random_model
from sentence_transformers import SentenceTransformer
from torch import nn
from torch.export import Dim
from transformers import AutoTokenizer, MPNetConfig, MPNetModel

from torch_linformer.encoders import linearize
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
from torch_linformer.models.lexical_vector import LexicalVector
from torch_linformer.models.pooling import DocumentVectors
from torch_linformer.opening.devices import why_not_compile
from torch_linformer.opening.sentence_transformers import write_sentence_modules

BESIDE_SLOTS = {"exact_first": 1, "exact_last": 1, "window": 5}
CAUSAL = {"causal": True, "window": 5, "num_hidden_layers": 1, "max_position_embeddings": 150}
NEAR = 1e-4  # float32, of numbers of about 1


def saved(folder, tokenizer, model):
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return str(folder)


def session_of(file):
    return onnxruntime.InferenceSession(str(file), providers=["CPUExecutionProvider"])


# The command's own ONNX files and programs


@torch.no_grad()
def test_a_program_of_torch_scores_texts_of_any_length(config, tokenizer, tmp_path):
    torch.manual_seed(0)
    model = LinformerForCausalLM(LinformerConfig(**{**config.to_diff_dict(), **CAUSAL})).eval()
    assert export_model(saved(tmp_path / "model", tokenizer, model), tmp_path / "out", "torch") < 1e-5
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
    assert export_model(saved(tmp_path / "model", tokenizer, model), tmp_path / "onnx", "onnx") < 1e-5


ROWS = LinformerForSequenceClassification


@pytest.mark.parametrize(
    ("model_class", "fields"),
    [
        *((ROWS, {"projection": name}) for name in ("linear", "random", "conv", "mean", "max", "dynamic")),
        (ROWS, {"attention": "full", "pooling": "mean_max", "norm_first": True}),
        (LinformerForMaskedLM, {"position_embedding": "sinusoidal", "sharing": "layerwise"}),
        (LinformerForQuestionAnswering, {}),
        (LinformerForTokenClassification, {"type_vocab_size": 0}),
        (ROWS, {"window": 5, "projection": "max"}),
        *((ROWS, {"projection": "dynamic", "sharing": name, **BESIDE_SLOTS}) for name in ("kv_per_head", "kv")),
        (LinformerModel, {"projection": "mean", "slot_mass": "learned", **BESIDE_SLOTS}),
        (LinformerModel, {"k": 0, **BESIDE_SLOTS}),
        (LinformerForCausalLM, CAUSAL),
        (LinformerModel, {"slot_bias": True, "final_norm": False, "norm_first": True}),
    ],
    ids=lambda value: getattr(value, "__name__", str(value)),
)
def test_onnxruntime_computes_the_same(config, tokenizer, tmp_path, model_class, fields):
    torch.manual_seed(0)
    model = model_class(LinformerConfig(**{**config.to_diff_dict(), **fields}))
    assert export_model(saved(tmp_path / "model", tokenizer, model), tmp_path / "onnx", "onnx") < 1e-5
    assert {"model.onnx", "tokenizer.json", "config.json"} <= {path.name for path in (tmp_path / "onnx").iterdir()}
    session = session_of(tmp_path / "onnx" / "model.onnx")
    types = ["token_type_ids"] if fields.get("type_vocab_size") != 0 else []
    assert {each.name: each.shape for each in session.get_inputs()} == {
        name: ["batch", "tokens"] for name in ("input_ids", "attention_mask", *types)
    }
    assert all(each.shape[0] == "batch" for each in session.get_outputs())


@pytest.mark.parametrize("words", [0, 40])
def test_the_folder_of_an_embedder_has_what_text_embeddings_inference_reads(config, tokenizer, texts, tmp_path, words):
    """The names of files and fields that its ONNX backend asks for, and the vectors of sentence-transformers."""
    torch.manual_seed(0)
    out, fields = tmp_path / "onnx", {**config.to_diff_dict(), "projection": "dynamic", **BESIDE_SLOTS}
    folder = saved(tmp_path / "model", tokenizer, LinformerModel(LinformerConfig(**fields)))
    lexical = LexicalVector(config.vocab_size, 24, words) if words else None
    if lexical is not None:
        lexical.weights.uniform_(0.5, 2.0)
        lexical.counts_as.copy_(torch.arange(config.vocab_size))
    write_sentence_modules(config, tmp_path / "model", DocumentVectors("cls", lexical))
    (tmp_path / "model" / "config_sentence_transformers.json").write_text('{"prompts": {"query": "the "}}')
    assert export_model(folder, out, "onnx") < 1e-5
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
    session = session_of(out / "model.onnx")
    assert [(each.name, each.shape) for each in session.get_outputs()] == [
        ("last_hidden_state", ["batch", "tokens", 24]),
        ("sentence_embedding", ["batch", 24 + words]),
    ]
    rows = AutoTokenizer.from_pretrained(out)(texts[0], padding=True, return_tensors="np", return_token_type_ids=True)
    (vectors,) = session.run(["sentence_embedding"], {each.name: rows[each.name] for each in session.get_inputs()})
    original = SentenceTransformer(folder, device="cpu", trust_remote_code=bool(words)).encode(texts[0])
    np.testing.assert_allclose(vectors, original, atol=1e-5)


@pytest.mark.parametrize(("family", "head"), [("Roberta", "Model"), ("ModernBert", "ForSequenceClassification")])
def test_folders_of_linear_encoders(linear_folder, tmp_path, family, head):
    """With rows of one token, short ones that are read exactly, and the longest."""
    folder = linear_folder(family, head, id2label={0: "rain", 1: "snow", 2: "sun"})
    assert export_model(str(folder), tmp_path / "onnx", "onnx") < 1e-5


# Linear encoders of every text family, at other numbers of rows and tokens than they were exported with


class Hidden(nn.Module):
    """An encoder whose output is one tensor."""

    def __init__(self, encoder):
        super().__init__()
        self.encoder = encoder

    def forward(self, input_ids, attention_mask):
        return self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state


def rows_of(rows, length, pad=None):
    """Ids and a mask with padding after the first row and before the last; the longest row is whole."""
    generator = torch.Generator().manual_seed(length)
    ids = torch.randint(5, VOCABULARY if pad is None else 97, (rows, length), generator=generator)
    mask = torch.ones_like(ids)
    mask[0, length // 2 + 1 :] = 0
    mask[-1, : length // 3] = 0
    return (ids if pad is None else ids.masked_fill(mask == 0, pad)), mask


@pytest.mark.parametrize("family", TEXTS, ids=repr)
@torch.no_grad()
def test_onnxruntime_reads_every_family(family, tmp_path):
    """Rows that are read exactly (of at most 8 tokens) and rows with slots. Optimizing takes onnxscript a minute."""
    encoder = linear(random_model(base_class(family), family.config, torch.float32), exact_below=8)
    model, sizes = Hidden(encoder).eval(), {0: Dim("rows"), 1: Dim("tokens", max=50)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter
        example = rows_of(3, 24)
        program = torch.onnx.export(model, example, dynamo=True, dynamic_shapes=(sizes, sizes), optimize=False)
        program.save(tmp_path / "model.onnx")
    session = session_of(tmp_path / "model.onnx")
    names = [x.name for x in session.get_inputs()]
    for rows, length in ((3, 24), (2, 47), (5, 19), (2, 9)):
        inputs = rows_of(rows, length)
        (output,) = session.run(None, dict(zip(names, (x.numpy() for x in inputs), strict=True)))
        assert (torch.from_numpy(output) - model(*inputs))[inputs[1] == 1].abs().max() < NEAR


@pytest.mark.filterwarnings("ignore:.*LeafSpec.* is deprecated:FutureWarning")  # torch's own
@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value) encountered in:RuntimeWarning")  # MPNet's log of 0
@torch.no_grad()
def test_onnxruntime_reads_every_length_of_mpnet(tmp_path):
    """Rows of up to 20 tokens exactly, and longer ones."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 97, "hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 3}
    config = MPNetConfig(**sizes, intermediate_size=40, max_position_embeddings=152, initializer_range=0.3)
    model = Hidden(linearize(MPNetModel(config), k=5, window=8, exact_below=20)).eval()
    sizes = {0: Dim("rows", max=64), 1: Dim("tokens", max=150)}
    program = torch.export.export(model, rows_of(2, 50, pad=1), dynamic_shapes=(sizes, sizes))
    torch.onnx.export(program, (), tmp_path / "model.onnx", dynamo=True, verbose=False)
    session = session_of(tmp_path / "model.onnx")
    names = [node.name for node in session.get_inputs()]
    for length in (3, 20, 33, 150):
        ids, mask = rows_of(3, length, pad=1)
        [output] = session.run(None, dict(zip(names, (ids.numpy(), mask.numpy()), strict=True)))
        for exported in (torch.from_numpy(output), program.module()(ids, mask)):
            assert (exported - model(ids, mask))[mask == 1].abs().max() < 2e-5


reason = why_not_compile("cpu")


@pytest.mark.skipif(reason is not None, reason=reason or "")
@pytest.mark.parametrize("family", [TEXTS[0], TEXTS[-1]], ids=repr)
@torch.no_grad()
def test_a_compiler_computes_the_same(family):
    """One graph; absolute positions, and rotary ones with a local layer."""
    encoder = linear(random_model(base_class(family), family.config, torch.float32), exact_below=8)
    model, inputs = Hidden(encoder).eval(), rows_of(3, 24)
    output = torch.compile(model, fullgraph=True)(*inputs)
    assert (output - model(*inputs))[inputs[1] == 1].abs().max() < NEAR


# OpenVINO and ExecuTorch

CLASSIFIERS = [{"projection": name, "window": w} for name in ("linear", "mean", "conv", "dynamic") for w in (None, 4)]


def classifier(config, fields):
    torch.manual_seed(0)
    fields = {**config.to_diff_dict(), **fields, "num_hidden_layers": 1}
    return LinformerForSequenceClassification(LinformerConfig(**fields)).eval()


def inputs_of(config, batch, length, masked=True):
    """Ids and, if they are to be, a mask, by name: with padding before the words of a row and after."""
    ids, mask = torch.randint(5, config.vocab_size, (batch, length)), torch.ones(batch, length, dtype=torch.long)
    mask[0, length // 2 :] = 0
    mask[-1, : length // 3] = 0
    return {"input_ids": ids, **({"attention_mask": mask} if masked else {})}


@pytest.mark.parametrize("way", ["onnx", "torch.export", "trace"])
@pytest.mark.parametrize("fields", CLASSIFIERS, ids=str)
@torch.no_grad()
def test_openvino_computes_the_same(config, tmp_path, fields, way):
    openvino = pytest.importorskip("openvino", reason="OpenVINO is not installed: pip install openvino")
    model, inputs = classifier(config, fields), inputs_of(config, 2, 16)
    shapes = {name: {0: Dim("batch", max=64), 1: Dim("length", max=32)} for name in inputs}
    options = {"dynamic_shapes": shapes}
    if way == "trace":
        read = openvino.convert_model(model, example_input=inputs)
    elif way == "torch.export":
        read = openvino.convert_model(torch.export.export(model, (), inputs, strict=False, **options))
    else:
        torch.onnx.export(model, kwargs=inputs, f=tmp_path / "model.onnx", dynamo=True, verbose=False, **options)
        read = openvino.convert_model(tmp_path / "model.onnx")
    # It would take bfloat16 where a processor has it.
    compiled = openvino.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    for batch, length in ((2, 16), (3, 11), (1, 32)):
        inputs = inputs_of(config, batch, length)
        logits = compiled([x.numpy() for x in inputs.values()])[0]
        assert (torch.from_numpy(logits) - model(**inputs).logits).abs().max() < 1e-5


@pytest.mark.parametrize("masked", [False, True], ids=["whole", "padded"])
@pytest.mark.parametrize("fields", CLASSIFIERS, ids=str)
@torch.no_grad()
def test_executorch_computes_the_same(config, fields, masked):
    """Lowered to XNNPACK where that has the operation."""
    pytest.importorskip("executorch", reason="ExecuTorch is not installed: pip install executorch")
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    model, inputs = classifier(config, fields), inputs_of(config, 1, 32, masked)
    program = torch.export.export(model, (), inputs, strict=False)
    lowered = to_edge_transform_and_lower(program, partitioner=[XnnpackPartitioner()]).to_executorch()
    (logits, *_) = Runtime.get().load_program(lowered.buffer).load_method("forward").execute(list(inputs.values()))
    assert (logits - model(**inputs).logits).abs().max() < 1e-5
