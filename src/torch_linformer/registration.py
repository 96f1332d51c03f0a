"""Registering our models with transformers without importing transformers first."""

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

AUTO_CONFIG = "transformers.models.auto.configuration_auto"  # no Auto class is there without this module


def register_models() -> None:
    """Register now if transformers' Auto classes are imported, or else as soon as they are."""
    if AUTO_CONFIG in sys.modules:
        _import_models()
    else:
        sys.meta_path.insert(0, _UntilAutoClasses())


def _import_models() -> None:
    try:
        for room in ("torch_linformer.models", "torch_linformer.encoders"):
            importlib.import_module(room)
    except ImportError as error:  # of a release of transformers, say, that our models do not fit
        warnings.warn(
            f'transformers will not know linformer models ({error}): pip install "torch-linformer[hf]"', stacklevel=2
        )


# transformers has no entry point for packages that add models: each registers its own when it is imported. Importing
# torch_linformer must not import transformers, which takes seconds, and a script may import either of them first. So a
# finder waits for the Auto classes, acts once, and takes itself off the path: nothing smaller served both orders.
class _UntilAutoClasses(MetaPathFinder):
    """Watches transformers' modules being imported, and registers when an import that brought the Auto classes is over.

    Not sooner: they are often imported halfway through a module that our models need.
    """

    def __init__(self) -> None:
        self.running = 0  # imports of transformers' modules that have begun and not ended

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "transformers":
            return None
        specs = (finder.find_spec(fullname, path, target) for finder in sys.meta_path if finder is not self)
        spec = next((spec for spec in specs if spec is not None), None)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: object) -> None:
        execute = loader.exec_module  # type: ignore[attr-defined]

        def execute_and_register(module: ModuleType) -> None:
            self.running += 1
            try:
                execute(module)
            finally:
                self.running -= 1
            if not self.running and AUTO_CONFIG in sys.modules and self in sys.meta_path:
                sys.meta_path.remove(self)
                _import_models()

        loader.exec_module = execute_and_register  # type: ignore[attr-defined]
