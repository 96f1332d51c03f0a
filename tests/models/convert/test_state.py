"""Checkpoint files: what is read, what is refused because it would run code, what is broken."""

import argparse

import pytest
import torch
from safetensors.torch import save_file

from torch_linformer.models.convert import from_lucidrains, read_checkpoint, tensors_in


class Custom:
    """A class of whoever saved the file."""


@pytest.mark.cpu("files are read into its memory")
def test_tensors_come_back_from_either_format(tmp_path):
    state = {"a": torch.arange(6.0).view(2, 3), "b": torch.ones(5, dtype=torch.float64)}
    save_file(state, tmp_path / "weights.safetensors")
    torch.save(state, tmp_path / "weights.pt")
    for name in ("weights.safetensors", "weights.pt"):
        found = read_checkpoint(tmp_path / name)
        assert found.keys() == state.keys()
        assert all(torch.equal(found[key], state[key]) and found[key].dtype == state[key].dtype for key in state)


def test_a_namespace_is_read(tmp_path):
    torch.save({"args": argparse.Namespace(heads=3), "model": {}}, tmp_path / "fairseq.pt")
    assert read_checkpoint(tmp_path / "fairseq.pt")["args"].heads == 3
    # Allowed for this one file, not for the whole process.
    assert argparse.Namespace not in torch.serialization.get_safe_globals()


def test_a_pickle_that_would_run_code_is_refused_and_named(tmp_path):
    torch.save({"weights": torch.ones(2), "x": Custom()}, tmp_path / "evil.pt")
    with pytest.raises(
        ValueError, match=r"evil\.pt: refused, because it holds .*Custom, and loading that would run co"
    ):
        read_checkpoint(tmp_path / "evil.pt")


def test_a_whole_module_is_refused(tmp_path):
    torch.save(torch.nn.Linear(2, 3), tmp_path / "module.pt")
    with pytest.raises(ValueError, match=r"torch\.nn\.modules\.linear\.Linear.* save model\.state_dict\(\) instead"):
        read_checkpoint(tmp_path / "module.pt")


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
@pytest.mark.parametrize("content", [b"", b"hello", b"x" * 1000, "half"], ids=["empty", "text", "long text", "half"])
def test_a_damaged_file(tmp_path, suffix, content):
    path = tmp_path / f"weights{suffix}"
    if content == "half":
        state = {"a": torch.randn(100)}
        save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
        content = path.read_bytes()[: path.stat().st_size // 2]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^{path}: (is not a complete|refused)"):
        read_checkpoint(path)


def test_a_folder_and_a_missing_file(tmp_path):
    with pytest.raises(ValueError, match="is a folder; name the checkpoint file in it"):
        read_checkpoint(tmp_path)
    for name in ("nowhere.pt", "nowhere.safetensors"):
        with pytest.raises(OSError, match=name):
            read_checkpoint(tmp_path / name)


def test_what_is_no_state_dict(tmp_path):
    torch.save([torch.ones(2)], tmp_path / "list.pt")
    with pytest.raises(ValueError, match=r"list\.pt: holds a list, not a state dict"):
        read_checkpoint(tmp_path / "list.pt")
    with pytest.raises(ValueError, match="the checkpoint is not a state dict: epoch, name are not tensors"):
        tensors_in({"epoch": 3, "name": "x", "a": torch.ones(2)})


@pytest.mark.parametrize("around", ["module.", "model.", "_orig_mod.", "net.", "model.module._orig_mod."])
def test_names_of_modules_around_the_model_are_taken_off(around):
    state = {"net.layers.0.weight": torch.ones(2), "net.layers.1.weight": torch.zeros(2)}
    assert tensors_in({f"{around}{name}": tensor for name, tensor in state.items()}) == state
    assert set(tensors_in({f"{around}a": torch.ones(2), "b": torch.ones(2)})) == {f"{around}a", "b"}


@pytest.mark.parametrize("wrapper", ["model", "state_dict", "model_state_dict"])
def test_a_state_dict_inside_a_checkpoint(wrapper):
    inside = {"a": torch.ones(2)}
    assert tensors_in({wrapper: inside, "epoch": 3}) == inside
    assert tensors_in(inside) == inside


def test_many_names_that_do_not_fit_are_listed_in_short():
    with pytest.raises(ValueError, match=r"lucidrains/linformer model: missing .* and \d+ more; unknown c, d$"):
        from_lucidrains({"c": torch.ones(2), "d": torch.ones(2)}, num_heads=1)
