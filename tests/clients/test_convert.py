"""Weights of `linformer` (lucidrains) and `linformer-pytorch` (tatp22): the outputs are the original's."""

import argparse
import inspect
from pathlib import Path

import linformer
import linformer_pytorch
import pytest
import torch
from linformer_pytorch import LinformerEncDec, Padder

from torch_linformer.models import LinformerForMaskedLM, LinformerModel
from torch_linformer.models.convert import from_linformer_pytorch, from_lucidrains

LENGTH = 29
SIZES = {
    linformer: {"dim": 15, "seq_len": LENGTH, "depth": 2, "k": 7, "heads": 3},
    linformer_pytorch: {"input_size": LENGTH, "channels": 18, "dim_k": 7, "dim_ff": 23, "nhead": 3, "depth": 2},
}
OPTIONS = [
    *(
        (linformer, {}),
        (linformer, {"one_kv_head": True}),
        (linformer, {"share_kv": True}),
        (linformer, {"dim_head": 4}),
    ),
    (linformer, {"one_kv_head": True, "share_kv": True, "dim_head": 7}),
    (linformer, {"depth": 1, "heads": 1}),
    *(
        (linformer_pytorch, {"parameter_sharing": sharing, **options})
        for sharing in ("none", "headwise", "kv", "layerwise")
        for options in (
            *({}, {"dim_d": 4}, {"w_o_intermediate_dim": 5}, {"activation": "relu"}, {"k_reduce_by_layer": 2}),
            *({"depth": 1}, {"nhead": 1, "w_o_intermediate_dim": 31, "dim_d": 7}),
            *({"emb_dim": 8}, {"emb_dim": 22, "dim_d": 4}),
        )
    ),
]


def random_original(package, language_model=True, **options):
    """Theirs in eval mode, in float64, no parameter of which is at a special value."""
    torch.manual_seed(0)
    if language_model:
        module = package.LinformerLM(num_tokens=37, **{**SIZES[package], **options})
    else:
        module = package.Linformer(**{**SIZES[package], **options})
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    return module.double().eval()


def converted(package, weights, **options):
    if package is linformer:
        return from_lucidrains(weights, num_heads=options.get("heads", 3))
    return from_linformer_pytorch(weights, activation=options.get("activation"))


@pytest.mark.parametrize(("package", "options"), OPTIONS, ids=lambda value: getattr(value, "__name__", str(value)))
@pytest.mark.parametrize("language_model", [False, True])
def test_outputs_are_those_of_the_original_also_once_saved(package, options, language_model, tmp_path):
    if "emb_dim" in options and not language_model:
        pytest.skip("an option of language models")
    theirs = random_original(package, language_model, **options)
    weights = theirs.state_dict()
    ours = converted(package, {"model_state_dict": weights} if package is linformer else weights, **options)
    assert type(ours) is (LinformerForMaskedLM if language_model else LinformerModel)
    if package is linformer_pytorch:  # where there is one head, or one layer, two names mean the same matrices
        sharing, one_layer, one_head = (
            options["parameter_sharing"],
            options.get("depth") == 1,
            options.get("nhead") == 1,
        )
        sharing = "kv" if sharing == "layerwise" and one_layer else sharing
        assert ours.config.sharing == ("headwise" if sharing == "none" and one_head else sharing)
    ours.save_pretrained(tmp_path)
    ours = type(ours).from_pretrained(tmp_path, dtype=torch.float64)
    width = SIZES[package].get("dim", 18)
    for length in (LENGTH, 11) if package is linformer else (LENGTH,):
        ids, x = torch.randint(37, (2, length)), torch.randn(2, length, width, dtype=torch.float64)
        found = ours(ids).logits if language_model else ours(inputs_embeds=x).last_hidden_state
        assert (found - theirs(ids if language_model else x)).abs().max() < 1e-10


def test_padding_and_models_without_logits_of_linformer_pytorch():
    theirs = random_original(linformer_pytorch, parameter_sharing="headwise")
    ids, real = torch.randint(37, (2, LENGTH)), torch.arange(LENGTH) < torch.tensor([[LENGTH], [11]])
    found = from_linformer_pytorch(theirs)(ids, attention_mask=real).logits
    assert (found - theirs(ids, input_mask=real))[real].abs().max() < 1e-10
    theirs = random_original(linformer_pytorch, return_emb=True)
    ours = from_linformer_pytorch(theirs.state_dict())
    assert type(ours) is LinformerModel
    assert (ours(ids).last_hidden_state - theirs(ids)).abs().max() < 1e-10


@pytest.mark.parametrize("language_model", [False, True])
def test_a_model_in_a_padder(language_model):
    theirs = random_original(linformer_pytorch, language_model)
    bare, expected = Padder(theirs), from_linformer_pytorch(theirs)
    for source in (bare, bare.state_dict(), torch.nn.DataParallel(bare).state_dict()):
        ours = from_linformer_pytorch(source)
        assert all(torch.equal(a, b) for a, b in zip(ours.parameters(), expected.parameters(), strict=True))


WEIGHTS_TELL = {
    "ff_intermediate": {"ff_intermediate": 22, "parameter_sharing": "none"},
    "method='convolution'": {"method": "convolution"},
    "method='no_params'": {"method": "no_params"},
    "include_ff=False": {"include_ff": False},
}
REFUSED = {**{f"{name}=True": {name: True} for name in ("causal", "full_attention", "decoder_mode")}, **WEIGHTS_TELL}


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_expressed_is_refused_by_its_name(option):
    options = {**SIZES[linformer_pytorch], **REFUSED[option]}
    alone, model = linformer_pytorch.Linformer(**options), linformer_pytorch.LinformerLM(num_tokens=37, **options)
    sources = [alone, model]
    if option in WEIGHTS_TELL:
        sources += [alone.state_dict(), model.state_dict()]
    else:  # told beside the weights
        kept = {"args": argparse.Namespace(**options), "config": options, "hyper_parameters": options}
        sources += [{"state_dict": alone.state_dict(), where: told} for where, told in kept.items()]
    for source in sources:
        with pytest.raises(ValueError, match=f"^{option} cannot be expressed: "):
            from_linformer_pytorch(source)


def test_what_the_weights_leave_open_is_said(caplog):
    theirs = random_original(linformer_pytorch, language_model=False, activation="relu")
    from_linformer_pytorch(theirs)
    told = {"decoder_mode": False, "causal": False, "full_attention": False, "activation": "relu"}
    ours = from_linformer_pytorch({"model": theirs.state_dict(), "config": told})
    assert ours.config.hidden_act == "relu" and not caplog.messages
    from_linformer_pytorch({"model": theirs.state_dict(), "config": {"causal": False}})
    from_linformer_pytorch(theirs.state_dict())
    open_options = ["decoder_mode, full_attention", "decoder_mode, causal, full_attention"]
    expected = "taken to be off, as the file does not tell: {} (outputs differ if not so)"
    assert caplog.messages == [expected.format(names) for names in open_options]


def test_other_models_and_weights_are_refused_by_their_names():
    sizes = {"num_tokens": 37, "input_size": LENGTH, "channels": 16}
    pair = {f"{side}_{name}": size for side in ("enc", "dec") for name, size in sizes.items()}
    projected = linformer_pytorch.LinformerLM(num_tokens=37, **SIZES[linformer_pytorch], emb_dim=8, return_emb=True)
    theirs = linformer_pytorch.Linformer(**SIZES[linformer_pytorch]).state_dict()
    theirs = {name: x for name, x in theirs.items() if name != "seq.2.fn.heads.1.F.bias"} | {"extra": torch.ones(2)}
    missing = r"missing seq\.2\.fn\.heads\.1\.F\.bias; unknown extra$"
    for source, message in (
        (LinformerEncDec(**pair).state_dict(), "^LinformerEncDec cannot be expressed: the attention of its decoder"),
        (projected.state_dict(), "^return_emb=True with emb_dim cannot be expressed"),
        (theirs, f"of a linformer-pytorch model: {missing}"),
        (torch.nn.Linear(2, 3).state_dict(), "not the weights of a linformer-pytorch model: missing "),
    ):
        with pytest.raises(ValueError, match=message):
            from_linformer_pytorch(source)
    state = linformer.Linformer(**SIZES[linformer]).state_dict()
    one = linformer.Linformer(**SIZES[linformer], one_kv_head=True).state_dict()
    reversible = linformer.Linformer(**SIZES[linformer], reversible=True).state_dict()
    changed = {name: x for name, x in state.items() if name != "net.layers.1.0.fn.proj_v"} | {"extra": torch.ones(2)}
    assert from_lucidrains(one).config.num_attention_heads == 3
    for source, heads, message in (
        (one, 5, r"num_heads \(--heads\) is 3 by the weights, got 5"),
        (state, None, r"the weights do not tell the number of heads: give num_heads \(--heads\)"),
        (state, 4, "must divide the 15 channels of the queries, got 4"),
        (reversible, 3, "reversible=True cannot be expressed"),
        (changed, 3, r"of a lucidrains/linformer model: missing net\.layers\.1\.0\.fn\.proj_v; unknown extra$"),
        (torch.nn.Linear(2, 3).state_dict(), 3, "not the weights of a lucidrains/linformer model: missing "),
    ):
        with pytest.raises(ValueError, match=message):
            from_lucidrains(source, num_heads=heads)


@pytest.mark.parametrize(
    ("heading", "classes"),
    [
        ("## linformer-pytorch", [linformer_pytorch.Linformer, linformer_pytorch.LinformerLM]),
        ("## lucidrains/linformer", [linformer.Linformer, linformer.LinformerLM, linformer.LinformerSelfAttention]),
    ],
)
def test_every_option_stands_in_the_documentation(heading, classes):
    page = (Path(__file__).parents[2] / "docs" / "reference" / "options_of_others.md").read_text(encoding="utf-8")
    section = page.partition(heading)[2].partition("\n## ")[0]
    options = {name for model_class in classes for name in inspect.signature(model_class).parameters}
    assert not [name for name in options if f"`{name}" not in section]
