import numpy as np
import pytest

from torch_linformer.cli.app import run

NAMED = ("--text-column", "body")
COLUMNS = "texts from column 'body' (as asked)\n"  # what is said of the table


@pytest.fixture
def embed(classifier_run, capsys, tmp_path, monkeypatch, write_csv):
    """A function: run `linformer embed` on three texts; returns status and standard error."""
    monkeypatch.chdir(tmp_path)
    write_csv("t.csv", [(text, "7") for text in ("wet grey mud", "warm sand", "ice " * 60)], header=("body", "id"))

    def call(*arguments):
        with pytest.raises(SystemExit) as exit_:
            run(["embed", str(classifier_run.folder), *arguments, "--device", "cpu", "--precision", "fp32"])
        return exit_.value.code, capsys.readouterr().err

    return call


def test_a_table_becomes_vectors(embed):
    status, error = embed("t.csv", "--output", "v.npy")
    assert status == 2 and "no column 'text', which the model was trained with; name the text column with" in error
    assert embed("t.csv", "--output", "v.npy", *NAMED) == (0, f"{COLUMNS}3 documents embedded, 1 cut at 24 tokens\n")
    named = (*NAMED, "--overflow", "windows", "--stride", "4", "--no-normalize", "--batch-size", "2")
    assert embed("t.csv", "--output", "w.npy", *named) == (0, f"{COLUMNS}3 documents embedded\n")
    unit, plain = np.load("v.npy"), np.load("w.npy")
    np.testing.assert_allclose(unit[:2] * np.linalg.norm(plain[:2], axis=1, keepdims=True), plain[:2], atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("t.csv", "--output", "v.csv"), "--output v.csv: the name must end with .parquet or .npy"),
        (("none.csv", "--output", "v.npy"), "none.csv: no such file or folder"),
        (("t.csv", "--output", "v.npy", "--text-column", "x"), "t.csv: no column 'x'"),
    ],
)
def test_bad_input_is_one_line(embed, arguments, said, tmp_path):
    status, error = embed(*arguments)
    assert status == 2 and error.startswith(f"linformer: {said}") and error.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]
