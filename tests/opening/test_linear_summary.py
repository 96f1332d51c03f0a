"""What is told of a folder of a linear encoder of transformers without opening it."""

import json
import shutil
import subprocess
import sys

import pytest

from torch_linformer.encoders.classes import MODEL_TYPE
from torch_linformer.opening import summary
from torch_linformer.opening.summary import _from_files, _from_model, attention_of, summarize, summary_rows

LABELS = {"id2label": {0: "rain", 1: "snow", 2: "sun"}}
SLOTS = "K 8, slots chosen by the input, learned mass, first token and last token exact, window 6"
SHORT = "texts of at most 20 tokens exact"


@pytest.mark.parametrize("head", ["Model", "ForMaskedLM", "ForSequenceClassification", "ForQuestionAnswering"])
@pytest.mark.parametrize("family", ["Bert", "Roberta", "DistilBert", "ModernBert"])
def test_the_files_say_what_the_model_says(linear_folder, family, head):
    folder = linear_folder(family, head, **(LABELS if head == "ForSequenceClassification" else {}))
    read, opened = _from_files(folder), _from_model(str(folder))
    assert read.model_class == f"Linear{family}{head}"
    for name in ("model_class", "parameters", "vocabulary"):
        assert getattr(read, name) == getattr(opened, name)
    assert attention_of(read.config) == attention_of(opened.config)
    for name in ("longest_input", "num_hidden_layers", "hidden_size", "num_attention_heads", "problem_type"):
        assert getattr(read.config, name) == getattr(opened.config, name)


def test_what_is_shown(linear_folder):
    rows = dict(summary_rows(str(linear_folder("Roberta", "ForSequenceClassification", **LABELS))))
    assert rows["class"] == "LinearRobertaForSequenceClassification"
    assert rows["attention"] == f"{SLOTS}, {SHORT}"
    assert rows["longest input"] == "96 tokens"  # and not the 97 rows of its table of positions
    assert rows["layers"] == "2 of width 24, 4 heads"
    assert rows["tokenizer"] == "260 tokens" and rows["labels"] == "rain, snow, sun"


def test_layers_that_stayed_local(linear_folder):
    assert dict(summary_rows(str(linear_folder("ModernBert"))))["attention"] == (
        f"{SLOTS}, {SHORT}, 2 of 4 layers only a window of 10"
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": 0}, "no slots, first token and last token exact, window 6, texts of at most 20 tokens exact"),
        (
            {"projection": "mean", "window": None, "exact_below": 0},
            "K 8, projection mean, fixed mass, first token and ",
        ),
    ],
)
def test_other_attentions(linear_folder, tmp_path, options, words):
    folder = shutil.copytree(linear_folder("Bert"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["linformer"]["options"] |= options
    (folder / "config.json").write_text(json.dumps(config))
    assert attention_of(_from_files(folder).config).startswith(words)


@pytest.mark.parametrize(
    "change", [{"num_hidden_layers": 3}, {"architectures": ["LinearRobertaModel"]}, {"linformer": {}}]
)
def test_of_a_damaged_folder_the_files_say_nothing(linear_folder, tmp_path, change):
    folder = shutil.copytree(linear_folder("Bert"), tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **change}))
    assert _from_files(folder) is None


def test_torch_is_not_needed(linear_folder):
    code = f"""if True:
        import sys
        from torch_linformer.opening.summary import summary_rows
        print(dict(summary_rows({str(linear_folder("Bert"))!r}))["class"])
        print([name for name in ("torch", "transformers") if name in sys.modules])
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "LinearBertModel\n[]\n", done.stderr


def test_the_kind_of_model_is_called_as_where_it_is_made():
    assert summary._LINEAR_ENCODER == MODEL_TYPE


def test_layers_that_share_their_weights(original_encoder, tmp_path):
    """The files show one layer where the configuration has several: then the model is opened."""
    from torch_linformer.encoders import linearize

    model = linearize(original_encoder("Albert"), k=4, window=4)
    model.save_pretrained(tmp_path)
    assert summarize(str(tmp_path)).parameters == model.num_parameters()
