"""`linformer adapt` from an encoder and texts to a folder that the others open, also after it was killed."""

import json
import os
import re
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from datasets import Dataset
from safetensors.torch import load_file
from torch.nn import functional as F
from transformers import (
    AutoModel,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
)

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import LEAST_TEXTS, Adaptation, run_adaptation
from torch_linformer.adaptation.distillation import Teacher, split_slot_parameters
from torch_linformer.adaptation.objectives import Embeddings
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.encoders import linearize
from torch_linformer.encoders.linearize import with_options
from torch_linformer.errors import InputError
from torch_linformer.opening.folder import checkpoints, is_whole
from torch_linformer.opening.sentence_transformers import sentence_settings
from torch_linformer.training.trainer import Interrupted
from torch_linformer.training.training_screen import TrainingScreen

LONGEST, READ = 16, 32  # tokens of the original, and of the adapted
FILES = [
    "1_Pooling",
    "2_Normalize",
    "README.md",
    "adaptation.json",
    "config.json",
    "config_sentence_transformers.json",
    "model.safetensors",
    "modules.json",
    "report.html",
    "run.json",
    "sentence_bert_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
]


@pytest.fixture(scope="module")
def source(tmp_path_factory, save_source, tokenizer):
    """A folder of sentence-transformers with a small BERT, whose embeddings are those of its first tokens."""
    return save_source(tmp_path_factory.mktemp("source") / "small", tokenizer, pooling="cls_token")


@pytest.fixture(scope="module")
def options(tmp_path_factory, write_csv, weather):
    return {
        "data": write_csv(tmp_path_factory.mktemp("texts") / "texts.csv", weather(400, seed=5)),
        "max_length": READ,
        "k": 4,
        "window": 4,
        "exact_below": 0,
        "steps": 40,
        "batch_size": 8,
        "learning_rate": 3e-3,
        "device": "cpu",
        "precision": "fp32",
    }


@pytest.fixture(scope="module")
def adapt(source, options, watching_screen):
    """A function: adapt with the options above, changed as told; returns what the screen showed."""

    def run(output, *, resume=False, moments=None, path=source, width=200, **changed):
        screen = watching_screen(output, moments, width)
        settings = AdaptSettings(**{**options, **changed, "output": str(output)})
        run_adaptation(str(path), settings, resume=resume, command="linformer adapt small <&>", screen=screen)
        return screen.shown

    return run


@pytest.fixture(scope="module")
def finished(adapt, tmp_path_factory):
    base = tmp_path_factory.mktemp("adapted")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_linformer.training.step_costs.TURNS", 0)
        shown = adapt(base / "run", moments=base / "moments")
    result = json.loads((base / "run" / "adaptation.json").read_text())
    return SimpleNamespace(folder=base / "run", moments=base / "moments", shown=shown, result=result)


def test_the_student_comes_near_its_teacher(finished):
    start, end = finished.result["start"], finished.result["end"]
    assert 1 - end["cosine"] < 0.7 * (1 - start["cosine"]) and end["rank_correlation"] > start["rank_correlation"]
    assert end["cosine"] > 0.95


def test_chance_stands_beside_the_nearest_that_are_kept(finished, read_page):
    """Of 40 texts held out ten others are drawn from 39."""
    assert re.search(r"before any training: .*, ten nearest kept 0\.\d{4} \(random guess 0\.2564\)\n", finished.shown)
    row = next(line for line in finished.shown.splitlines() if line.strip().startswith("ten nearest kept "))
    assert row.split()[-1] == "0.2564"
    text = [part.strip() for part in read_page((finished.folder / "report.html").read_text("utf-8")).text]
    assert text.count("0.2564") == 1 and any(part.endswith("random guess 0.2564") for part in text)


def test_a_page_is_named_after_the_source_and_names_leakage(adapt, source, options, tmp_path, read_page):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_linformer.training.step_costs.TURNS", 0)
        shown = adapt(tmp_path / "run", test=options["data"], steps=1)
    warning = "warning: 400 of the 400 test documents have a text that is also in training: "
    assert shown.count(warning) == 2  # before the training, and at its end
    page = read_page((tmp_path / "run" / "report.html").read_text("utf-8"))
    text = [part.strip() for part in page.text if part.strip()]
    title, close, verdict, leakage = [part for part in text if not part.startswith("/*")][1:5]
    assert title == "small, adapted" and close.startswith("On texts held out: cosine to the original 0.")
    assert "slots" in verdict and leakage.startswith(warning)
    assert str(source) not in "".join(text[: text.index("Settings")])
    assert warning in (tmp_path / "run" / "README.md").read_text("utf-8")


def test_the_folder_is_whole(finished):
    assert sorted(os.listdir(finished.folder)) == FILES
    assert json.loads((finished.folder / "sentence_bert_config.json").read_text())["max_seq_length"] == READ
    pooling = json.loads((finished.folder / "1_Pooling" / "config.json").read_text())
    assert pooling["pooling_mode_cls_token"]
    assert "linformer adapt small &lt;&amp;&gt;" in (finished.folder / "report.html").read_text()
    assert "SentenceTransformer" in (finished.folder / "README.md").read_text()


@pytest.mark.parametrize("steps", [1, 40])
def test_an_adaptation_that_diverges_leaves_nothing(adapt, tmp_path, steps):
    with pytest.raises(
        InputError, match=rf"^the training diverged at step \d+ of {steps}: .*; lower --learning-rate, no"
    ):
        adapt(tmp_path / "run", steps=steps, learning_rate=1e30)
    assert os.listdir(tmp_path) == []


def test_transformers_opens_it_and_it_is_what_was_scored(finished, source, weather):
    tokenizer, model = AutoTokenizer.from_pretrained(finished.folder), AutoModel.from_pretrained(finished.folder)
    config = model.config
    assert type(model).__name__ == "LinearBertModel" and isinstance(model, BertModel)
    chosen = config.linear_options
    assert (chosen.k, chosen.window, config.pooling, chosen.projection) == (4, 4, "cls", "dynamic")
    assert (chosen.exact_first, chosen.exact_last, chosen.exact_below) == (1, 1, 0)
    assert (config.hidden_dropout_prob, config.max_position_embeddings) == (0.1, READ)
    assert tokenizer.model_max_length == READ
    texts = [text for text, _ in weather(60, seed=8) if len(tokenizer(text).input_ids) <= LONGEST]
    assert len(texts) > 10
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    with torch.no_grad():
        ours = model.eval()(**batch).last_hidden_state[:, 0]
        theirs = BertModel.from_pretrained(source).eval()(**batch).last_hidden_state[:, 0]
    assert F.cosine_similarity(ours, theirs).mean() > 0.9


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("rate", [3e-3, 0.3])
def test_the_verdict_says_where_training_made_it_worse(adapt, tmp_path, rate):
    shown = adapt(tmp_path / "run", learning_rate=rate, steps=8, probe=False)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    is_worse = result["end"]["cosine"] < result["start"]["cosine"]
    assert is_worse == (rate > 0.1)
    said = f"Training did not help: before it, cosine to the original was {result['start']['cosine']:.4f}."
    assert (said in shown) == is_worse


@pytest.mark.usefixtures("measured_once")
def test_texts_are_read_as_the_original_reads_them(adapt, source, tokenizer, tmp_path):
    """With its default prompt, in its case and of its length, unless another is asked for; the result reads them so."""
    path = shutil.copytree(source, tmp_path / "prompted")
    told = {"max_seq_length": 12, "do_lower_case": True}
    (path / "sentence_bert_config.json").write_text(json.dumps(told))
    prompts = json.dumps({"prompts": {"passage": "Sea: "}, "default_prompt_name": "passage"})
    (path / "config_sentence_transformers.json").write_text(prompts)
    for max_length, length in ((None, 8192), (14, 14)):
        output = tmp_path / str(length)
        assert f"the student {length:,}, with" in adapt(output, path=path, max_length=max_length, steps=1)
        assert json.loads((output / "sentence_bert_config.json").read_text()) == {**told, "max_seq_length": length}
        assert (output / "config_sentence_transformers.json").read_text() == prompts
        assert sentence_settings(str(output)).prompt() == "Sea: "
        assert AutoTokenizer.from_pretrained(output)("WET").input_ids == tokenizer("wet").input_ids
    original = load_encoder(str(path))
    texts = Dataset.from_dict({"text": [f"Wet {number}" for number in range(200)]})
    settings = AdaptSettings(data="texts", k=4, window=4, exact_below=0, device="cpu", precision="fp32")
    adaptation = Adaptation(original, texts, texts, settings, TrainingScreen())
    assert adaptation.texts.test.windows[0]["input_ids"][:-1] == tokenizer("sea: wet 0").input_ids[:-1]
    assert adaptation.teacher.before == 1 + len(tokenizer("sea:").input_ids) - 2
    assert adaptation.student.config.linear_options.exact_first == 1


def test_costs_are_of_all_that_the_model_reads_and_of_a_usual_text(finished):
    """Longest first: all that the model reads, and the median of the texts held out."""
    costs = finished.result["costs"]
    assert costs[0]["tokens"] == READ and 4 < costs[1]["tokens"] < READ and len(costs) == 2


def test_costs_that_cannot_be_measured_are_missing(adapt, tmp_path, monkeypatch):
    def too_large(step):
        raise MemoryError

    monkeypatch.setattr("torch_linformer.training.step_costs.build_step", too_large)
    shown = adapt(tmp_path / "run", max_length=8, steps=1)
    (row,) = json.loads((tmp_path / "run" / "adaptation.json").read_text())["costs"]
    assert row["ours"] == row["full_attention"] == "out of memory"
    assert shown.count("failed: out of memory") >= 2
    assert "compared with full attention: not measured (out of memory)." in shown


def test_a_forward_pass_is_measured_beside_full_attention(adapt, tmp_path):
    """Of one length, where a usual text is as long as the longest."""
    shown = adapt(tmp_path / "run", max_length=8, steps=1)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    pairs = [(row["ours"], row["full_attention"]) for row in result["costs"]]
    assert all(cost["tokens_per_second"] > 0 for pair in pairs for cost in pair)
    assert result["window_alone"]["cost"]["tokens_per_second"] > 0
    assert [row["tokens"] for row in result["costs"]] == [8]
    assert "measuring a text of 8 tokens " in shown and "at most 30.0 s (--no-probe leaves it out)" in shown
    assert "A forward pass, compared with full attention: " in shown and "of a forward pass.\n" in shown


@pytest.mark.usefixtures("measured_once")
def test_the_model_is_there_before_anything_is_measured(finished, adapt, tmp_path, monkeypatch):
    """Whatever happens afterwards; and --no-probe measures nothing."""
    killed = shutil.copytree(finished.moments / "40", tmp_path / "run")
    with monkeypatch.context() as patch:
        patch.setattr(Adaptation, "outcome", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            adapt(killed, resume=True)
    model = AutoModel.from_pretrained(killed).state_dict()
    trained = load_file(finished.folder / "model.safetensors")
    assert model.keys() == trained.keys() and all(torch.equal(model[name], trained[name]) for name in model)
    assert not (killed / "adaptation.json").exists()
    shown = adapt(killed, resume=True, probe=False)
    assert "measuring" not in shown and "Its speed was not measured." in shown and "failed" not in shown
    result = json.loads((killed / "adaptation.json").read_text())
    assert result["costs"] == [] and result["end"] == finished.result["end"]


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize("moment", ["4", "20", "trained"])
def test_a_killed_adaptation_ends_as_if_it_had_not_been(finished, adapt, tmp_path, moment):
    output = shutil.copytree(finished.moments / moment, tmp_path / "killed")
    shown = adapt(output, resume=True)
    resumed, whole = (load_file(folder / "model.safetensors") for folder in (output, finished.folder))
    assert resumed.keys() == whole.keys() and all(torch.equal(resumed[name], whole[name]) for name in whole)
    result = json.loads((output / "adaptation.json").read_text())
    assert result["end"] == finished.result["end"] and result["start"] == finished.result["start"]
    assert ("going on from" in shown) == (moment != "4")
    assert sorted(os.listdir(output)) == FILES


@pytest.mark.usefixtures("measured_once")
def test_the_batch_follows_from_the_time_and_stays_when_it_goes_on(adapt, tmp_path):
    shown = adapt(tmp_path / "run", moments=tmp_path / "moments", minutes=0.002, steps=None, batch_size=None)
    said = r"batches of (\d+) texts? and not 16, so that 0\.002 minutes make \d+ steps \(--batch-size\)"
    texts = int(re.search(said, shown)[1])
    assert f"a step of {texts} texts" in shown
    output = shutil.copytree(tmp_path / "moments" / "trained", tmp_path / "killed")
    state = output / checkpoints(output)[-1].name / "trainer_state.json"
    assert json.loads(state.read_text())["train_batch_size"] == texts
    assert "batches of" not in adapt(output, resume=True, minutes=0.002, steps=None, batch_size=None)
    for folder in (tmp_path / "run", output):
        assert json.loads((folder / "adaptation.json").read_text())["settings"]["batch_size"] == texts


@pytest.mark.usefixtures("measured_once")
@pytest.mark.parametrize(
    ("owner", "name", "steps"), [(Teacher, "hidden_states", 0), (Teacher, "hidden_states", 5), (Embeddings, "read", 4)]
)
def test_a_signal_drops_a_step_or_an_evaluation(finished, adapt, tmp_path, monkeypatch, owner, name, steps):
    """Before its next part; it is done again when the adaptation goes on, and nothing else."""
    whole, calls = getattr(owner, name), []

    def then_signal(self, *args):
        outputs = whole(self, *args)
        trainer = getattr(getattr(signal.getsignal(signal.SIGTERM), "__self__", None), "trainer", None)
        if trainer is not None and trainer.state.global_step == steps:
            calls.append(os.kill(os.getpid(), signal.SIGTERM))
        return outputs

    monkeypatch.setattr(owner, name, then_signal)
    with pytest.raises(Interrupted):
        adapt(tmp_path / "run")
    monkeypatch.undo()
    assert len(calls) == 1
    newest = checkpoints(tmp_path / "run")[-1]
    assert newest.name == f"checkpoint-{steps}" and is_whole(newest)
    assert f"going on from {newest}" in adapt(tmp_path / "run", resume=True, probe=False)
    resumed, trained = (load_file(folder / "model.safetensors") for folder in (tmp_path / "run", finished.folder))
    assert all(torch.equal(resumed[name], trained[name]) for name in trained)


@pytest.mark.usefixtures("measured_once")
def test_it_goes_on_only_with_the_texts_that_it_began_with(options, adapt, tmp_path):
    data = shutil.copy(options["data"], tmp_path / "texts.csv")
    adapt(tmp_path / "run", moments=tmp_path / "moments", data=str(data), steps=8)
    os.utime(data, (1, 1))
    output = shutil.copytree(tmp_path / "moments" / "8", tmp_path / "killed")
    assert "going on from" in adapt(output, resume=True, data=str(data), steps=8)
    output = shutil.copytree(tmp_path / "moments" / "8", tmp_path / "changed")
    data.write_text(data.read_text() + "wet mud,rain\n")
    with pytest.raises(InputError, match=rf"^--resume: the documents of {data} are not those that the run in {output}"):
        adapt(output, resume=True, data=str(data), steps=8)


@pytest.mark.usefixtures("measured_once")
def test_a_run_goes_on_compiled(adapt, save_source, tokenizer, tmp_path, graph_counter):
    """Its losses are those without it; texts of all lengths share a graph, of the student and of the teacher each."""
    path = save_source(tmp_path / "small", tokenizer, num_hidden_layers=1)
    same = {"path": path, "steps": 10, "probe": False}
    adapt(tmp_path / "plain", moments=tmp_path / "moments", **same)
    output = shutil.copytree(tmp_path / "moments" / "5", tmp_path / "run")
    shown = adapt(output, resume=True, compile=True, **same)
    assert "--compile: the first batches wait for the compiler" in shown and "going on from" in shown
    # The student trains and is compared, and the teacher has no more graphs than that: a break makes more.
    assert 3 <= graph_counter.frame_count <= 4
    folders = (output, tmp_path / "plain")
    losses = [json.loads((folder / "adaptation.json").read_text())["history"] for folder in folders]
    compiled, plain = ([step["loss"] for step in history if "loss" in step] for history in losses)
    assert compiled == pytest.approx(plain, rel=1e-3) and len(plain) > 3
    weights, expected = (load_file(folder / "model.safetensors") for folder in folders)
    assert list(weights) == list(expected)
    for name, weight in expected.items():
        # AdamW takes whole steps, of 6e-3 for slots, along gradients that are rounding errors too.
        torch.testing.assert_close(weights[name], weight, rtol=1e-2, atol=3e-3)


def test_resume_of_a_finished_adaptation_says_so(finished, adapt):
    before = sorted(path.stat().st_mtime_ns for path in finished.folder.rglob("*"))
    assert "it is finished" in adapt(finished.folder, resume=True)
    assert sorted(path.stat().st_mtime_ns for path in finished.folder.rglob("*")) == before


def test_another_adaptation_is_not_gone_on_with(finished, adapt):
    with pytest.raises(InputError, match=r"holds another run \(--k 4 there, 5 here\)"):
        adapt(finished.folder, resume=True, k=5)


def test_the_window_alone_stands_beside_the_whole(finished):
    """The student without its slots, as anybody can make it from the folder."""
    alone, end = finished.result["window_alone"]["scores"], finished.result["end"]
    page = (finished.folder / "report.html").read_text()
    for text in (finished.shown, page):
        assert "without slots" in text and "slots add" in text and f"{end['cosine'] - alone['cosine']:+.3f} ±" in text
    model = AutoModel.from_pretrained(finished.folder)
    kept = with_options(model, replace(model.config.linear_options, k=0)).state_dict()
    trained = load_file(finished.folder / "model.safetensors")
    new = {name for name in trained if ".linformer." in name}
    assert len(new) == 2 * 4 and kept.keys() == trained.keys() - new
    assert all(torch.equal(kept[name], trained[name]) for name in kept)


@pytest.mark.usefixtures("measured_once")
def test_no_slots_at_all(adapt, tmp_path):
    shown = adapt(tmp_path / "run", k=0, steps=2)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert result["window_alone"] is None and "There are no slots" in shown
    assert not [name for name in load_file(tmp_path / "run" / "model.safetensors") if "linformer" in name]


def test_new_parameters_have_a_learning_rate_of_their_own(source):
    student = linearize(load_encoder(str(source)).model, k=4)
    new, others = split_slot_parameters(student)
    assert len(new) == 2 * 4 and len(new) + len(others) == len(list(student.parameters()))


@pytest.mark.usefixtures("measured_once")
def test_a_head_for_masked_words(adapt, tmp_path, save_source, tokenizer, run_card):
    path = save_source(tmp_path / "small", tokenizer, BertForMaskedLM)
    shown = adapt(tmp_path / "run", path=path, max_length=LONGEST)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert result["task"] == "mlm" and "loss of masked words" in shown
    losses = [entry["loss"] for entry in result["history"] if "loss" in entry]
    assert np.mean(losses[20:]) < 0.8 * np.mean(losses[:20])
    assert all(0 < result[which]["masked_loss"] < 7 for which in ("start", "end", "original"))  # log 290 is 5.7
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "run").eval()
    teacher = BertForMaskedLM.from_pretrained(path).eval()
    batch = tokenizer(["wet mud and the sea", "of warm sand"], padding=True, return_tensors="pt")
    with torch.no_grad():
        given, wanted = (each(**batch).logits[batch["attention_mask"].bool()] for each in (model, teacher))
    assert F.cosine_similarity(given, wanted).mean() > 0.9
    assert "AutoModelForMaskedLM" in (tmp_path / "run" / "README.md").read_text()
    done = run_card(tmp_path / "run")
    assert done.returncode == 0, done.stderr


@pytest.mark.usefixtures("measured_once")
def test_a_classifier_and_the_labels_of_the_texts_held_out(adapt, tmp_path, save_source, tokenizer, write_csv, weather):
    names = {0: "snow", 1: "sun", 2: "rain"}
    fields = {"id2label": names, "label2id": {name: n for n, name in names.items()}, "classifier_dropout": 0.3}
    path = save_source(tmp_path / "small", tokenizer, BertForSequenceClassification, **fields)
    test = write_csv(tmp_path / "test.csv", weather(60, seed=9))
    shown = adapt(tmp_path / "run", path=path, test=test, label_column="label", max_length=LONGEST, width=80)
    assert "-0.0000" not in shown and "…" not in shown  # seven scores, and five columns of them
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    model = AutoModelForSequenceClassification.from_pretrained(tmp_path / "run").eval()
    assert model.config.id2label == names and model.config.classifier_dropout == 0.3
    teacher = BertForSequenceClassification.from_pretrained(path).eval()
    rows = [(tokenizer(text, truncation=True, max_length=LONGEST), label) for text, label in weather(60, seed=9)]
    batch = tokenizer.pad([row for row, _ in rows], return_tensors="pt")
    with torch.no_grad():
        ours, theirs = (each(**batch).logits.argmax(-1).tolist() for each in (model, teacher))
    assert result["end"]["agreement"] == pytest.approx(np.mean(np.equal(ours, theirs)), abs=0.02)
    for which, labels in (("end", ours), ("original", theirs)):
        accuracy = np.mean([names[label] == wanted for label, (_, wanted) in zip(labels, rows, strict=True)])
        assert result[which]["accuracy"] == pytest.approx(accuracy, abs=0.02)
    assert result["end"]["agreement"] > result["start"]["agreement"]


@pytest.mark.usefixtures("measured_once")
def test_a_plain_encoder_and_minutes(source, adapt, tmp_path, monkeypatch):
    monkeypatch.setattr(Adaptation, "_seconds_a_text", lambda adaptation: 100.0)  # on a slow machine
    plain = shutil.copytree(source, tmp_path / "plain")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (plain / name).unlink()
    shutil.rmtree(plain / "1_Pooling")
    shown = adapt(tmp_path / "run", path=plain, steps=None, minutes=0.02, max_length=None)
    result = json.loads((tmp_path / "run" / "adaptation.json").read_text())
    assert 1 < result["seconds"] < 20 and "distilled in" in shown
    assert "--minutes 0.02 is for the distillation; after it come comparing, about " in shown
    assert result["texts"]["test"] == LEAST_TEXTS  # there is time for none, and fewer say nothing
    model = AutoModel.from_pretrained(tmp_path / "run")
    assert (model.config.max_position_embeddings, model.config.pooling) == (8192, "mean")  # by default
    assert not (tmp_path / "run" / "modules.json").exists()
