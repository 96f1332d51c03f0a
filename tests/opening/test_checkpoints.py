import pytest

from torch_linformer.opening.folder import (
    MANIFEST,
    Spent,
    checkpoints,
    is_whole,
    open_run,
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


def test_a_run_goes_on_from_the_last_whole_checkpoint(checkpoint, watching_screen):
    """The broken ones after it are removed, and that is said; without a whole one it starts afresh."""
    output = checkpoint.parent
    (output / "run.json").write_text("{}")
    for newest, told in (("checkpoint-9", f"going on from {checkpoint}"), ("", "starting afresh")):
        for number in (18, 108):
            (output / f"checkpoint-{number}").mkdir()
        screen = watching_screen(None, None)
        assert open_run(output, {}, True, screen) == (checkpoint if newest else None)
        assert [path.name for path in checkpoints(output)] == [name for name in (newest,) if name]
        assert screen.shown.count("is incomplete or damaged: removed") == (2 if newest else 3) and told in screen.shown
        (checkpoint / MANIFEST).unlink(missing_ok=True)
