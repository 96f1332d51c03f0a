"""Encoders with code in their folder: run where that is allowed, and adapted where they compute what they extend."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    BertConfig,
    BertForMultipleChoice,
    BertForSequenceClassification,
    BertModel,
    BertPreTrainedModel,
    RobertaConfig,
    RobertaModel,
)

from torch_linformer.adaptation.adapt_settings import AdaptSettings
from torch_linformer.adaptation.adaptation import run_adaptation
from torch_linformer.adaptation.pretrained_encoder import load_encoder, without_own_code
from torch_linformer.errors import InputError
from torch_linformer.models import LinformerConfig, LinformerModel

IMPORTS = """
import pathlib
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertPreTrainedModel, GenerationMixin

pathlib.Path("was-run").touch()

class OwnConfig(BertConfig):
    model_type = "own-bert"

"""


def code(base="BertModel", built="", forward="", config="OwnConfig"):
    """A class that extends ``base``, with more in its ``__init__`` and, perhaps, another ``forward``."""
    lines = [f"class Own({base}):", f"    config_class = {config}"]
    if built:
        lines += ["    def __init__(self, config):", "        super().__init__(config)"]
        lines += [f"        {line}" for line in (*built.split("; "), "self.post_init()")]
    if forward:
        lines += ["    def forward(self, input_ids, attention_mask):", f"        {forward}"]
    return "\n".join([*lines, ""])


SAME = code()
HEAD = code(
    "BertPreTrainedModel",
    "self.bert, self.classifier = BertModel(config, add_pooling_layer=False), nn.Linear(24, 2)",
    "return (self.classifier(self.bert(input_ids, attention_mask)[0][:, 0]),)",
)
OTHER = code(forward="return super().forward(input_ids.flip(1), attention_mask)")
LOCAL = code(
    forward="blocks = zip(input_ids.split(12, dim=1), attention_mask.split(12, dim=1)); "
    "return (torch.cat([super(Own, self).forward(*block)[0] for block in blocks], dim=1),)"
)
UNPADDED = code(
    "GenerationMixin, BertModel",
    forward='return {"states": super().forward(input_ids, attention_mask)[0] * attention_mask[..., None]}',
)
NUMBERED = 'self.{}register_buffer("position_ids", torch.arange(16)[None], persistent=True)'


@pytest.fixture
def own(save_source, tokenizer, tmp_path, monkeypatch):
    """A function: the folder of a model whose code lies in it, with more weights; the current folder is a new one."""
    monkeypatch.chdir(tmp_path)
    number = iter(range(9))

    def make(code, auto="AutoModel", model_class=BertModel, pooling=None, weights=None, **changed):
        folder = save_source(tmp_path / f"own{next(number)}", tokenizer, model_class, pooling)
        config = json.loads((folder / "config.json").read_text())
        auto_map = {"AutoConfig": "modeling.OwnConfig", auto: "modeling.Own"}
        config.update({"model_type": "own-bert", "architectures": ["Own"], "auto_map": auto_map, **changed})
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "modeling.py").write_text(IMPORTS + code)
        if weights:
            file = folder / "model.safetensors"
            save_file({**load_file(file), **weights}, file, {"format": "pt"})
        return str(folder)

    return make


def weights_of(folder):
    return load_file(f"{folder}/model.safetensors")


def test_code_that_is_not_trusted_is_not_run(own, tmp_path):
    with pytest.raises(InputError, match=r"needs code from its folder \(auto_map in config.json\), .* --trust-remote-"):
        load_encoder(own(SAME))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.usefixtures("measured_once")
def test_an_adapted_model_needs_no_code(own, tmp_path, write_csv, weather, watching_screen):
    folder, data = own(SAME), write_csv(tmp_path / "texts.csv", weather(400, seed=5))
    slots = {"k": 4, "window": 4, "exact_below": 0, "steps": 2, "device": "cpu"}
    settings = AdaptSettings(data=data, output=str(tmp_path / "run"), trust_remote_code=True, **slots)
    run_adaptation(folder, settings, screen=watching_screen(None, None))
    assert (tmp_path / "was-run").exists() and "modeling.py" not in os.listdir(tmp_path / "run")
    model = AutoModel.from_pretrained(tmp_path / "run", trust_remote_code=False)
    assert type(model).__name__ == "LinearBertModel" and isinstance(model, BertModel)
    words = weights_of(folder)["embeddings.word_embeddings.weight"]
    assert torch.allclose(model.embeddings.word_embeddings.weight, words, atol=0.01)


def test_its_head_is_kept(own):
    head = ("AutoModelForSequenceClassification", BertForSequenceClassification)
    folder = own(code("BertForSequenceClassification"), *head)
    source = load_encoder(folder, trust_remote_code=True)
    assert source.objective.name == "classify"
    assert torch.equal(source.model.classifier.weight, weights_of(folder)["classifier.weight"])


@pytest.mark.parametrize("pooling", [None, "mean_tokens"])
def test_below_a_head_of_its_own_the_encoder_is_adapted(own, pooling):
    folder = own(HEAD, pooling=pooling)
    weights = {f"bert.{name}": x for name, x in weights_of(folder).items() if not name.startswith("pooler")}
    weights |= {"classifier.weight": torch.ones(2, 24), "classifier.bias": torch.ones(2)}
    save_file(weights, f"{folder}/model.safetensors", {"format": "pt"})
    wrong = "Own extends no model of transformers, only BertPreTrainedModel; --task embed adapts the encoder below"
    with pytest.raises(InputError, match=wrong):
        load_encoder(folder, "classify", trust_remote_code=True)
    source = load_encoder(folder, trust_remote_code=True)
    assert source.objective.name == "embed" and source.sentences == (pooling is not None)
    words = source.model.embeddings.word_embeddings.weight
    assert torch.equal(words, weights["bert.embeddings.word_embeddings.weight"])


def test_code_for_the_model_alone(own):
    """A configuration of transformers, as most of the hub's have."""
    known = {"auto_map": {"AutoModel": "modeling.Own"}, "model_type": "bert"}
    other = code(forward="return super().forward(input_ids.flip(1), attention_mask)", config="BertConfig")
    same = own(code(config="BertConfig"), **known)
    with pytest.raises(InputError, match="needs code from its folder"):
        load_encoder(same)
    assert load_encoder(same, trust_remote_code=True).objective.name == "embed"
    with pytest.raises(InputError, match="Own computes something else"):
        load_encoder(own(other, **known), trust_remote_code=True)
    # What is of a class of transformers is read without its code, as transformers does.
    assert load_encoder(own(other, **known, architectures=["BertModel"])).objective.name == "embed"


@pytest.mark.parametrize(
    ("made_of", "weights"),
    [
        (UNPADDED, {}),  # what stands at padding is nobody's
        # Positions that older versions saved are no weights.
        (code(built=NUMBERED.format("embeddings.")), {"embeddings.position_ids": torch.arange(16)[None]}),
    ],
)
def test_code_that_makes_the_same_model(own, made_of, weights):
    assert load_encoder(own(made_of, weights=weights), trust_remote_code=True).objective.name == "embed"


TYPES = "embeddings.token_type_embeddings"
MORE_TYPES = f"self.{TYPES} = nn.Embedding(4, config.hidden_size)"


@pytest.mark.parametrize(
    ("made_of", "weights", "message"),
    [
        (OTHER, {}, "Own computes something else than BertModel, and cannot be adapted"),
        (LOCAL, {}, "Own computes something else than BertModel, and cannot be adapted"),
        (
            code(built="self.scale = nn.Parameter(config.hidden_size * nn.Linear(1, 1).weight)"),
            {},
            "the weights lack scale, which its own code wants; copy the folder again",
        ),
        (
            code(built=MORE_TYPES),
            {f"{TYPES}.weight": torch.ones(4, 24)},
            f"BertModel has no counterpart of its {TYPES}.weight",
        ),
        (
            code(built=NUMBERED.format("")),  # of another place than those that older versions saved
            {"position_ids": torch.arange(16)[None]},
            "BertModel has no counterpart of its position_ids",
        ),
        (code(forward='raise ValueError("no such thing")'), {}, "Own cannot read a text: no such thing"),
        (code(built='raise KeyError("no such thing")'), {}, "its own code cannot open it: 'no such thing'"),
        ("", {}, "its own code cannot open it: "),
    ],
)
def test_code_that_makes_another_model(own, made_of, weights, message):
    with pytest.raises(InputError, match=message) as raised:
        load_encoder(own(made_of, weights=weights), trust_remote_code=True)
    assert "\n" not in str(raised.value)


def test_modules_of_another_package_are_code_too(own, tmp_path):
    modules = tmp_path / own(SAME, pooling="mean_tokens") / "modules.json"
    modules.write_text(modules.read_text().replace("sentence_transformers.models.Pooling", "custom_st.Pooling"))
    with pytest.raises(InputError, match=r"its modules are Transformer, custom_st\.Pooling, Normalize; understood are"):
        load_encoder(str(modules.parent), trust_remote_code=True)


@pytest.mark.parametrize("kind", ["bert", "own-bert"])
def test_a_tokenizer_with_code_of_its_own(own, tokenizer, tmp_path, kind):
    folder = tmp_path / own(SAME)
    if kind == "bert":  # whose vocabulary transformers would read by a class of its own
        config = BertConfig.from_dict(json.loads((folder / "config.json").read_text()))
        BertModel(config).save_pretrained(folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    config.update(tokenizer_class="OwnTokenizer", auto_map={"AutoTokenizer": [None, "tokens.OwnTokenizer"]})
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ours = load_encoder(str(folder), trust_remote_code=True).tokenizer
    assert ours("wet grey mud").input_ids == tokenizer("wet grey mud").input_ids
    ours.save_pretrained(tmp_path / "saved")
    assert "auto_map" not in (tmp_path / "saved" / "tokenizer_config.json").read_text()
    (folder / "tokenizer.json").rename(folder / "vocab.txt")
    with pytest.raises(InputError, match="its tokenizer needs code from the folder, which is never run; save tokenize"):
        load_encoder(str(folder), trust_remote_code=True)


class Subclass(BertModel):
    """Nothing else."""


class Pooling(BertModel):
    def __init__(self, config):
        super().__init__(config, add_pooling_layer=False)


class Choice(BertForMultipleChoice):
    """Nothing else: its encoder is adapted."""


class Linear(LinformerModel):
    """Nothing else."""


class Positions(RobertaModel):
    def forward(self, input_ids, attention_mask):
        positions = self.config.pad_token_id + attention_mask.cumsum(1) * attention_mask
        return super().forward(input_ids, attention_mask, position_ids=positions)


class Last(BertModel):
    def forward(self, input_ids, attention_mask):
        position_ids = torch.arange(input_ids.shape[1])[None] % 15
        return super().forward(input_ids, attention_mask, position_ids=position_ids)


class Larger(BertModel):
    def __init__(self, config):
        super().__init__(config)
        self.scale = torch.nn.Parameter(torch.ones(1))


class Nothing(BertPreTrainedModel):
    config_class = BertConfig


SMALL = {"vocab_size": 33, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
BERT = BertConfig(**SMALL, max_position_embeddings=16, pad_token_id=20)


@pytest.mark.parametrize(
    ("model_class", "config", "expected"),
    [
        (Subclass, BERT, BertModel),
        (Pooling, BERT, BertModel),
        (Choice, BERT, BertModel),
        (Positions, RobertaConfig(**SMALL, max_position_embeddings=18, pad_token_id=1), RobertaModel),
        (Linear, LinformerConfig(**SMALL, attention="full"), LinformerModel),
        (Last, BERT, "Last computes something else than BertModel"),
        (Larger, BERT, "own: Larger cannot be adapted: BertModel has no counterpart of its scale"),
        (Nothing, BERT, "extends no model of transformers, only BertPreTrainedModel$"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_classes_from_python(model_class, config, expected):
    model = model_class(config).half().train()
    task = "embed" if model_class is Nothing else None
    if isinstance(expected, str):
        with pytest.raises(InputError, match=expected):
            without_own_code(model, "own", task)
    else:
        assert type(without_own_code(model, "own", task)) is expected
        assert model.training and model.dtype == torch.float16  # it is left as it is
