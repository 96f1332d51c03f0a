"""The search of docs/python.md, as it is printed but for its size."""

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"
LESS = {
    '"minutes": 5': '"max_steps": 2',
    "n_trials=20": "n_trials=2",
    "[16, 64, 256]": "[4, 8]",
    'output="runs/best"': 'output="runs/best", max_steps=2',
}


@pytest.mark.usefixtures("measured_once")
def test_the_search_runs(tmp_path, monkeypatch, datasets_cache, write_csv, weather):
    optuna = pytest.importorskip("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    monkeypatch.chdir(tmp_path)
    for seed, name in enumerate(("train", "dev", "test")):
        write_csv(tmp_path / f"{name}.csv", weather(60, seed=seed))
    (code,) = re.findall(
        r"```python\n((?:(?!```).)*?^import optuna.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len([line for line in code.splitlines() if line.strip()]) <= 15
    for usual, less in LESS.items():
        assert code.count(usual) == 1
        code = code.replace(usual, less)
    names = {}
    exec(code, names)
    folders = {path.name for path in (tmp_path / "runs").iterdir()}
    assert folders == {"trial-0", "trial-1", "best"} and len(names["study"].trials) == 2
