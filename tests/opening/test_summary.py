import json
import subprocess
import sys

import pytest

import torch_linformer
from torch_linformer import LinformerSeq2SeqConfig, __version__
from torch_linformer.models import LinformerConfig, LinformerModel
from torch_linformer.models.configuration import AUTO_CLASSES
from torch_linformer.opening.summary import _from_files, _from_model, attention_of, summarize, summary_rows

SIZES = {
    "vocab_size": 9,
    "max_position_embeddings": 8,
    "hidden_size": 8,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 8,
}
MODEL_CLASSES = sorted({name for names in AUTO_CLASSES.values() for name in names.values() if "Config" not in name})


@pytest.mark.parametrize("kind", ["classifier_run", "masked_run", "clm_run", "seq2seq_run"])
def test_the_files_say_what_the_model_says(request, kind):
    folder = request.getfixturevalue(kind).folder
    read, opened = _from_files(folder), _from_model(str(folder))
    for name in ("model_class", "parameters", "vocabulary"):
        assert getattr(read, name) == getattr(opened, name)
    assert attention_of(read.config) == attention_of(opened.config)
    parts = ("encoder", "decoder") if opened.config.is_encoder_decoder else (None,)
    for part in parts:
        ours, models = (getattr(each.config, part) if part else each.config for each in (read, opened))
        for name in ("longest_input", "max_position_embeddings", "num_hidden_layers", "hidden_size"):
            assert getattr(ours, name) == getattr(models, name)
    assert kind != "classifier_run" or read.config.label_names == opened.config.label_names == ["rain", "snow", "sun"]


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
    ],
    ids=str,
)
def test_an_attention_in_words(tmp_path, fields, words):
    model = LinformerModel(LinformerConfig(**SIZES, **fields))
    assert attention_of(model.config) == words
    model.save_pretrained(tmp_path)
    assert attention_of(_from_files(tmp_path).config) == words


def test_fields_that_a_file_lacks_are_those_of_the_model(model_copy):
    path = model_copy / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({name: config[name] for name in config if name not in ("slot_mass", "exact_first")}))
    assert _from_files(model_copy) is None
    assert attention_of(summarize(str(model_copy)).config) == attention_of(LinformerConfig(**config))


@pytest.mark.parametrize("name", MODEL_CLASSES)
def test_every_class_is_described(tmp_path, name):
    part = LinformerConfig(**SIZES, k=2, causal=name == "LinformerForCausalLM")
    if name == "LinformerForConditionalGeneration":
        part = LinformerSeq2SeqConfig(encoder=part, decoder=LinformerConfig(**SIZES, k=2, causal=True))
    getattr(torch_linformer, name)(part).save_pretrained(tmp_path)
    assert dict(summary_rows(str(tmp_path)))["class"] == name


def test_matrices_that_are_drawn_once_are_no_parameters(tmp_path):
    model = LinformerModel(LinformerConfig(**SIZES, k=2, projection="random"))
    model.save_pretrained(tmp_path)
    assert summarize(str(tmp_path)).parameters == model.num_parameters()


def test_of_a_damaged_folder_the_files_say_nothing(model_copy):
    weights = model_copy / "model.safetensors"
    assert _from_files(model_copy) is not None
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-1])
    assert _from_files(model_copy) is None
    weights.write_bytes(whole)
    config = json.loads((model_copy / "config.json").read_text())
    (model_copy / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert _from_files(model_copy) is None


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["info"], "LinformerForSequenceClassification"),
        (["--help"], "Commands"),
        (["--version"], f"torch-linformer {__version__}\n"),
    ],
)
def test_torch_is_not_needed(classifier_run, arguments, said):
    if arguments == ["info"]:
        arguments = ["info", str(classifier_run.folder)]
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
