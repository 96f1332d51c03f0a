import pytest

from torch_linformer.opening.run_folder import (
    MANIFEST,
    Spent,
    checkpoints,
    is_whole,
    last_whole_checkpoint,
    read_spent,
    seal,
)


@pytest.fixture
def checkpoint(tmp_path):
    """A sealed checkpoint of two files and a folder."""
    folder = tmp_path / "checkpoint-9"
    (folder / "more").mkdir(parents=True)
    (folder / "weights").write_bytes(b"12345")
    (folder / "more" / "random").write_bytes(b"6")
    (folder / "state.json").write_text("{}")
    seal(folder, Spent(2.5, 700))
    return folder


def test_a_sealed_checkpoint_is_whole_and_knows_what_it_took(checkpoint):
    assert is_whole(checkpoint)
    assert read_spent(checkpoint) == Spent(2.5, 700)
    assert Spent(2.0, 700).tokens_per_second == 350
    seal(checkpoint, Spent(3.0, 800))
    assert is_whole(checkpoint) and read_spent(checkpoint) == Spent(3.0, 800)


DAMAGES = {
    "shorter file": lambda folder: (folder / "weights").write_bytes(b"123"),
    "empty file": lambda folder: (folder / "state.json").write_bytes(b""),
    "longer file": lambda folder: (folder / "weights").write_bytes(b"123456"),
    "missing file": lambda folder: (folder / "weights").unlink(),
    "zeroed file": lambda folder: (folder / "weights").write_bytes(bytes(5)),
    "overwritten file": lambda folder: (folder / "more" / "random").write_bytes(b"7"),
    "not sealed": lambda folder: (folder / MANIFEST).unlink(),
    "seal cut off": lambda folder: (folder / MANIFEST).write_text((folder / MANIFEST).read_text()[:20]),
    "seal of another kind": lambda folder: (folder / MANIFEST).write_text("{}"),
    "seal without digests": lambda folder: (folder / MANIFEST).write_text('{"files": {"weights": 5}}'),
    "empty folder": lambda folder: [file.unlink() for file in folder.iterdir() if file.is_file()],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_checkpoint_is_not_whole(checkpoint, damage):
    DAMAGES[damage](checkpoint)
    assert not is_whole(checkpoint)


def test_checkpoints_come_by_number_and_nothing_else_does(tmp_path):
    for name in ("checkpoint-100", "checkpoint-9", "checkpoint-20", "checkpoint-x", "checkpoint-3.old", "other"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-20", "checkpoint-100"]
    assert checkpoints(tmp_path / "nowhere") == []


def test_the_last_whole_checkpoint_and_the_broken_ones_after_it(checkpoint):
    output = checkpoint.parent
    assert last_whole_checkpoint(output) == (checkpoint, [])
    later = [output / "checkpoint-18", output / "checkpoint-108"]
    for folder in later:
        folder.mkdir()
    assert last_whole_checkpoint(output) == (checkpoint, later[::-1])
    (checkpoint / MANIFEST).unlink()
    assert last_whole_checkpoint(output) == (None, [*later[::-1], checkpoint])
