"""Weights of the package `linformer-pytorch` (tatp22): the outputs are the original's."""

import argparse
import inspect
from pathlib import Path

import pytest
import torch
from linformer_pytorch import Linformer, LinformerEncDec, LinformerLM, Padder

from torch_linformer.models import LinformerForMaskedLM, LinformerModel
from torch_linformer.models.convert import from_linformer_pytorch

LENGTH = 29
SIZES = {"input_size": LENGTH, "channels": 18, "dim_k": 7, "dim_ff": 23, "nhead": 3, "depth": 2}
OPTIONS = [
    {},
    {"dim_d": 4},
    {"w_o_intermediate_dim": 5},
    {"activation": "relu"},
    {"k_reduce_by_layer": 2},
    {"depth": 1},
    {"nhead": 1, "w_o_intermediate_dim": 31, "dim_d": 7},
]
SHARINGS = ["none", "headwise", "kv", "layerwise"]


@pytest.fixture
def build():
    """Function: a model in eval mode, in float64, no parameter of which is at a special value."""

    def make(model_class, **options):
        torch.manual_seed(0)
        module = model_class(**{**SIZES, **options})
        with torch.no_grad():
            for parameter in module.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.3)
        return module.double().eval()

    return make


def expected_sharing(sharing, options):
    """Where there is one head, or one layer, two names mean the same matrices."""
    if sharing == "layerwise" and options.get("depth") == 1:
        return "kv"
    return "headwise" if sharing == "none" and options.get("nhead") == 1 else sharing


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_lone_encoder(build, sharing, options):
    theirs = build(Linformer, parameter_sharing=sharing, **options)
    ours = from_linformer_pytorch(theirs.state_dict(), activation=options.get("activation"))
    assert type(ours) is LinformerModel
    assert ours.config.sharing == expected_sharing(sharing, options)
    x = torch.randn(2, LENGTH, 18, dtype=torch.float64)
    assert (ours(inputs_embeds=x).last_hidden_state - theirs(x)).abs().max() < 1e-10


@pytest.mark.parametrize("options", [*OPTIONS, {"emb_dim": 8}, {"emb_dim": 22, "dim_d": 4}], ids=str)
@pytest.mark.parametrize("sharing", SHARINGS)
def test_a_language_model(build, sharing, options):
    theirs = build(LinformerLM, num_tokens=37, parameter_sharing=sharing, **options)
    ours = from_linformer_pytorch(theirs)
    assert type(ours) is LinformerForMaskedLM
    ids = torch.randint(37, (2, LENGTH))
    assert (ours(ids).logits - theirs(ids)).abs().max() < 1e-10


def test_padding_is_what_the_mask_makes_of_it_there(build):
    theirs = build(LinformerLM, num_tokens=37, parameter_sharing="headwise")
    ids, real = torch.randint(37, (2, LENGTH)), torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    found = from_linformer_pytorch(theirs)(ids, attention_mask=real).logits
    assert (found - theirs(ids, input_mask=real))[real].abs().max() < 1e-10


def test_a_language_model_without_logits(build):
    theirs = build(LinformerLM, num_tokens=37, return_emb=True)
    ours = from_linformer_pytorch(theirs.state_dict())
    assert type(ours) is LinformerModel
    ids = torch.randint(37, (2, LENGTH))
    assert (ours(ids).last_hidden_state - theirs(ids)).abs().max() < 1e-10


def test_saved_and_loaded(build, tmp_path):
    theirs = build(LinformerLM, num_tokens=37, k_reduce_by_layer=2, parameter_sharing="none")
    from_linformer_pytorch(theirs.state_dict()).save_pretrained(tmp_path)
    ours = LinformerForMaskedLM.from_pretrained(tmp_path, dtype=torch.float64)
    ids = torch.randint(37, (2, LENGTH))
    assert (ours(ids).logits - theirs(ids)).abs().max() < 1e-10


REFUSED = {
    "causal=True": {"causal": True},
    "full_attention=True": {"full_attention": True},
    "decoder_mode=True": {"decoder_mode": True},
    "ff_intermediate": {"ff_intermediate": 22, "parameter_sharing": "none"},
    "method='convolution'": {"method": "convolution"},
    "method='no_params'": {"method": "no_params"},
    "include_ff=False": {"include_ff": False},
}
WEIGHTS_TELL = ["ff_intermediate", "method='convolution'", "method='no_params'", "include_ff=False"]


@pytest.mark.parametrize("option", REFUSED)
@pytest.mark.parametrize("language_model", [False, True])
def test_what_cannot_be_expressed_is_refused_by_its_name(option, language_model):
    model_class, more = (LinformerLM, {"num_tokens": 37}) if language_model else (Linformer, {})
    theirs = model_class(**SIZES, **more, **REFUSED[option])
    for source in (theirs, theirs.state_dict())[: 2 if option in WEIGHTS_TELL else 1]:
        with pytest.raises(ValueError, match=f"^{option} cannot be expressed: "):
            from_linformer_pytorch(source)


@pytest.mark.parametrize("option", ["causal", "full_attention", "decoder_mode"])
@pytest.mark.parametrize("where", ["args", "config", "hyper_parameters"])
def test_options_beside_the_weights_are_refused_too(option, where):
    options = {**SIZES, option: True}
    theirs = Linformer(**options)
    kept = argparse.Namespace(**options) if where == "args" else options
    with pytest.raises(ValueError, match=f"^{option}=True cannot be expressed: "):
        from_linformer_pytorch({"state_dict": theirs.state_dict(), where: kept})


def test_what_the_weights_leave_open_is_said(build, caplog):
    theirs = build(Linformer, activation="relu")
    from_linformer_pytorch(theirs)
    told = {"decoder_mode": False, "causal": False, "full_attention": False, "activation": "relu"}
    ours = from_linformer_pytorch({"model": theirs.state_dict(), "config": told})
    assert ours.config.hidden_act == "relu" and not caplog.messages
    from_linformer_pytorch({"model": theirs.state_dict(), "config": {"causal": False}})
    from_linformer_pytorch(theirs.state_dict())
    open_options = ["decoder_mode, full_attention", "decoder_mode, causal, full_attention"]
    expected = "taken to be off, as the file does not tell: {} (outputs differ if not so)"
    assert caplog.messages == [expected.format(names) for names in open_options]


@pytest.mark.parametrize("model_class", [Linformer, LinformerLM])
def test_a_model_in_a_padder(build, model_class):
    theirs = build(model_class, **({"num_tokens": 37} if model_class is LinformerLM else {}))
    bare, expected = Padder(theirs), from_linformer_pytorch(theirs)
    for source in (bare, bare.state_dict(), torch.nn.DataParallel(bare).state_dict()):
        ours = from_linformer_pytorch(source)
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), expected.parameters(), strict=True))


def test_other_models_are_refused_by_their_names():
    sizes = {"num_tokens": 37, "input_size": LENGTH, "channels": 16}
    pair = {f"{side}_{name}": size for side in ("enc", "dec") for name, size in sizes.items()}
    with pytest.raises(ValueError, match=r"^LinformerEncDec cannot be expressed: the attention of its decoder"):
        from_linformer_pytorch(LinformerEncDec(**pair).state_dict())
    projected = LinformerLM(num_tokens=37, **SIZES, emb_dim=8, return_emb=True)
    with pytest.raises(ValueError, match=r"^return_emb=True with emb_dim cannot be expressed"):
        from_linformer_pytorch(projected.state_dict())


def test_names_that_do_not_fit_are_listed():
    state = Linformer(**SIZES).state_dict()
    del state["seq.2.fn.heads.1.F.bias"]
    with pytest.raises(
        ValueError,
        match=r"of a linformer-pytorch model: missing seq\.2\.fn\.heads\.1\.F\.bias; unknown extra$",
    ):
        from_linformer_pytorch({**state, "extra": torch.ones(2)})
    with pytest.raises(ValueError, match="not the weights of a linformer-pytorch model: missing "):
        from_linformer_pytorch(torch.nn.Linear(2, 3).state_dict())


@pytest.mark.parametrize("model_class", [Linformer, LinformerLM])
def test_every_option_stands_in_the_documentation(model_class):
    page = (Path(__file__).parents[2] / "docs" / "migration.md").read_text(encoding="utf-8")
    section = page.partition("## linformer-pytorch")[2].partition("\n## ")[0]
    missing = [name for name in inspect.signature(model_class).parameters if f"`{name}" not in section]
    assert not missing
