"""What SECURITY.md says: which files are read how, that none of them runs code, and who is asked for what."""

import ast
import inspect
import json
import pickle
import re
import shutil
from pathlib import Path

import pytest
import torch
from huggingface_hub import HfApi, constants
from transformers import AutoModel, BertModel

from torch_linformer import LinformerConfig, LinformerModel
from torch_linformer.adaptation.pretrained_encoder import load_encoder
from torch_linformer.cli.serve import serve
from torch_linformer.data.reading.sources import ask_hub
from torch_linformer.encoders import linearize
from torch_linformer.errors import InputError
from torch_linformer.opening.folder import checkpoints, read_spent, seal
from torch_linformer.opening.load import load_backbone, load_model
from torch_linformer.training.encoder_baselines import original_of

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "torch_linformer"
RUNS_TRUSTED_CODE = "adaptation/pretrained_encoder.py"  # the one place, behind --trust-remote-code
NEVER = {"eval", "exec", "pickle.load", "pickle.loads", "np.load", "numpy.load", "os.system", "yaml.load"}


def calls(path):
    """Dotted name and keywords of every call in a file, and its line."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func), {word.arg: ast.unparse(word.value) for word in node.keywords}, node.lineno


def faults(path, place):
    for name, keywords, line in calls(path):
        runs_text = name in NEVER or keywords.get("shell", "False") != "False"
        unsafe = name == "torch.load" and keywords.get("weights_only") != "True"
        trust = keywords.get("trust_remote_code")
        of_auto = re.fullmatch(r"Auto\w+\.from_pretrained", name) is not None
        trusting = (of_auto and trust is None) or (trust == "True" and place != RUNS_TRUSTED_CODE)
        if runs_text or unsafe or trusting:
            yield f"{place}:{line} {name}"


def test_no_file_of_a_user_is_run():
    """No evaluation of text, no pickle but by torch with weights only, no Auto class that may ask for trust."""
    assert [fault for path in PACKAGE.rglob("*.py") for fault in faults(path, str(path.relative_to(PACKAGE)))] == []


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("AutoModel.from_pretrained(path)", True),
        ("AutoModel.from_pretrained(path, trust_remote_code=trusted)", False),
        ("auto.from_pretrained(path, trust_remote_code=True)", True),
        ("torch.load(path)", True),
        ("torch.load(path, weights_only=True)", False),
        ("pickle.loads(text)", True),
        ("subprocess.run(command, shell=True)", True),
    ],
)
def test_what_the_rule_finds(tmp_path, line, fault):
    (tmp_path / "some.py").write_text(line)
    assert bool(list(faults(tmp_path / "some.py", "some.py"))) == fault


class Runs:
    """What touches a file as soon as it is unpickled without care."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


@pytest.fixture
def small_bert(save_source, word_tokenizer, tmp_path):
    tokenizer = word_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "rain"], pad_token="[PAD]", unk_token="[UNK]")
    return save_source(tmp_path / "bert", tokenizer)


def put_pickle(folder, run):
    """Replace the weights of a model folder by a pickle that runs code."""
    (folder / "model.safetensors").unlink()
    torch.save({"x": Runs(run)}, folder / "pytorch_model.bin", pickle_module=pickle)
    return folder


REFUSED = r"refused, because it holds .*, and loading that would run code from that file; save model\.state_dict"


@pytest.mark.parametrize("opened_by", [load_backbone, load_encoder])
def test_weights_that_would_run_code(small_bert, tmp_path, opened_by):
    put_pickle(small_bert, tmp_path / "was-run")
    with pytest.raises(ValueError, match=REFUSED):
        opened_by(str(small_bert))
    assert not (tmp_path / "was-run").exists()


def test_weights_of_our_own_kind_that_would_run_code(tmp_path):
    sizes = {"vocab_size": 33, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    LinformerModel(LinformerConfig(**sizes, k=5, max_position_embeddings=11)).save_pretrained(tmp_path / "model")
    put_pickle(tmp_path / "model", tmp_path / "was-run")
    with pytest.raises(InputError, match=REFUSED):
        load_model(str(tmp_path / "model"))
    assert not (tmp_path / "was-run").exists()


def test_a_pickle_is_not_harmless(tmp_path):
    """That the tests above would see it run."""
    torch.save({"x": Runs(tmp_path / "was-run")}, tmp_path / "model.pt", pickle_module=pickle)
    torch.load(tmp_path / "model.pt", weights_only=False)
    assert (tmp_path / "was-run").exists()


def test_a_checkpoint_that_would_run_code(classifier_run, train_quickly, tmp_path):
    steps = sorted(int(moment.name) for moment in classifier_run.moments.iterdir() if moment.name.isdecimal())
    run = shutil.copytree(classifier_run.moments / str(steps[2]), tmp_path / "run")
    for checkpoint in checkpoints(run):
        spent = read_spent(checkpoint)
        torch.save({"x": Runs(tmp_path / "was-run")}, checkpoint / "optimizer.pt", pickle_module=pickle)
        seal(checkpoint, spent)
    assert checkpoints(run)
    with pytest.raises(Exception, match="Weights only load failed"):
        train_quickly(run, resume=True, probe=True, command="")
    assert not (tmp_path / "was-run").exists()


def test_an_original_with_code_of_its_own_is_not_asked_for(small_bert, tmp_path, monkeypatch):
    """`linformer train --task embed --from` compares with what a model was adapted from."""
    adapted = tmp_path / "adapted"
    adapted.mkdir()
    (adapted / "adaptation.json").write_text(json.dumps({"source": str(small_bert)}))
    assert original_of(str(adapted)) == str(small_bert)
    config = json.loads((small_bert / "config.json").read_text())
    config |= {"model_type": "own-bert", "auto_map": {"AutoConfig": "modeling.Own", "AutoModel": "modeling.Own"}}
    (small_bert / "config.json").write_text(json.dumps(config))
    (small_bert / "modeling.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'was-run')!r}).touch()\n")
    monkeypatch.setattr("builtins.input", lambda question: pytest.fail(f"asked: {question}"))
    assert original_of(str(adapted)) == str(adapted)
    with pytest.raises(InputError, match="needs code from its folder"):
        load_encoder(str(small_bert))
    assert not (tmp_path / "was-run").exists()


def test_offline_the_hub_is_not_asked(monkeypatch):
    monkeypatch.setattr(HfApi, "repo_info", lambda *arguments, **options: pytest.fail("asked"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    ask_hub("model", "some/name")


def test_saved_models_are_safetensors(classifier_run):
    kinds = {path.suffix for path in classifier_run.folder.iterdir() if path.is_file()}
    assert ".safetensors" in kinds and not kinds & {".bin", ".pt", ".pth", ".pkl", ".pickle"}


def test_the_server_listens_to_this_machine_only():
    assert inspect.signature(serve).parameters["host"].default == "127.0.0.1"


def test_tests_that_the_page_names_are_there():
    page = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", page)
    assert named
    for file, name in named:
        assert f"def {name or 'test_'}" in (ROOT / file).read_text(encoding="utf-8"), f"{file}::{name}"


def test_bert_folder_opens_otherwise(small_bert):
    """That what is refused above is refused for its pickle."""
    assert isinstance(AutoModel.from_pretrained(small_bert), BertModel)
    assert isinstance(load_backbone(str(small_bert)), BertModel)
    assert isinstance(load_encoder(str(small_bert)).model, BertModel)


def test_a_linear_folder_that_would_run_code(small_bert, tmp_path):
    """Neither by its weights nor by the class that its configuration names."""
    linearize(BertModel.from_pretrained(small_bert), k=4).save_pretrained(tmp_path / "linear")
    assert load_model(str(tmp_path / "linear")).config.longest_input == 16
    config = json.loads((tmp_path / "linear" / "config.json").read_text())
    shutil.copytree(tmp_path / "linear", tmp_path / "pickled")
    put_pickle(tmp_path / "pickled", tmp_path / "was-run")
    with pytest.raises(InputError, match=REFUSED):
        load_model(str(tmp_path / "pickled"))
    (tmp_path / "modeling.py").write_text(f"import pathlib\npathlib.Path({str(tmp_path / 'was-run')!r}).touch()\n")
    for name in ("modeling.Own", "pathlib.Path", "transformers.models.bert.modeling_bert.logger", 5):
        (tmp_path / "linear" / "config.json").write_text(json.dumps({**config, "encoder_class": name}))
        with pytest.raises(InputError, match=r"encoder_class .* is no model of transformers"):
            load_model(str(tmp_path / "linear"))
    assert not (tmp_path / "was-run").exists()
