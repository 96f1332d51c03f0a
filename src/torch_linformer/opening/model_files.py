"""Files beside a model, in its folder or on the hub."""

from pathlib import Path

from huggingface_hub import hf_hub_download
from huggingface_hub.errors import EntryNotFoundError


def model_file(source: str, name: str) -> Path | None:
    """A file beside a model, in its folder or on the hub; None where there is none."""
    if Path(source).is_dir():
        here = Path(source) / name
        return here if here.is_file() else None
    try:
        return Path(hf_hub_download(source, name))
    except EntryNotFoundError:  # not in the repository; or, offline, not in the cache
        return None
