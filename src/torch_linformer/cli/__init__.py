"""The ``linformer`` command, which needs the ``train`` extra."""

import gc
import importlib.util
import sys

from torch_linformer.cli.streams import open_closed_streams

REQUIRED = (
    *("typer", "rich", "transformers", "datasets", "accelerate"),
    *("sklearn", "seqeval", "jinja2", "matplotlib", "sacrebleu", "rouge_score"),
)


def main() -> None:
    """Entry point of the ``linformer`` command."""
    open_closed_streams()
    gc.set_threshold(100_000)  # looking for garbage among what is imported took a tenth of the start
    missing = [name for name in REQUIRED if not _is_installed(name)]
    if missing:
        message = f'linformer: {", ".join(missing)} not installed: pip install "torch-linformer[train]"'
        print(message, file=sys.stderr)
        raise SystemExit(2)
    from torch_linformer.cli.app import run

    run()


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:  # an import hook may refuse instead of finding nothing
        return False
