"""What a measurement was made on: the machine, and the versions of what ran."""

import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from torch_linformer.reporting.tables import format_bytes


def machine_facts(device: str) -> dict[str, str]:
    """Name and value of what the speed of a computation on ``device`` depends on, as readers want to see it."""
    import torch  # not above: options of a command are checked against the memory before torch is needed

    return {
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
        "processor": _processor(),
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
    """The memory that new work can have without swapping; all there is where the kernel does not say."""
    table = Path("/proc/meminfo")
    lines = table.read_text(encoding="utf-8").splitlines() if table.exists() else []
    entries = (line.partition(":") for line in lines)
    return next((int(value.split()[0]) * 1024 for key, _, value in entries if key == "MemAvailable"), memory_bytes())


def package_versions(names: Sequence[str]) -> dict[str, str]:
    """Versions of those of the named packages that are installed, by the name on PyPI."""
    found = {}
    for name in names:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def git_commit(file: str) -> str | None:
    """The commit of the checkout that ``file`` is part of, ``-dirty`` if something in it was changed; else None."""
    git = shutil.which("git")
    if git is None:
        return None

    def ask(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [git, "-C", str(Path(file).parent), *arguments]
        return subprocess.run(command, capture_output=True, text=True)

    # An environment may lie inside somebody else's checkout, which does not track what is installed there.
    if ask("ls-files", "--error-unmatch", Path(file).name).returncode:
        return None
    described = ask("describe", "--always", "--dirty", "--abbrev=12", "--exclude=*")
    return described.stdout.strip() or None


def process_bytes(name: str) -> int | None:
    """Bytes of this process under a name of ``/proc/self/status``: ``VmHWM`` is the peak of its resident set.

    Not ``ru_maxrss``: on Linux that begins at the resident set of the process that started this one. None where the
    kernel keeps no such table.
    """
    table = Path("/proc/self/status")
    if not table.exists():
        return None
    entries = (line.partition(":") for line in table.read_text(encoding="utf-8").splitlines())
    return next((int(value.split()[0]) * 1024 for key, _, value in entries if key == name), None)


def _processor() -> str:
    """The CPU's model, which ``platform`` does not know on Linux."""
    table = Path("/proc/cpuinfo")
    lines = table.read_text(encoding="utf-8", errors="replace").splitlines() if table.exists() else []
    models = (value.strip() for key, _, value in (line.partition(":") for line in lines) if key.strip() == "model name")
    return next(models, platform.processor() or platform.machine())
