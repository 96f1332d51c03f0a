"""``python -m torch_linformer.cli``."""

from torch_linformer.cli import main

main()
