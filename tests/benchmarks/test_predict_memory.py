"""The made documents, and what is taken down while a process reads them."""

import json
import subprocess
import sys

import pytest

import predict_memory
from torch_linformer.inference.output_parts import MANIFEST


def test_documents_of_so_many_bytes_in_files_of_equal_size(tmp_path, monkeypatch):
    monkeypatch.setattr(predict_memory, "FILE_BYTES", 20_000)
    number = predict_memory.write_documents(tmp_path / "archive", 50_000, 200, 900)
    files = sorted((tmp_path / "archive").iterdir())
    assert [file.name for file in files] == ["00000.jsonl", "00001.jsonl", "00002.jsonl"]
    sizes = [file.stat().st_size for file in files]
    assert 50_000 <= sum(sizes) < 51_000 and max(sizes) < 21_000
    lengths = [len(json.loads(line)["text"]) for file in files for line in file.read_text().splitlines()]
    assert len(lengths) == number and min(lengths) >= 200 and max(lengths) <= 900


def test_a_row_for_each_tenth_that_has_its_answers(tmp_path):
    """One part of 3 documents of 10, then one of 6, by a process that takes its time: longer than between two looks."""
    code = f"""if True:
        import json, time
        from pathlib import Path
        for done in (3, 9):
            Path({str(tmp_path / "new")!r}).write_text(json.dumps({{"parts": [{{"documents": done}}]}}))
            Path({str(tmp_path / "new")!r}).replace({str(tmp_path / MANIFEST)!r})
            time.sleep(0.8)
    """
    process = subprocess.Popen([sys.executable, "-c", code])
    rows = predict_memory.watched(process, tmp_path, 10, 2.0)
    assert [row[:2] for row in rows] == [["0.60", "3"], ["1.80", "9"]]
    assert all(1 < int(held) <= int(most) < 1_000 for _, _, _, held, most in rows)


def test_a_run_that_failed_is_no_measurement(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])
    with pytest.raises(SystemExit, match="linformer predict ended with 2"):
        predict_memory.watched(process, tmp_path, 10, 2.0)
