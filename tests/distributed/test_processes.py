import pytest

from torch_linformer.distributed import processes
from torch_linformer.errors import InputError


def test_rows_that_cannot_be_shared(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "3")
    with pytest.raises(InputError, match="--batch-size 8 cannot be shared by 3 processes: take a multiple of 3"):
        processes.join("cpu", 8)
    with pytest.raises(InputError, match="--device mps: 3 processes train together on a CPU or on CUDA devices only"):
        processes.join("mps", 9)
    with pytest.raises(
        InputError, match=r"--context-parallel 2 .* there are 3: torchrun --nproc-per-node 2 -m torch_l"
    ):
        processes.join("cpu", 9, context_parallel=2)
    monkeypatch.setenv("WORLD_SIZE", "6")
    with pytest.raises(InputError, match="9 cannot be shared by 2 sets of 3 processes: take a multiple of 2"):
        processes.join("cpu", 9, context_parallel=3)
    monkeypatch.setenv("WORLD_SIZE", "1")
    with pytest.raises(InputError, match=r"--fsdp shares .* there is 1: torchrun --nproc-per-node 2 .* train --fsdp"):
        processes.join("cpu", 9, fsdp=True)
    with pytest.raises(InputError, match=r"torchrun --nproc-per-node 2 -m torch_linformer.cli adapt --fsdp"):
        processes.join("cpu", 9, fsdp=True, command="adapt")
    with pytest.raises(InputError, match="2 is computed by 2 processes, or a multiple of them, and there is 1: "):
        processes.join("cpu", 9, context_parallel=2)


def test_one_process_is_all():
    processes.join("cpu", 8)
    assert (processes.count(), processes.rank(), processes.is_main()) == (1, 0, True)
    assert processes.on_main(lambda: 5) == 5 and processes.gathered(5) == [5]
