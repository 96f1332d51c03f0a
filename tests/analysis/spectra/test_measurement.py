"""Averages over documents against the plain way: all weights of the model, decomposed one by one."""

import dataclasses

import pytest
import torch

from torch_linformer.analysis import Spectrum, measure_spectrum

N = 37


def plainly(model, documents, eager_weights):
    """Means over documents of σ, of its normalised cumulative sum, and of the energy's: (L, H, N) each."""
    found = []
    for document in documents:
        values = torch.stack([torch.linalg.svdvals(layer.double()) for layer in eager_weights(model, document)])
        squares = values.square()
        shares = [each.cumsum(-1) / each.sum(-1, keepdim=True) for each in (values, squares)]
        found.append(torch.stack([values, *shares]))
    return torch.stack(found).mean(dim=0)


@pytest.mark.parametrize("name", ["bert", "gpt2", "modernbert", "our twin"])
def test_averages_are_those_of_the_plain_way(name, build, draw_documents, eager_weights):
    model, documents = build(name), draw_documents(3, N)
    seen = []
    found = measure_spectrum(model, documents, on_layer=lambda *place: seen.append(place))
    expected = plainly(model, documents, eager_weights)
    for ours, theirs in zip((found.singular_values, found.cumulative, found.energy), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)
    assert (found.length, found.documents, found.method) == (N, 3, "exact")
    assert not found.cumulative_error.any() and not found.missing_energy.any()
    layers = model.config.num_hidden_layers
    assert seen == [(document, layer) for document in range(3) for layer in range(layers)]


def test_the_randomised_method_says_how_far_it_may_be_off(build, draw_documents):
    model, documents = build("bert"), draw_documents(3, N)
    exact = measure_spectrum(model, documents)
    found = measure_spectrum(model, documents, exact_up_to=N - 1, rank=12)
    assert found.method == "randomised" and found.energy.shape == (2, 3, 12)
    torch.testing.assert_close(found.singular_values, exact.singular_values[..., :12], rtol=0.02, atol=0)
    torch.testing.assert_close(found.missing_energy, 1 - exact.energy[..., 11], rtol=0, atol=0.01)
    assert (found.missing_energy > 0).all() and (found.cumulative_error > 0).all()
    off = (found.cumulative - exact.cumulative[..., :12]).abs().amax(dim=-1)
    assert (off <= found.cumulative_error + 1e-4).all()
    assert (found.energy <= exact.energy[..., :12] + 1e-6).all()


def test_uniform_attention_has_rank_one(build, draw_documents):
    model = build("bert")
    for layer in model.encoder.layer:
        torch.nn.init.zeros_(layer.attention.self.query.weight)
        torch.nn.init.zeros_(layer.attention.self.query.bias)
    found = measure_spectrum(model, draw_documents(2, N))
    torch.testing.assert_close(found.singular_values[..., 0], torch.ones(2, 3, dtype=torch.float64), rtol=1e-6, atol=0)
    assert float(found.singular_values[..., 1:].max()) < 1e-6
    torch.testing.assert_close(found.cumulative_at(1), torch.ones(2, 3, dtype=torch.float64), rtol=1e-5, atol=0)


def test_documents_of_one_token(build, draw_documents):
    found = measure_spectrum(build("bert"), draw_documents(2, 1))
    assert found.singular_values.flatten().tolist() == pytest.approx([1.0] * 6)
    assert found.low_rank is None


def test_documents_of_several_lengths_are_refused(build, draw_documents):
    with pytest.raises(ValueError, match=r"documents must be at least one, all of one length, got lengths \[7, 9\]"):
        measure_spectrum(build("bert"), [*draw_documents(1, 9), *draw_documents(1, 7)])
    with pytest.raises(ValueError, match=r"at least one, all of one length, got lengths \[\]"):
        measure_spectrum(build("bert"), [])


def test_layers_that_do_not_attend_are_not_counted_as_zero(build, draw_documents):
    model = build("bert")
    model.config.num_hidden_layers = 3
    with pytest.raises(ValueError, match="a bert model attends in 2 of its 3 layers"):
        measure_spectrum(model, draw_documents(1, N))


@pytest.mark.parametrize("index", [0, N + 1])
def test_an_index_that_was_not_computed(index, build, draw_documents):
    found = measure_spectrum(build("bert"), draw_documents(1, N))
    with pytest.raises(
        ValueError, match=f"index must lie between 1 and {N}, the singular values there are, got {index}"
    ):
        found.cumulative_at(index)


def test_a_record_holds_all_values(build, draw_documents):
    found = measure_spectrum(build("bert"), draw_documents(2, N), ks=(4, 8))
    record = found.as_record()
    for name in ("singular_values", "cumulative", "energy", "cumulative_error", "missing_energy"):
        torch.testing.assert_close(torch.tensor(record[name]).double(), getattr(found, name), rtol=1e-5, atol=1e-30)
    assert record["low_rank_error"]["k"] == [4, 8]
    assert {item.name for item in dataclasses.fields(Spectrum)} - record.keys() == {"architecture", "low_rank"}
