"""`distill` from Python: it does what the command does, with the models that it is given."""

import copy
import inspect
import json
import os
import subprocess
import sys

import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch.testing import assert_close
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    PreTrainedTokenizerBase,
)

import torch_linformer
from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import Adaptation, run_adaptation
from torch_linformer.adaptation.pretrained_encoder import encoder_of
from torch_linformer.data.parts import split_documents
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError

OPTIONS = {"steps": 3, "batch_size": 8, "learning_rate": 3e-3, "device": "cpu", "precision": "fp32"}
SLOTS = {"k": 4, "window": 4, "exact_below": 0}


@pytest.fixture(scope="module")
def texts(weather):
    return [text for text, _ in weather(200, seed=5)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, save_source, tokenizer):
    return save_source(tmp_path_factory.mktemp("source") / "small", tokenizer)


@pytest.fixture
def teacher(folder):
    return BertModel.from_pretrained(folder)


def state_of(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.usefixtures("measured_once")
def test_it_is_what_the_command_does(folder, teacher, tokenizer, texts, tmp_path, write_csv, watching_screen):
    before = state_of(teacher.train())
    torch.manual_seed(0)
    student = linearize(teacher, **SLOTS)
    first = state_of(student)
    pads_left = copy.deepcopy(tokenizer)
    pads_left.padding_side = "left"  # which would give tokens other positions
    trained = torch_linformer.distill(student, teacher, pads_left, texts, output=tmp_path / "python", **OPTIONS)
    assert trained is student and not student.training and type(student).__name__ == "LinearBertModel"
    assert any(not torch.equal(first[name], tensor) for name, tensor in student.state_dict().items())
    # The original is left as it was.
    assert teacher.training and all(parameter.requires_grad for parameter in teacher.parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in teacher.state_dict().items())

    data = write_csv(tmp_path / "texts.csv", [(text, "") for text in texts])
    settings = AdaptSettings(data=data, **OPTIONS, **SLOTS, max_length=16, output=str(tmp_path / "command"))
    run_adaptation(str(folder), settings, screen=watching_screen(None, None))
    theirs = load_file(tmp_path / "command" / "model.safetensors")
    for ours in (student.state_dict(), load_file(tmp_path / "python" / "model.safetensors")):
        assert ours.keys() == theirs.keys() and all(torch.equal(ours[name], theirs[name]) for name in theirs)
    results = [json.loads((tmp_path / name / "adaptation.json").read_text()) for name in ("python", "command")]
    assert results[0]["end"] == results[1]["end"]
    assert sorted(os.listdir(tmp_path / "python")) == [
        "README.md",
        "adaptation.json",
        "config.json",
        "model.safetensors",
        "report.html",
        "tokenizer.json",
        "tokenizer_config.json",
    ]


@pytest.mark.usefixtures("measured_once")
def test_the_folder_opens_in_a_fresh_process(teacher, tokenizer, texts, tmp_path, run_apart):
    student = linearize(teacher, **SLOTS)
    torch_linformer.distill(student, teacher, tokenizer, texts, output=tmp_path / "run", pooling="cls", **OPTIONS)
    code = (
        "import torch_linformer, torch; from transformers import AutoModel\n"
        f"model = AutoModel.from_pretrained({str(tmp_path / 'run')!r}).eval()\n"
        "print(type(model).__name__, model.config.pooling)\n"
        f"torch.save(model(torch.arange(4, 16)[None]).last_hidden_state, {str(tmp_path / 'out.pt')!r})"
    )
    done = run_apart(code)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "LinearBertModel cls\n"
    with torch.no_grad():
        expected = student(torch.arange(4, 16)[None]).last_hidden_state
    assert_close(torch.load(tmp_path / "out.pt", weights_only=True), expected)


def test_only_slots_are_trained(teacher, tokenizer, texts):
    """So a text that is read exactly stays what the original makes of it."""
    student = linearize(teacher, k=4, window=4, exact_below=6)
    first = state_of(student)
    options = {name: value for name, value in OPTIONS.items() if name != "learning_rate"}
    options |= {"batch_size": 1, "steps": 12}  # some batches are read exactly, and have nothing to learn
    torch_linformer.distill(student, teacher, tokenizer, texts, slots_only=True, **options)
    trained = {name for name, tensor in student.state_dict().items() if not torch.equal(first[name], tensor)}
    assert trained == {name for name in first if ".linformer." in name}
    assert all(parameter.requires_grad for parameter in student.parameters())  # as before
    short, long = torch.arange(4, 10)[None], torch.arange(4, 16)[None]
    assert_close(student(short).last_hidden_state, teacher.eval()(short).last_hidden_state)
    assert not torch.allclose(student(long).last_hidden_state, teacher(long).last_hidden_state, atol=1e-3)


def test_windows_are_what_the_student_was_made_with(teacher, tokenizer, texts, watching_screen):
    """Of the 16 tokens that the original could read, 8 are used; where positions are learned, one after the other."""
    student = linearize(teacher, max_length=40, usual_length=8, **SLOTS)
    screen, parts = watching_screen(None, None), split_documents(Dataset.from_dict({"text": texts}), 0.3, 0)
    settings = AdaptSettings(data="texts", max_length=40, **OPTIONS)
    adaptation = Adaptation(encoder_of(teacher, tokenizer, "small"), *parts, settings, screen, student=student)
    assert (adaptation.teacher.longest, adaptation.teacher.shared) == (8, 0.0)
    assert "parameters, reads 8 tokens, " in screen.shown


def test_without_a_folder_it_writes_nothing(teacher, tokenizer, texts, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch_linformer.distill(linearize(teacher, **SLOTS), teacher, tokenizer, texts, **OPTIONS)
    assert os.listdir(tmp_path) == []


@pytest.mark.usefixtures("measured_once")
def test_texts_read_exactly_have_nothing_to_learn(teacher, tokenizer, texts, tmp_path):
    """Where exact_below is the whole length the student is the original, whose dropout is not compared either."""
    student = linearize(teacher, k=4, window=4, exact_below=16)
    assert student.config.hidden_dropout_prob == 0.1
    options = {**OPTIONS, "learning_rate": 1e-9, "output": tmp_path / "run"}
    torch_linformer.distill(student.train(), teacher, tokenizer, texts, **options)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    losses = [entry["loss"] for entry in result["history"] if "loss" in entry]
    assert losses == pytest.approx([0.0] * 3, abs=1e-4)
    assert [result[which]["cosine"] for which in ("start", "end")] == pytest.approx([1, 1])


@pytest.mark.parametrize("model_class", [BertForMaskedLM, BertForSequenceClassification])
def test_a_head_learns_what_it_says(model_class, tmp_path, save_source, tokenizer, texts):
    """The weights of the head change by what its predictions are to be, and its task is that of the head."""
    teacher = model_class.from_pretrained(save_source(tmp_path / "small", tokenizer, model_class))
    head = "cls.predictions.bias" if model_class is BertForMaskedLM else "classifier.bias"
    student = linearize(teacher, **SLOTS)
    first = state_of(student)
    torch_linformer.distill(student, teacher, tokenizer, texts, **OPTIONS)
    assert not torch.equal(first[head], student.state_dict()[head])
    torch_linformer.distill(student, teacher, tokenizer, texts, task="embed", **OPTIONS)


NO_SLOTS = "--slots-only: no text is long enough for slots, or there are none that can be trained"


@pytest.mark.parametrize(
    ("made", "options", "message"),
    [
        ({}, {"test": "held-out.csv"}, "test must be a fraction of the texts, got 'held-out.csv'"),
        ({}, {"task": "mlm"}, "--task mlm: .* has no head for it"),
        ({}, {"pooling": "last"}, "pooling must be one of mean, cls, max, got 'last'"),
        ({}, {"test": 0.04}, "leaves 8 texts for the test; at least 20 are needed"),
        ({}, {"slots_only": True}, "--learning-rate is that of the original's weights, which --slots-only keeps as "),
        ({}, {"steps": 0}, "--steps must be a number above 0, got 0"),
        ({"k": 0}, {"slots_only": True, "learning_rate": None}, "--slots-only trains slots, and --k 0 has no slots"),
        ({"projection": "mean"}, {"slots_only": True, "learning_rate": None}, NO_SLOTS),
        ({"exact_below": 16}, {"slots_only": True, "learning_rate": None}, NO_SLOTS),
    ],
)
def test_options_that_it_cannot_use(teacher, tokenizer, texts, made, options, message):
    student = linearize(teacher, **{**SLOTS, **made})
    first = state_of(student)
    with pytest.raises(InputError, match=message) as error:
        torch_linformer.distill(student, teacher, tokenizer, texts, **{**OPTIONS, **options})
    assert "\n" not in str(error.value)
    assert all(torch.equal(first[name], tensor) for name, tensor in student.state_dict().items())


@pytest.mark.parametrize("option", ["epochs", "k", "data", "fsdp"])
def test_an_unknown_option(teacher, tokenizer, texts, option):
    with pytest.raises(TypeError, match=f"unexpected keyword argument '{option}'"):
        torch_linformer.distill(linearize(teacher, **SLOTS), teacher, tokenizer, texts, **{option: 3})


def test_its_options_are_those_of_the_command():
    parameters = inspect.signature(torch_linformer.distill).parameters
    fields = AdaptSettings.__dataclass_fields__
    shared = parameters.keys() & fields.keys() - {"output"}
    assert shared >= {"steps", "minutes", "learning_rate", "slot_learning_rate", "precision", "test", "task"}
    assert {name: str(parameters[name].default) for name in shared} == {
        name: str(fields[name].default) for name in shared
    }


SIZES = {"num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 32, "hidden_size": 24}


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"hidden_size": 48}, "the teacher has hidden_size = 48 and the student 24: the teacher is the "),
        ({"num_hidden_layers": 3}, "the teacher has num_hidden_layers = 3 and the student 2: "),
        (None, "the teacher is the student itself: take the model that "),
    ],
)
def test_models_that_do_not_belong_together(teacher, tokenizer, texts, changed, message):
    student = linearize(teacher, **SLOTS)
    other = student if changed is None else BertModel(BertConfig(vocab_size=len(tokenizer), **{**SIZES, **changed}))
    with pytest.raises(InputError, match=f"^{message}"):
        torch_linformer.distill(student, other, tokenizer, texts)


def test_what_it_is_not_made_for(teacher, tokenizer, texts, tmp_path):
    student = linearize(teacher, **SLOTS)
    with pytest.raises(InputError, match=r"^BertModel is not linear: torch_linformer\.linearize makes it so$"):
        torch_linformer.distill(teacher, teacher, tokenizer, texts)
    with pytest.raises(InputError, match=r"^the tokenizer is a PreTrainedTokenizerBase: a fast one is needed, with a "):
        torch_linformer.distill(student, teacher, PreTrainedTokenizerBase(), texts)
    (tmp_path / "notes.txt").touch()
    with pytest.raises(InputError, match="is not empty; name another folder"):
        torch_linformer.distill(student, teacher, tokenizer, texts, output=tmp_path)
    assert os.listdir(tmp_path) == ["notes.txt"]


def test_a_head_that_the_student_lacks(tmp_path, save_source, tokenizer, texts):
    teacher = BertForMaskedLM.from_pretrained(save_source(tmp_path / "small", tokenizer, BertForMaskedLM))
    student = linearize(teacher.base_model, **SLOTS)
    with pytest.raises(InputError, match=r"^the teacher has a head for masked words and LinearBertModel has none: lin"):
        torch_linformer.distill(student, teacher, tokenizer, texts, **OPTIONS)
    torch_linformer.distill(student, teacher, tokenizer, texts, task="embed", **OPTIONS)


@pytest.mark.usefixtures("measured_once")
def test_a_text_longer_than_the_original_reads(teacher, tokenizer, texts, tmp_path):
    student = linearize(teacher, max_length=40, **SLOTS)
    torch_linformer.distill(student, teacher, tokenizer, texts, output=tmp_path / "run", **OPTIONS)
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert model.config.longest_input == 40
    assert model(torch.arange(4, 44)[None]).last_hidden_state.isfinite().all()


def test_what_is_missing_is_named():
    """In a process that cannot import what the extra brings."""
    code = (
        "import sys; sys.modules['datasets'] = None\n"
        "import torch_linformer\n"
        "try:\n    torch_linformer.distill\nexcept ImportError as error:\n    print(error)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == 'torch_linformer.distill needs datasets: pip install "torch-linformer[train]"\n', done.stderr
