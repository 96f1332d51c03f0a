"""Transformers' own tests of models, as `make test-hf` fetched them, and what is known to fail."""

import importlib.util
import sys
from pathlib import Path

import pytest
import transformers

FOLDER = Path(__file__).resolve().parent
THEIR_MARKS = [
    "accelerate_tests",
    "flash_attn_3_test",
    "flash_attn_4_test",
    "flash_attn_test",
    "slow",
    "torch_compile_test",
]
SOURCES = FOLDER.parents[1] / ".transformers_cache" / transformers.__version__ / "tests"


def load(name, path, **options):
    """Import a file under a name."""
    spec = importlib.util.spec_from_file_location(name, path, **options)
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


if not (SOURCES / "__init__.py").exists():
    raise pytest.UsageError(f"no tests of transformers {transformers.__version__} here: run `make test-hf`")

load("transformers_tests", SOURCES / "__init__.py", submodule_search_locations=[str(SOURCES)])
# Theirs import these, which their sdist leaves out.
for stand_in, name in (
    ("common_fields", "utils.test_configuration_utils"),
    ("exporting", "exporters.test_export"),
    ("generation", "generation.test_utils"),
):
    package = f"transformers_tests.{name.partition('.')[0]}"
    sys.modules[package] = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(package, None))
    load(f"transformers_tests.{name}", FOLDER / f"{stand_in}.py")

KNOWN = load("known_failures", FOLDER / "known_failures.py")


def pytest_configure(config):
    """Theirs are marked with names of their own."""
    for mark in THEIR_MARKS:
        config.addinivalue_line("markers", f"{mark}: of transformers")


def pytest_collection_modifyitems(items):
    """Mark what is known to fail; each mark must still be true, and each name still be that of a test."""
    unused = set(KNOWN.EXPECTED)
    for item in items:
        for key in (f"{item.cls.__name__}::{item.name}", item.name):
            if key in KNOWN.EXPECTED:
                item.add_marker(pytest.mark.xfail(reason=KNOWN.EXPECTED[key], strict=True))
                unused.discard(key)
    classes = {item.cls.__name__ for item in items}
    if len(classes) == KNOWN.CLASSES and unused:
        raise pytest.UsageError(f"known_failures.py names no test: {', '.join(sorted(unused))}")
