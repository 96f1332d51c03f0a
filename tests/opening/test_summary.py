"""What `linformer info` tells of a model folder."""

import subprocess
import sys

import pytest

import torch_linformer
from torch_linformer import LinformerSeq2SeqConfig, __version__
from torch_linformer.encoders import linearize
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.models.configuration import AUTO_CLASSES
from torch_linformer.opening.summary import attention_of, summary_rows

SIZES = {
    "vocab_size": 9,
    "max_position_embeddings": 8,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
MODEL_CLASSES = sorted({name for names in AUTO_CLASSES.values() for name in names.values() if "Config" not in name})
LABELS = {"id2label": {0: "rain", 1: "snow", 2: "sun"}}
ENDS = "first token and last token exact"
SLOTS = f"K 8, slots chosen by the input, learned mass, {ENDS}, window 6, texts of at most 20 tokens exact"


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"k": 7}, "K 7, sharing headwise, projection linear"),
        ({"k": 7, "projection": "mean", "slot_mass": "fixed"}, "K 7, projection mean, fixed mass"),
        (
            {"k": 7, "projection": "dynamic", "sharing": "kv_per_head", "slot_mass": "learned", "exact_first": 1},
            "K 7, sharing kv_per_head, slots chosen by the input, learned mass, first token exact",
        ),
        (
            {"k": 0, "window": 4, "exact_first": 2, "exact_last": 1},
            "no slots, first 2 tokens and last token exact, window 4",
        ),
        ({"k": 7, "causal": True, "window": 4}, "K 7, causal, window 4"),
        ({"k": 0, "causal": True, "window": 4}, "no slots, causal, window 4"),
        ({"attention": "full"}, "full attention"),
        ({"attention": "full", "causal": True}, "causal full attention"),
    ],
    ids=str,
)
def test_an_attention_in_words(fields, words):
    assert attention_of(LinformerConfig(**SIZES, **fields)) == words


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("Bert", {"k": 8, "window": 6, "exact_below": 20}, SLOTS),
        ("ModernBert", {"k": 8, "window": 6, "exact_below": 20}, f"{SLOTS}, 2 of 4 layers only a window of 10"),
        ("Bert", {"k": 0, "window": 6, "exact_below": 20}, f"no slots, {ENDS}, window 6, texts of at most 20 tokens "),
        ("Bert", {"k": 8, "window": None, "projection": "mean", "exact_below": 0}, "K 8, projection mean, fixed mass"),
    ],
    ids=str,
)
def test_the_attention_of_an_encoder_in_words(original_encoder, family, options, words):
    assert attention_of(linearize(original_encoder(family), **options).config).startswith(words)


def test_a_head_on_an_encoder_with_ordinary_attention(original_encoder):
    config = linearize(original_encoder("Bert", "ForSequenceClassification"), k=4).config
    config.linformer = None
    assert attention_of(LinformerConfig(backbone_config=config, attention="full")) == "full attention"


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_every_class_is_described(tmp_path, name):
    part = LinformerConfig(**SIZES, k=2, causal=name == "LinformerForCausalLM")
    if name == "LinformerForConditionalGeneration":
        part = LinformerSeq2SeqConfig(encoder=part, decoder=LinformerConfig(**SIZES, k=2, causal=True))
    model = getattr(torch_linformer, name)(part)
    model.save_pretrained(tmp_path)
    rows = dict(summary_rows(str(tmp_path)))
    assert (rows["class"], rows["parameters"]) == (name, f"{model.num_parameters():,}")
    assert rows["layers"] == "1 of width 8, 2 heads" and rows["tokenizer"] == "none"
    assert ("longest target" in rows) == (name == "LinformerForConditionalGeneration")


def test_a_model_without_longest_input(tmp_path):
    LinformerModel(LinformerConfig(**SIZES, k=2, causal=True, position_embedding="none")).save_pretrained(tmp_path)
    assert dict(summary_rows(str(tmp_path)))["longest input"] == "any, trained on 8 tokens"


def test_a_trained_classifier(classifier_run):
    rows = dict(summary_rows(str(classifier_run.folder)))
    assert rows["labels"] == "rain, snow, sun" and rows["tokenizer"].endswith(" tokens")
    assert 0 <= float(rows["held-out accuracy"].split()[0]) <= 1


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
def test_an_encoder_and_its_heads(linear_folder, head):
    labels = head == "ForSequenceClassification"
    rows = dict(summary_rows(str(linear_folder("Roberta", head, **(LABELS if labels else {})))))
    assert rows["class"] == f"LinearRoberta{head}" and rows["attention"] == SLOTS
    assert rows["longest input"] == "96 tokens"  # and not the 97 rows of its table of positions
    assert rows["layers"] == "2 of width 24, 4 heads" and rows["tokenizer"] == "260 tokens"
    assert rows.get("labels") == ("rain, snow, sun" if labels else None)


@pytest.mark.parametrize(("arguments", "said"), [(["--help"], "Commands"), (["--version"], __version__)])
def test_torch_is_not_needed(arguments, said):
    code = f"""if True:
        import sys
        from torch_linformer.cli.app import run
        try:
            run({arguments})
        except SystemExit as end:
            assert end.code == 0
        heavy = ("torch", "transformers", "datasets", "huggingface_hub", "sklearn", "pandas", "matplotlib")
        print([name for name in heavy if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout and done.stdout.endswith("\n[]\n")
