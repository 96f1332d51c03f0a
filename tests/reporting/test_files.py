"""Files appear whole or not at all."""

import json
import os
import stat

import pytest

from torch_linformer.reporting.files import atomic_path, write_json, write_text


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_text_is_written_as_utf8_into_a_folder_that_is_made_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "runs" / "report.html"
    write_text(path, "old")
    write_text(str(path), "ü\n日本\n")
    assert path.read_bytes() == "ü\n日本\n".encode() and names(path.parent) == ["report.html"]


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
@pytest.mark.parametrize("before", [None, "previous"])
def test_a_failure_in_the_middle_leaves_what_was_there(tmp_path, error, before):
    path = tmp_path / "model.onnx"
    if before:
        path.write_text(before)
    with pytest.raises(error), atomic_path(path) as temporary:
        temporary.write_bytes(b"half")
        assert (temporary.parent, temporary.suffix) == (tmp_path, ".onnx") and temporary != path
        assert not before or path.read_text() == before
        raise error
    assert names(tmp_path) == ([path.name] if before else [])
    assert not before or path.read_text() == before


def test_a_failing_rename_leaves_no_temporary_file(tmp_path, monkeypatch):
    def fail(*_):
        raise OSError("disk gone")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="disk gone"):
        write_text(tmp_path / "report.html", "x")
    assert names(tmp_path) == []


def test_what_cannot_be_written_as_json_leaves_the_previous_file(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"accuracy": 0.5})
    with pytest.raises(TypeError):
        write_json(path, {"accuracy": object()})
    assert json.loads(path.read_text()) == {"accuracy": 0.5}
    assert names(tmp_path) == ["metrics.json"]


def test_a_writer_that_wrote_nothing_is_an_error(tmp_path):
    with pytest.raises(FileNotFoundError), atomic_path(tmp_path / "empty"):
        pass
    assert names(tmp_path) == []


def test_json_is_strict_readable_and_says_null_for_what_is_not_finite(tmp_path):
    path = tmp_path / "metrics.json"
    write_json(path, {"loss": float("nan"), "list": [1.5, float("inf"), (2, None)], "name": "Größe"})
    text = path.read_text(encoding="utf-8")
    assert json.loads(text) == {"loss": None, "list": [1.5, None, [2, None]], "name": "Größe"}
    assert "Größe" in text
    assert text.endswith("}\n")
    write_json(path, ["caf\udce9"])  # a lone surrogate
    assert json.loads(path.read_text(encoding="utf-8")) == ["caf\udce9"]


@pytest.mark.skipif(os.name != "posix", reason="POSIX permissions, links and devices")
class TestPosix:
    def test_the_file_gets_the_usual_permissions(self, tmp_path):
        (tmp_path / "usual").write_text("x")
        write_text(tmp_path / "atomic", "x")
        modes = {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in ("usual", "atomic")}
        assert len(modes) == 1

    def test_a_symbolic_link_stays_one(self, tmp_path):
        (tmp_path / "elsewhere").mkdir()
        link = tmp_path / "latest.json"
        link.symlink_to(tmp_path / "elsewhere" / "run.json")
        write_json(link, [1])
        assert link.is_symlink()
        assert names(tmp_path / "elsewhere") == ["run.json"]

    def test_a_device_is_written_to_and_not_replaced(self):
        with atomic_path("/dev/null") as path:
            path.write_text("x")
        assert str(path) == "/dev/null"
        assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
