"""Weights of the package `linformer` (lucidrains): the outputs are the original's."""

import inspect
from pathlib import Path

import pytest
import torch
from linformer import Linformer, LinformerLM, LinformerSelfAttention

from torch_linformer.models import LinformerForMaskedLM, LinformerModel
from torch_linformer.models.convert import from_lucidrains

LENGTH = 29
SIZES = {"dim": 15, "seq_len": LENGTH, "depth": 2, "k": 7, "heads": 3}
OPTIONS = [
    {},
    {"one_kv_head": True},
    {"share_kv": True},
    {"dim_head": 4},
    {"one_kv_head": True, "share_kv": True, "dim_head": 7},
    {"depth": 1, "heads": 1},
]


@pytest.fixture
def randomize():
    def move(module):
        torch.manual_seed(0)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return module.double().eval()

    return move


@pytest.mark.parametrize("length", [LENGTH, 11])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_lone_encoder(randomize, options, length):
    theirs = randomize(Linformer(**{**SIZES, **options}))
    ours = from_lucidrains(theirs.state_dict(), num_heads=options.get("heads", 3))
    assert type(ours) is LinformerModel
    x = torch.randn(2, length, 15, dtype=torch.float64)
    assert (ours(inputs_embeds=x).last_hidden_state - theirs(x)).abs().max() < 1e-10


@pytest.mark.parametrize("length", [LENGTH, 11])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_a_language_model(randomize, options, length):
    theirs = randomize(LinformerLM(num_tokens=37, **{**SIZES, **options}))
    ours = from_lucidrains({"model_state_dict": theirs.state_dict()}, num_heads=options.get("heads", 3))
    assert type(ours) is LinformerForMaskedLM
    ids = torch.randint(37, (2, length))
    assert (ours(ids).logits - theirs(ids)).abs().max() < 1e-10


def test_saved_and_loaded(randomize, tmp_path):
    theirs = randomize(LinformerLM(num_tokens=37, **SIZES, share_kv=True))
    from_lucidrains(theirs.state_dict(), num_heads=3).save_pretrained(tmp_path)
    ours = LinformerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.randint(37, (2, LENGTH))
    assert (ours(ids).logits - theirs(ids)).abs().max() < 1e-10


def test_one_head_of_keys_tells_the_number_of_heads(randomize):
    state = randomize(Linformer(**SIZES, one_kv_head=True)).state_dict()
    assert from_lucidrains(state).config.num_attention_heads == 3
    with pytest.raises(ValueError, match=r"num_heads \(--heads\) is 3 by the weights, got 5"):
        from_lucidrains(state, num_heads=5)


def test_what_does_not_fit_is_refused():
    state = Linformer(**SIZES).state_dict()
    with pytest.raises(ValueError, match=r"the weights do not tell the number of heads: give num_heads \(--heads\)"):
        from_lucidrains(state)
    with pytest.raises(ValueError, match="must divide the 15 channels of the queries, got 4"):
        from_lucidrains(state, num_heads=4)
    with pytest.raises(ValueError, match="reversible=True cannot be expressed"):
        from_lucidrains(Linformer(**SIZES, reversible=True).state_dict(), num_heads=3)
    changed = {name: tensor for name, tensor in state.items() if name != "net.layers.1.0.fn.proj_v"}
    with pytest.raises(
        ValueError,
        match=r"of a lucidrains/linformer model: missing net\.layers\.1\.0\.fn\.proj_v; unknown extra$",
    ):
        from_lucidrains({**changed, "extra": torch.ones(2)}, num_heads=3)
    with pytest.raises(ValueError, match="not the weights of a lucidrains/linformer model: missing "):
        from_lucidrains(torch.nn.Linear(2, 3).state_dict(), num_heads=3)


@pytest.mark.parametrize("model_class", [Linformer, LinformerLM, LinformerSelfAttention])
def test_every_option_stands_in_the_documentation(model_class):
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    section = page.partition("## lucidrains/linformer")[2].partition("\n## ")[0]
    missing = [name for name in inspect.signature(model_class).parameters if f"`{name}" not in section]
    assert not missing
