"""Facts to publish beside a measurement: the machine, and the versions of what ran."""

import os
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torch_linformer.reporting.tables import format_bytes


def machine_facts(device: str) -> dict[str, str]:
    """What the speed of a computation on ``device`` depends on, by name, written for readers."""
    import torch  # not above: options of a command are checked against the memory before torch is needed

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        # The CPU's model, which ``platform`` does not know on Linux.
        "processor": _entry("/proc/cpuinfo", "model name") or platform.processor() or platform.machine(),
        "cores": str(os.cpu_count()),
        "memory": format_bytes(memory_bytes()),
        "threads": str(torch.get_num_threads()),
        "system": platform.platform(),
        "Python": platform.python_version(),
    }


def memory_bytes() -> int:
    """The memory of this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def available_bytes() -> int:
    """The memory that new work can have without swapping; all of it where the kernel does not report it."""
    available = _bytes("/proc/meminfo", "MemAvailable")
    return memory_bytes() if available is None else available


def device_bytes(device: str) -> int:
    """The memory that new work can have on a device; that of the machine where torch does not report it."""
    import torch

    return torch.cuda.mem_get_info()[0] if device == "cuda" else available_bytes()


def package_versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of the named packages, by their names on PyPI; those that are not installed are left out."""
    versions = {}
    for name in names:
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            continue
    return versions


def machine_and_versions(device: str) -> dict[str, str]:
    """What a run was made on, and with."""
    return {**machine_facts(device), **package_versions(("torch", "transformers", "torch-linformer"))}


def process_bytes(name: str) -> int | None:
    """Bytes of this process under a name of ``/proc/self/status``: ``VmHWM`` is the peak of its resident set.

    Not ``ru_maxrss``, which on Linux starts at the resident set of the parent process. None without that table.
    """
    return _bytes("/proc/self/status", name)


def _entry(table: str, name: str) -> str | None:
    """The first value under a name in one of the kernel's tables; None where there is no table or no such name."""
    if not Path(table).exists():
        return None
    entries = (line.partition(":") for line in Path(table).read_text("utf-8", "replace").splitlines())
    return next((value.strip() for key, _, value in entries if key.strip() == name), None)


def _bytes(table: str, name: str) -> int | None:
    """An entry such as ``1024 kB`` in bytes."""
    entry = _entry(table, name)
    return None if entry is None else int(entry.split()[0]) * 1024
