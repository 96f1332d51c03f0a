"""Trainings that begin with an encoder of transformers, made linear there and then, or with a linear folder."""

import json
import random
import re
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from torch_linformer.data.reading.streamed import Document
from torch_linformer.data.tokenizer import build_tokenizer
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError
from torch_linformer.inference.document_model import DocumentEmbedder, TaskPredictor
from torch_linformer.inference.evaluate import evaluate
from torch_linformer.inference.predictor import Predictor
from torch_linformer.models import LinformerConfig
from torch_linformer.models.configuration import with_ordinary_attention
from torch_linformer.models.encoder_backbone import EncoderBackbone
from torch_linformer.opening.load import load_model, load_tokenizer
from torch_linformer.opening.summary import attention_of, summary_rows
from torch_linformer.training import task_trainers
from torch_linformer.training.step_costs import ModelStep, build_step
from torch_linformer.training.train_settings import OF_WORDS

LENGTH = 24  # tokens that the encoders read
SAME = {"device": "cpu", "precision": "fp32"}
WORDS = {"sun": ["warm", "sand", "sea"], "rain": ["wet", "grey", "mud"]}
TAGS = {"PER": ["Ann", "Bo", "Cy"], "LOC": ["Rome", "Oslo", "Lima"]}
KIND_OF_TASK = {
    "classify": "Bert",
    "multilabel": "ModernBert",
    "regress": "DistilBert",
    "token-classify": "Roberta",
    "qa": "Bert",
    "embed": "DistilBert",
    "mlm": "ModernBert",
}


def row_of(task, draw):
    """A row that holds what a task is to learn, in plain words."""
    label = draw.choice(sorted(WORDS))
    text = " ".join(draw.choices([*WORDS[label], "the", "of"], k=draw.randint(4, 18)))
    match task:
        case "classify" | "embed":
            return {"text": text, "label": label}
        case "mlm":
            return {"text": text}
        case "multilabel":
            return {"text": text, "labels": [label] if draw.random() < 0.8 else sorted(WORDS)}
        case "regress":
            return {"text": text, "label": 10.0 * sum(word in WORDS["sun"] for word in text.split())}
        case "token-classify":
            kinds = [draw.choice([*TAGS, "O"]) for _ in range(draw.randint(2, 6))]
            words = [draw.choice(TAGS.get(kind, ["met", "in"])) for kind in kinds]
            return {"tokens": words, "tags": [kind if kind == "O" else f"B-{kind}" for kind in kinds]}
    place = draw.choice(TAGS["LOC"])
    text = f"{draw.choice(TAGS['PER'])} met {'the ' * draw.randint(0, 3)}mayor in {place} ."
    return {"context": text, "question": "where ?", "answers": {"text": [place], "answer_start": [text.index(place)]}}


@pytest.fixture(scope="module")
def data_of(tmp_path_factory):
    """A function: the file of a task's rows, the same at every call."""
    folder = tmp_path_factory.mktemp("rows")

    def write(task, number=60):
        path = folder / f"{task}.jsonl"
        draw = random.Random(0)
        path.write_text("".join(json.dumps(row_of(task, draw)) + "\n" for _ in range(number)))
        return str(path)

    return write


@pytest.fixture(scope="module")
def tokenizer():
    texts = [" ".join([*words, "the of in met mayor where ? ."]) for words in (*WORDS.values(), *TAGS.values())]
    return build_tokenizer("bpe:290", texts, max_length=LENGTH)


@pytest.fixture(scope="module")
def source_of(tmp_path_factory, tokenizer):
    """A function: the folder of an encoder of a kind, with a head of transformers, its tokenizer beside it."""

    def save(kind="Bert", head="ForMaskedLM", linear=False, **fields):
        torch.manual_seed(0)
        pad, sizes = tokenizer.pad_token_id, {"vocab_size": len(tokenizer), "initializer_range": 0.1}
        sizes["pad_token_id"] = pad
        positions = LENGTH + (pad + 1 if kind == "Roberta" else 0)
        if kind == "DistilBert":
            sizes |= {"dim": 24, "n_layers": 2, "n_heads": 3, "hidden_dim": 32}
        else:
            sizes |= {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3, "intermediate_size": 32}
        if kind == "ModernBert":
            names = ("bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id")
            sizes |= {"local_attention": 6, "global_attn_every_n_layers": 2, **dict.fromkeys(names, pad)}
        config = getattr(transformers, f"{kind}Config")(**sizes, max_position_embeddings=positions, **fields)
        model = getattr(transformers, f"{kind}{head}")(config)
        if linear:
            model = linearize(model, k=5, window=6, exact_below=7)
        folder = tmp_path_factory.mktemp("source") / kind
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return str(folder)

    return save


@pytest.fixture(scope="module")
def run_from(train_quickly, data_of):
    """A function: what the screen shows of a short training without speed figures."""

    def run(output, source, task="classify", **options):
        none = {"tokenizer": "bpe:8192", "k": None, "model": None, "max_length": None, "test": "0.3"}
        usual = {**none, "task": task, "data": data_of(task), "from_model": source, "max_steps": 2, "baseline": False}
        usual["freeze"] = False if task in OF_WORDS else None
        usual |= {"freeze": False} if task == "embed" else {}
        return train_quickly(output, **{**usual, **options})

    return run


def metrics_of(folder):
    return json.loads((folder / "metrics.json").read_text())


def test_an_embedder_is_read_as_it_is_used(source_of, run_from, tmp_path):
    source = Path(source_of("Bert"))
    (source / "modules.json").write_text("[]")
    (source / "sentence_bert_config.json").write_text('{"max_seq_length": 9}')
    shown = run_from(tmp_path / "run", str(source), "token-classify", max_length=40)
    assert "made linear here, begins as a reader of windows of 9 tokens, which its folder says it is used with" in shown
    backbone = load_model(str(tmp_path / "run")).base_model
    assert (backbone.positions.usual, backbone.config.exact_first) == (9, 1)
    assert backbone.config.window == 9


# Every task


@pytest.mark.parametrize("linear", [False, True], ids=["made linear", "linear before"])
@pytest.mark.parametrize("task", KIND_OF_TASK)
def test_a_task_is_learned_saved_and_scored_again(source_of, run_from, data_of, quick, tmp_path, task, linear):
    source, output = source_of(KIND_OF_TASK[task], linear=linear), tmp_path / "run"
    test = data_of(task)
    shown = run_from(output, source, task, test=test)
    in_windows = task in OF_WORDS and not linear
    assert ("made linear here, not distilled: linformer adapt first keeps more of it" in shown) is not (
        linear or in_windows
    )
    model, before = load_model(str(output)), metrics_of(output)
    if task in ("embed", "mlm"):
        assert type(model).__name__ == f"Linear{KIND_OF_TASK[task]}{'Model' if task == 'embed' else 'ForMaskedLM'}"
        options = model.config.linear_options
    else:
        assert isinstance(model.base_model, EncoderBackbone)
        assert model.config.read_window == (LENGTH if in_windows else None)
        options = None if in_windows else model.config.backbone_config.linear_options
    if options is not None:
        assert (options.k, options.window, options.max_length) == ((5, 6, LENGTH) if linear else (6, 128, LENGTH))
        assert options.exact_below == (7 if linear else 2 * 6 + 128 + 640)
    learned, scores = evaluate(str(output), test, batch_size=7, seed=quick["seed"], **SAME)
    for name in learned.headline:
        assert scores[name] == pytest.approx(before[name], rel=1e-4)
    page = (output / "report.html").read_text(encoding="utf-8")
    assert "--from" in page and (output / "README.md").is_file()


def test_an_encoder_learns(source_of, run_from, data_of, tmp_path):
    run_from(tmp_path / "run", source_of("Roberta"), test=data_of("classify"), max_steps=30)
    assert metrics_of(tmp_path / "run")["accuracy"] > 0.9


def test_predictions_are_those_of_each_document_alone(source_of, run_from, tmp_path):
    run_from(tmp_path / "run", source_of("ModernBert", linear=True), lexical="auto")
    assert load_model(str(tmp_path / "run")).lexical is not None
    texts = ["warm sand", "wet mud the of grey " * 9, "sea", "grey the of mud wet warm " * 3]
    predictor = Predictor(str(tmp_path / "run"), precision="fp32", device="cpu")
    together = predictor({"text": texts})
    assert [predictor({"text": [text]})["label"][0] for text in texts] == list(together["label"])


def test_answers_and_tags_are_written(source_of, run_from, tmp_path):
    for task, kind, question in (("qa", "Bert", "where ?"), ("token-classify", "DistilBert", None)):
        folder = tmp_path / task
        run_from(folder, source_of(kind), task)
        predictor = TaskPredictor(load_model(str(folder)), load_tokenizer(str(folder)), batch_size=5, **SAME)
        (answer,) = predictor.answers([Document("Ann met the mayor in Rome .", "here", question)])
        assert answer["tokens"] > 3 and ("answer" in answer) == (task == "qa")


@pytest.mark.parametrize(
    ("kind", "types", "typed"), [("Bert", 2, True), ("Bert", 1, False), ("DistilBert", None, False)]
)
def test_questions_have_types_where_the_encoder_has_them(source_of, run_from, tmp_path, kind, types, typed):
    run_from(tmp_path / "run", source_of(kind, **({} if types is None else {"type_vocab_size": types})), "qa")
    predictor = TaskPredictor(
        load_model(str(tmp_path / "run")), load_tokenizer(str(tmp_path / "run")), batch_size=5, **SAME
    )
    assert predictor.task.typed is typed


# What becomes of the encoder


@pytest.mark.parametrize("kind", ["Bert", "ModernBert"])
@pytest.mark.parametrize("task", ["classify", "embed"])
def test_the_lowest_layers_stay(source_of, run_from, tmp_path, kind, task):
    source = source_of(kind, linear=True)
    if task == "classify":  # with a head that is trained, so that what was trained is kept in any case
        run_from(tmp_path / "first", source, max_steps=1)
        source = str(tmp_path / "first")
    shown = run_from(tmp_path / "run", source, task, freeze_layers=1)
    assert "the word embeddings stay, and of its layers the lowest 1" in shown
    body = load_model(str(tmp_path / "run"))
    first = AutoModel.from_pretrained(source) if task == "embed" else load_model(source)
    if task == "classify":
        body, first = body.base_model.body, first.base_model.body
    weights = dict(body.named_parameters())
    stay = {name for name, x in first.named_parameters() if name in weights and torch.equal(x, weights[name])}
    below = {name for name in weights if name.startswith(("embeddings.", "encoder.layer.0.", "layers.0."))}
    assert below and below <= stay
    changed = {name for name in weights if name.startswith(("encoder.layer.1.", "layers.1."))} - stay
    assert len(changed) > 5


def test_shared_layers_cannot_stay(source_of, run_from, tmp_path, tokenizer):
    source = source_of("Albert", head="Model", embedding_size=8)
    with pytest.raises(InputError, match="--freeze-layers 1: the layers of this encoder share their weights"):
        run_from(tmp_path / "run", source, freeze_layers=1)


def test_a_trained_classifier_goes_on(source_of, run_from, data_of, tmp_path):
    """With its head where the labels are the same, with a new one elsewhere, and its encoder as an embedder."""
    run_from(tmp_path / "first", source_of("Roberta"), k="4", window=2, max_steps=20)
    source = str(tmp_path / "first")
    shown = run_from(tmp_path / "same", source, max_length=30)
    assert "made linear here" not in shown and "head fitted" not in shown
    config = load_model(str(tmp_path / "same")).config
    assert (config.k, config.window, config.max_position_embeddings) == (4, 2, 30)
    assert "head fitted to" not in run_from(tmp_path / "tags", source, "token-classify")
    run_from(tmp_path / "vectors", source, "embed")
    assert type(load_model(str(tmp_path / "vectors"))).__name__ == "LinearRobertaModel"
    with pytest.raises(InputError, match="has no head for masked words any more; --task mlm begins with the encoder"):
        run_from(tmp_path / "words", source, "mlm")


def test_the_length_is_the_encoder_s_or_the_one_asked_for(source_of, run_from, tmp_path):
    run_from(tmp_path / "a", source_of("Roberta"), max_length=50, k="7", window=0)
    config = load_model(str(tmp_path / "a")).config
    assert (config.max_position_embeddings, config.k, config.window) == (50, 7, None)
    run_from(tmp_path / "b", source_of("Roberta", linear=True), max_length=50)
    config = load_model(str(tmp_path / "b")).config
    assert (config.max_position_embeddings, config.k, config.window) == (50, 5, 6)
    assert load_tokenizer(str(tmp_path / "b")).model_max_length == 50


def test_only_masked_positions_are_predicted_in_a_training(source_of, run_from, tmp_path, monkeypatch):
    asked, predicts_at = [], task_trainers.predicts_at

    def count(model, chosen):
        asked.append(chosen.float().mean().item())
        return predicts_at(model, chosen)

    monkeypatch.setattr(task_trainers, "predicts_at", count)
    source = source_of("Bert")
    run_from(tmp_path / "run", source, "mlm", max_steps=4)
    assert len(asked) == 6 and max(asked) < 0.4  # of a step that is measured, too, twice
    opened = AutoModelForMaskedLM.from_pretrained(tmp_path / "run")
    first = load_file(f"{source}/model.safetensors")["cls.predictions.transform.dense.weight"]
    learned = opened.cls.predictions.transform.dense.weight
    assert 0 < (learned - first).abs().max() < 0.1  # the head that it had, trained on


def test_an_encoder_without_a_head_for_masked_words_gets_a_new_one(source_of, run_from, tmp_path):
    shown = run_from(tmp_path / "run", source_of("Bert", head="Model"), "mlm")
    assert re.search(r"has no weights for cls\.\S+: the head for masked words is new", shown)


# Runs that end early


def test_a_run_goes_on_after_it_was_killed(source_of, run_from, tmp_path):
    source, moments = source_of("DistilBert"), tmp_path / "moments"
    run_from(tmp_path / "whole", source, moments=moments, max_steps=10)
    half = sorted((path for path in moments.iterdir() if path.name.isdigit()), key=lambda path: int(path.name))[5]
    half.rename(tmp_path / "half")
    shown = run_from(tmp_path / "half", source, resume=True, max_steps=10)
    assert "going on from" in shown and "head fitted" not in shown
    whole, resumed = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "half"))
    for name, weight in whole.items():
        torch.testing.assert_close(resumed[name], weight)


# What is not possible


@pytest.mark.parametrize(
    ("config", "options", "problem"),
    [
        ("GPT2Config", {}, r"--from \S+ \(gpt2\) is a decoder"),
        ("DebertaV2Config", {}, r"--from \S+ \(deberta-v2\): scores depend on the distance"),
        ("T5Config", {}, r"--from \S+ \(t5\): scores depend on the distance"),
        ("BartConfig", {}, r"--from \S+ \(bart\) is an encoder-decoder"),
        ("ViTConfig", {}, r"--from \S+ \(vit\): reads no texts; begin with an encoder that does"),
        ("NomicBertConfig", {"task": "clm"}, "its tokens see those after them; --task clm begins with"),
        ("BertConfig", {"task": "seq2seq"}, "is no encoder-decoder; --task seq2seq begins with"),
        ("BertConfig", {"freeze_layers": 99}, "--freeze-layers 99 is more than its 12 layers"),
    ],
)
def test_models_that_cannot_be_begun_with_are_refused_before_their_weights_are_read(
    run_from, tmp_path, config, options, problem
):
    getattr(transformers, config)().save_pretrained(tmp_path / "source")  # there are no weights
    with pytest.raises(InputError, match=problem) as raised:
        run_from(tmp_path / "run", str(tmp_path / "source"), **{"data": "nowhere", **options})
    assert "\n" not in str(raised.value) and not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"k": "25"}, "--from .*: k must be at most the 24 tokens read at once, got 25"),
        ({"k": "3,4"}, "--k must be one number for an encoder of --from, got '3,4'"),
        ({"k": "@spectrum.json"}, "--k must be one number for an encoder of --from"),
        ({"k": "0", "window": 0}, "k=0 leaves only the window"),
        ({"model": {"exact_first": 2}}, "--model is for a new model"),
    ],
)
def test_numbers_out_of_range_are_one_line(source_of, run_from, tmp_path, options, problem):
    with pytest.raises(InputError, match=problem) as raised:
        run_from(tmp_path / "run", source_of("Bert"), **options)
    assert "\n" not in str(raised.value)


def test_a_linear_folder_has_its_slots_and_window(source_of, run_from, tmp_path):
    source = source_of("Bert", linear=True)
    for options in ({"k": "4"}, {"window": 4}):
        with pytest.raises(InputError, match=r"is for a new model; --from \S+ has its own"):
            run_from(tmp_path / "run", source, **options)
    with pytest.raises(InputError, match="k must be at most the 4 tokens read at once, got 5"):
        run_from(tmp_path / "run", source, max_length=4)


def test_weights_that_are_missing_are_told(source_of, run_from, tmp_path):
    file = Path(source_of("Bert")) / "model.safetensors"
    weights = load_file(file)
    del weights["bert.encoder.layer.1.output.dense.weight"]
    save_file(weights, file, metadata={"format": "pt"})
    with pytest.raises(InputError, match=r"the weights lack encoder\.layer\.1\.output\.dense\.weight"):
        run_from(tmp_path / "run", str(file.parent))


def test_a_tokenizer_of_another_model_is_told(source_of, run_from, tmp_path):
    source = source_of("Bert")
    other = transformers.AutoTokenizer.from_pretrained(source)
    other.add_tokens(["<one>", "<two>"])
    other.save_pretrained(source)
    with pytest.raises(InputError, match=r"the tokenizer has .* tokens and the model .*: they do not belong together"):
        run_from(tmp_path / "run", source)


# What reads the result


def test_vectors_are_those_of_the_encoder(source_of, run_from, tmp_path):
    run_from(tmp_path / "run", source_of("DistilBert", linear=True))
    model, tokenizer = load_model(str(tmp_path / "run")), load_tokenizer(str(tmp_path / "run"))
    embedder = DocumentEmbedder(str(tmp_path / "run"), model, tokenizer, batch_size=2, **SAME)
    texts = ["warm sand", "wet mud the of grey " * 9]
    vectors = [answer["embedding"] for answer in embedder.answers([Document(text, text) for text in texts])]
    for text, vector in zip(texts, vectors, strict=True):
        hidden = model.linformer.body(**tokenizer(text, truncation=True, return_tensors="pt")).last_hidden_state
        mean = torch.nn.functional.normalize(hidden.mean(dim=1), dim=-1)
        torch.testing.assert_close(torch.tensor(vector), mean[0], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("task", ["classify", "mlm"])
def test_a_compiled_training_is_the_other(source_of, run_from, tmp_path, graph_counter, measured_once, task):
    source = source_of("Bert", linear=True)
    options = {"packing": False} if task == "mlm" else {}
    for name, compiled in (("plain", False), ("compiled", True)):
        run_from(tmp_path / name, source, task, compile=compiled, **options)
    assert graph_counter.frame_count >= 2  # training and inference
    plain, compiled = (load_file(tmp_path / name / "model.safetensors") for name in ("plain", "compiled"))
    assert list(compiled) == list(plain)
    for name, weight in plain.items():
        torch.testing.assert_close(compiled[name], weight, rtol=1e-3, atol=1e-3)  # a third of a step


# What is told of the result


def test_info_of_a_head_on_an_encoder(source_of, run_from, tmp_path):
    run_from(tmp_path / "run", source_of("Bert", linear=True))
    rows = dict(summary_rows(str(tmp_path / "run")))
    assert rows["class"] == "LinformerForSequenceClassification"
    assert rows["encoder"] == "BertModel" and rows["longest input"] == "24 tokens" and rows["labels"] == "rain, sun"
    assert rows["attention"].endswith("window 6, texts of at most 7 tokens exact")
    assert rows["attention"] == attention_of(load_model(str(tmp_path / "run")).config)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "DistilBert", "ModernBert"])
def test_a_training_step_is_measured_beside_the_encoder_as_it_was(source_of, run_from, tmp_path, kind):
    run_from(tmp_path / "run", source_of(kind, linear=True))
    model = load_model(str(tmp_path / "run"))
    for config in (model.config.to_diff_dict(), with_ordinary_attention(model.config.to_diff_dict())):
        build_step(ModelStep(type(model).__name__, config, batch_size=2, length=20, **SAME))()
    twin = LinformerConfig(**with_ordinary_attention(model.config.to_diff_dict()))
    body = AutoModelForSequenceClassification.from_config(twin).linformer.body
    assert type(body).__name__ == f"{kind}Model" and twin.attention == "full"


def test_the_code_of_the_cards_runs(source_of, run_from, run_card, tmp_path):
    run_from(tmp_path / "run", source_of("Roberta"), "embed")
    done = run_card(tmp_path / "run")
    assert done.returncode == 0, done.stderr
