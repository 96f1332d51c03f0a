import pytest

from torch_linformer.reporting.report import name_in_title


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("posts.csv", "posts"),
        ("all-MiniLM-L6-v2", "all-MiniLM-L6-v2"),
        ("minilm/model", "minilm"),
        ("runs/posts/checkpoint-500", "posts"),
        (f"models--org--name/snapshots/{'0a' * 20}", "models--org--name"),
    ],
)
def test_a_title_has_no_path(source, name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / source
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch() if path.suffix == ".csv" else path.mkdir()
    assert name_in_title(source) == name_in_title(str(path)) == name


@pytest.mark.parametrize("name", ["stdlib", "org/data:en"])
def test_what_is_no_path_is_its_own_name(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert name_in_title(name) == name
