"""Files appear whole or not at all."""

import json
import os
import stat

import pytest

from torch_linformer.reporting.files import atomic_path, write_json, write_text


def names(folder):
    return sorted(entry.name for entry in folder.iterdir())


def test_text_is_written_as_utf8_and_replaces_what_was_there(tmp_path):
    path = tmp_path / "report.html"
    write_text(path, "old")
    write_text(str(path), "ü\n日本\n")
    assert path.read_bytes() == "ü\n日本\n".encode()
    assert names(tmp_path) == ["report.html"]


def test_a_missing_folder_is_made(tmp_path):
    write_text(tmp_path / "runs" / "first" / "log.txt", "x")
    assert (tmp_path / "runs" / "first" / "log.txt").read_text() == "x"


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_in_the_middle_leaves_no_file(tmp_path, error):
    with pytest.raises(error), atomic_path(tmp_path / "weights.bin") as temporary:
        temporary.write_bytes(b"half")
        raise error
    assert names(tmp_path) == []


def test_a_failure_in_the_middle_keeps_the_previous_file(tmp_path):
    path = tmp_path / "predictions.jsonl"
    path.write_text("previous")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        assert path.read_text() == "previous"
        raise RuntimeError
    assert path.read_text() == "previous"
    assert names(tmp_path) == ["predictions.jsonl"]


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


def test_the_temporary_file_lies_beside_the_final_one_with_its_suffix(tmp_path):
    with atomic_path(tmp_path / "model.onnx") as temporary:
        assert temporary.parent == tmp_path
        assert temporary.suffix == ".onnx"
        assert temporary.name != "model.onnx"
        temporary.write_bytes(b"x")
    assert names(tmp_path) == ["model.onnx"]


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


def test_a_lone_surrogate_survives_json(tmp_path):
    write_json(tmp_path / "names.json", ["caf\udce9"])
    assert json.loads((tmp_path / "names.json").read_text(encoding="utf-8")) == ["caf\udce9"]


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
