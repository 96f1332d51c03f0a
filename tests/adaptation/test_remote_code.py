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

CONFIG = """
import pathlib
import torch
from torch import nn
from transformers import BertConfig, BertForSequenceClassification, BertModel, BertPreTrainedModel, GenerationMixin

pathlib.Path("was-run").touch()

class OwnConfig(BertConfig):
    model_type = "own-bert"

"""
SAME = "class Own({base}):\n    config_class = OwnConfig\n"
HEAD = """
class Own(BertPreTrainedModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.bert, self.classifier = BertModel(config, add_pooling_layer=False), nn.Linear(24, 2)
        self.post_init()
    def forward(self, input_ids, attention_mask):
        return (self.classifier(self.bert(input_ids, attention_mask)[0][:, 0]),)
"""
OTHER = """
class Own(BertModel):
    config_class = OwnConfig
    def forward(self, input_ids, attention_mask=None, **others):
        return super().forward(input_ids.flip(1), attention_mask, **others)
"""
LOCAL = """
class Own(BertModel):
    config_class = OwnConfig
    def forward(self, input_ids, attention_mask):
        blocks = zip(input_ids.split(12, dim=1), attention_mask.split(12, dim=1))
        return (torch.cat([super(Own, self).forward(*block)[0] for block in blocks], dim=1),)
"""
UNPADDED = """
class Own(GenerationMixin, BertModel):
    config_class = OwnConfig
    def forward(self, input_ids, attention_mask):
        return {"states": super().forward(input_ids, attention_mask)[0] * attention_mask[..., None]}
"""
WIDER = """
class Own(BertModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.embeddings.token_type_embeddings = nn.Embedding(4, config.hidden_size)
        self.post_init()
"""
LARGER = """
class Own(BertModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.scale = nn.Parameter(config.hidden_size * nn.Linear(1, 1).weight)
        self.post_init()
"""
UNREADABLE = """
class Own(BertModel):
    config_class = OwnConfig
    def forward(self, input_ids, attention_mask):
        raise ValueError("no such thing")
"""
NUMBERED = """
class Own(BertModel):
    config_class = OwnConfig
    def __init__(self, config):
        super().__init__(config)
        self.register_buffer("position_ids", torch.arange(16)[None], persistent=True)
        self.post_init()
"""
FAILING = """
class Own(BertModel):
    config_class = OwnConfig
    def __init__(self, config):
        raise KeyError("no such thing")
"""


@pytest.fixture
def own(save_source, tokenizer, tmp_path, monkeypatch):
    """A function: the folder of a model whose code lies in it; the current folder is a new one."""
    monkeypatch.chdir(tmp_path)
    number = iter(range(9))

    def make(code, auto="AutoModel", model_class=BertModel, pooling=None, **changed):
        folder = save_source(tmp_path / f"own{next(number)}", tokenizer, model_class, pooling)
        config = json.loads((folder / "config.json").read_text())
        auto_map = {"AutoConfig": "modeling.OwnConfig", auto: "modeling.Own"}
        config.update({"model_type": "own-bert", "architectures": ["Own"], "auto_map": auto_map, **changed})
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "modeling.py").write_text(CONFIG + code)
        return folder

    return make


def test_code_that_is_not_trusted_is_not_run(own, tmp_path):
    folder = own(SAME.format(base="BertModel"))
    with pytest.raises(InputError, match=r"needs code from its folder \(auto_map in config.json\), .* --trust-remote-"):
        load_encoder(str(folder))
    assert not (tmp_path / "was-run").exists()


@pytest.mark.usefixtures("no_fresh_process")
def test_an_adapted_model_needs_no_code(own, tmp_path, write_csv, weather, watching_screen):
    folder = own(SAME.format(base="BertModel"))
    data = write_csv(tmp_path / "texts.csv", weather(400, seed=5))
    settings = AdaptSettings(
        data=data,
        k=4,
        window=4,
        exact_below=0,
        steps=2,
        device="cpu",
        output=str(tmp_path / "run"),
        trust_remote_code=True,
    )
    run_adaptation(str(folder), settings, screen=watching_screen(None, None))
    assert (tmp_path / "was-run").exists() and "modeling.py" not in os.listdir(tmp_path / "run")
    model = AutoModel.from_pretrained(tmp_path / "run", trust_remote_code=False)
    assert type(model).__name__ == "LinearBertModel" and isinstance(model, BertModel)
    words = load_file(folder / "model.safetensors")["embeddings.word_embeddings.weight"]
    assert torch.allclose(model.embeddings.word_embeddings.weight, words, atol=0.01)


def test_its_head_is_kept(own):
    folder = own(
        SAME.format(base="BertForSequenceClassification"),
        "AutoModelForSequenceClassification",
        BertForSequenceClassification,
    )
    source = load_encoder(str(folder), trust_remote_code=True)
    assert source.objective.name == "classify"
    classifier = load_file(folder / "model.safetensors")["classifier.weight"]
    assert torch.equal(source.model.classifier.weight, classifier)


@pytest.mark.parametrize("pooling", [None, "mean_tokens"])
def test_below_a_head_of_its_own_the_encoder_is_adapted(own, pooling):
    folder = own(HEAD, pooling=pooling)
    weights = load_file(folder / "model.safetensors")
    weights = {f"bert.{name}": tensor for name, tensor in weights.items() if not name.startswith("pooler")}
    weights |= {"classifier.weight": torch.ones(2, 24), "classifier.bias": torch.ones(2)}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    wrong = "Own extends no model of transformers, only BertPreTrainedModel; --task embed adapts the encoder below"
    with pytest.raises(InputError, match=wrong):
        load_encoder(str(folder), "classify", trust_remote_code=True)
    source = load_encoder(str(folder), trust_remote_code=True)
    assert source.objective.name == "embed" and source.sentences == (pooling is not None)
    words = source.model.embeddings.word_embeddings.weight
    assert torch.equal(words, weights["bert.embeddings.word_embeddings.weight"])


def test_code_for_the_model_alone(own):
    """A configuration of transformers, as most of the hub's have."""
    auto_map = {"auto_map": {"AutoModel": "modeling.Own"}, "model_type": "bert"}
    known = (
        SAME.format(base="BertModel") + "    config_class = BertConfig\n",
        OTHER.replace("OwnConfig", "BertConfig"),
    )
    same, other = (own(code, **auto_map) for code in known)
    with pytest.raises(InputError, match="needs code from its folder"):
        load_encoder(str(same))
    assert load_encoder(str(same), trust_remote_code=True).objective.name == "embed"
    with pytest.raises(InputError, match="Own computes something else"):
        load_encoder(str(other), trust_remote_code=True)
    # What is of a class of transformers is read without its code, as transformers does.
    assert load_encoder(str(own(known[1], **auto_map, architectures=["BertModel"]))).objective.name == "embed"


def test_positions_that_older_versions_saved_are_no_weights(own):
    folder = own(NUMBERED)
    weights = load_file(folder / "model.safetensors")
    save_file({**weights, "position_ids": torch.arange(16)[None]}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(InputError, match="BertModel has no counterpart of its position_ids"):  # of another place
        load_encoder(str(folder), trust_remote_code=True)
    (folder / "modeling.py").write_text(CONFIG + NUMBERED.replace("self.register", "self.embeddings.register"))
    weights["embeddings.position_ids"] = torch.arange(16)[None]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert load_encoder(str(folder), trust_remote_code=True).objective.name == "embed"


def test_every_kind_of_head_from_python(tokenizer):
    sizes = {"vocab_size": 33, "hidden_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}

    class Own(RobertaModel):
        def forward(self, input_ids, attention_mask):
            positions = self.config.pad_token_id + attention_mask.cumsum(1) * attention_mask
            return super().forward(input_ids, attention_mask, position_ids=positions)

    class Choice(BertForMultipleChoice):
        """Nothing else."""

    class Last(BertModel):
        def forward(self, input_ids, attention_mask):
            position_ids = torch.arange(input_ids.shape[1])[None] % 15
            return super().forward(input_ids, attention_mask, position_ids=position_ids)

    roberta = RobertaConfig(**sizes, max_position_embeddings=18, pad_token_id=1)
    bert = BertConfig(**sizes, max_position_embeddings=16, pad_token_id=20)
    assert type(without_own_code(Own(roberta), "own")) is RobertaModel
    assert type(without_own_code(Choice(bert), "own")) is BertModel
    with pytest.raises(InputError, match="Last computes something else than BertModel"):
        without_own_code(Last(bert), "own")


def test_what_stands_at_padding_is_nobodys(own):
    source = load_encoder(str(own(UNPADDED)), trust_remote_code=True)
    assert source.objective.name == "embed"


def test_a_larger_table_is_another_model(own):
    folder = own(WIDER)
    weights = load_file(folder / "model.safetensors")
    weights["embeddings.token_type_embeddings.weight"] = torch.ones(4, 24)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(
        InputError, match=r"BertModel has no counterpart of its embeddings\.token_type_embeddings.weight"
    ):
        load_encoder(str(folder), trust_remote_code=True)


def test_modules_of_another_package_are_code_too(own):
    folder = own(SAME.format(base="BertModel"), pooling="mean_tokens")
    modules = (folder / "modules.json").read_text().replace("sentence_transformers.models.Pooling", "custom_st.Pooling")
    (folder / "modules.json").write_text(modules)
    with pytest.raises(InputError, match=r"its modules are Transformer, custom_st\.Pooling, Normalize; understood are"):
        load_encoder(str(folder), trust_remote_code=True)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        (OTHER, "Own computes something else than BertModel, and cannot be adapted"),
        (LOCAL, "Own computes something else than BertModel, and cannot be adapted"),
        (LARGER, "the weights lack scale, which its own code wants; copy the folder again"),
        (UNREADABLE, "Own cannot read a text: no such thing"),
        (FAILING, "its own code cannot open it: 'no such thing'"),
        ("", "its own code cannot open it: "),
    ],
)
def test_code_that_makes_another_model(own, code, message):
    with pytest.raises(InputError, match=message):
        load_encoder(str(own(code)), trust_remote_code=True)


@pytest.mark.parametrize("kind", ["bert", "own-bert"])
def test_a_tokenizer_with_code_of_its_own(own, tokenizer, tmp_path, kind):
    folder = own(SAME.format(base="BertModel"))
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


def test_classes_from_python(small_bert):
    class Own(BertModel):
        """Nothing else."""

    class Larger(BertModel):
        def __init__(self, config):
            super().__init__(config)
            self.scale = torch.nn.Parameter(torch.ones(1))

    class Nothing(BertPreTrainedModel):
        config_class = BertConfig

    class Linear(LinformerModel):
        """Nothing else."""

    class Pooling(BertModel):
        def __init__(self, config):
            super().__init__(config, add_pooling_layer=False)

    for model in (Own(small_bert.config), Pooling(small_bert.config)):
        model = model.half().train()
        assert type(without_own_code(model, "own")) is BertModel
        assert model.training and model.dtype == torch.float16  # it is left as it is
    config = LinformerConfig(vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, attention="full")
    assert type(without_own_code(Linear(config), "own")) is LinformerModel
    with pytest.raises(InputError, match=r"extends no model of transformers, only BertPreTrainedModel$"):
        without_own_code(Nothing(small_bert.config), "own", "embed")
    with pytest.raises(InputError, match="own: Larger cannot be adapted: BertModel has no counterpart of its scale"):
        without_own_code(Larger(small_bert.config), "own")
