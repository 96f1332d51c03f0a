"""The architecture, enforced: which folder may import what, which names are public, what importing costs."""

import ast
import importlib
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "torch_linformer"

# Folder: the extras whose libraries it may import beside torch, and what of ours beside itself. Of ours it may import
# folders above it alone, and errors.py where the list names it.
WITHOUT_TORCH = {"choices", "errors"}  # modules below all layers
LAYERS: dict[str, tuple[set[str], str | None]] = {
    "functional": (set(), None),
    "nn": ({"choices", "functional"}, None),
    "encoders": ({"errors", "functional", "nn"}, "hf"),
    "models": ({"choices", "functional", "nn", "encoders"}, "hf"),
    "distributed": ({"errors", "functional"}, "train"),
    "reporting": (set(), "train"),
    "measuring": ({"choices", "functional", "nn", "reporting"}, "train"),
    "data": ({"errors", "reporting", "measuring"}, "train"),
    "tasks": ({"errors", "encoders", "models", "data"}, "train"),
    "opening": ({"errors", "encoders", "models", "distributed", "reporting", "measuring", "data", "tasks"}, "train"),
    "training": (
        {
            "choices",
            "errors",
            "encoders",
            "models",
            "distributed",
            "reporting",
            "measuring",
            "data",
            "tasks",
            "opening",
        },
        "train",
    ),
    "adaptation": (
        {
            "errors",
            "nn",
            "encoders",
            "models",
            "distributed",
            "reporting",
            "measuring",
            "data",
            "tasks",
            "opening",
            "training",
        },
        "train",
    ),
    # export and --engine ray alone need more than "train", and say so
    "inference": ({"errors", "encoders", "models", "reporting", "data", "tasks", "opening", "training"}, "onnx ray"),
    "serving": ({"errors", "data", "opening", "inference"}, "serve"),
    # the page alone needs more than "train"
    "analysis": (
        {"errors", "functional", "nn", "encoders", "models", "reporting", "measuring", "data", "opening"},
        "inspect",
    ),
    "api": (
        {"errors", "distributed", "reporting", "data", "tasks", "opening", "training", "adaptation", "inference"},
        "train",
    ),
    "cli": (
        {
            "errors",
            "encoders",
            "models",
            "distributed",
            "reporting",
            "data",
            "tasks",
            "opening",
            "training",
            "adaptation",
            "inference",
            "serving",
            "analysis",
            "api",
        },
        "train",
    ),
}

PUBLIC_NAMES = {
    "torch_linformer": [
        "Embedder",
        "LinformerCache",
        "LinformerConfig",
        "LinformerForCausalLM",
        "LinformerForConditionalGeneration",
        "LinformerForMaskedLM",
        "LinformerForMultipleChoice",
        "LinformerForQuestionAnswering",
        "LinformerForSequenceClassification",
        "LinformerForTokenClassification",
        "LinformerModel",
        "LinformerSeq2SeqConfig",
        "Predictor",
        "Run",
        "Searcher",
        "__version__",
        "adapt",
        "distill",
        "encoder_folder",
        "evaluate",
        "export",
        "inspect_text",
        "linearize",
        "train",
    ],
    "torch_linformer.adaptation": ["distill"],
    "torch_linformer.analysis": [
        "Spectrum",
        "inspect_text",
        "measure_spectrum",
        "plot_attention",
        "plot_projections",
        "plot_spectrum",
        "suggest_k",
    ],
    "torch_linformer.api": ["Run", "adapt", "evaluate", "export", "train"],
    "torch_linformer.distributed": ["SequencePiece", "context_parallel"],
    "torch_linformer.encoders": ["LinearOptions", "linearize"],
    "torch_linformer.functional": [
        "CausalSlots",
        "ExactTokens",
        "SlotWeights",
        "Slots",
        "Window",
        "causal_linformer_attention",
        "dynamic_slots",
        "implementations",
        "johnson_lindenstrauss_k",
        "linformer_attention",
        "project_sequence",
        "segment_slots",
        "slot_attention",
        "use_implementation",
    ],
    "torch_linformer.inference": ["Embedder", "Hit", "Predictor", "Searcher"],
    "torch_linformer.models": [
        "LinformerCache",
        "LinformerConfig",
        "LinformerForCausalLM",
        "LinformerForConditionalGeneration",
        "LinformerForMaskedLM",
        "LinformerForMultipleChoice",
        "LinformerForQuestionAnswering",
        "LinformerForSequenceClassification",
        "LinformerForTokenClassification",
        "LinformerModel",
        "LinformerPreTrainedModel",
        "LinformerSeq2SeqConfig",
    ],
    "torch_linformer.models.convert": [
        "from_fairseq",
        "from_linformer_pytorch",
        "from_lucidrains",
        "read_checkpoint",
    ],
    "torch_linformer.nn": [
        "DynamicProjection",
        "LinformerAttention",
        "LinformerDecoder",
        "LinformerDecoderLayer",
        "LinformerEncoder",
        "LinformerEncoderLayer",
        "Past",
        "SequenceProjection",
    ],
}


def imported_modules(source: str, package: str) -> Iterator[tuple[int, str]]:
    """Line and full dotted name of everything imported anywhere in `source`, a module of `package`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: -(node.level - 1) or None] if node.level else []
            start = ".".join([*base, *filter(None, [node.module])])
            for alias in node.names:
                yield node.lineno, f"{start}.{alias.name}"


def libraries_of_extra(extra: str | None) -> set[str]:
    """Import names of torch and of what `extra` declares in pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    libraries = {"torch"}
    for requirement in project["optional-dependencies"][extra] if extra else []:
        name, nested = re.match(r"([\w-]+)(?:\[(\w+)\])?", requirement).groups()
        libraries |= libraries_of_extra(nested) if name == "torch-linformer" else {name.replace("-", "_")}
    return {"sklearn" if name == "scikit_learn" else name for name in libraries}


def forbidden_imports(path: Path, layer: str) -> list[str]:
    """`file:line imports name` for each import in `path` that its layer does not allow."""
    layers_allowed, extra = LAYERS[layer]
    libraries = set(sys.stdlib_module_names).union(*map(libraries_of_extra, extra.split() if extra else [None]))
    at_top = {"", *PUBLIC_NAMES["torch_linformer"]} if "models" in layers_allowed else set()
    package = ".".join(path.relative_to(ROOT / "src").parent.parts)
    found = []
    for line, name in imported_modules(path.read_text(encoding="utf-8"), package):
        top, _, rest = name.partition(".")
        allowed = (
            rest.partition(".")[0] in {layer, "lazy"} | layers_allowed | at_top
            if top == "torch_linformer"
            else top in libraries
        )
        if not allowed:
            found.append(f"{path.relative_to(ROOT).as_posix()}:{line} imports {name}")
    return found


def test_every_folder_has_its_place_in_the_layers():
    folders = {path.parent.name for path in PACKAGE.glob("*/__init__.py")}
    assert folders <= set(LAYERS), f"give {sorted(folders - set(LAYERS))} a line in LAYERS"


def test_the_architecture_page_has_the_layers():
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \|.*\|([^|]+)\|$", page, re.MULTILINE)
    told = {folder: set(re.findall(r"`(\w+)`", names)) for folder, names in rows}
    assert told == {folder: allowed - WITHOUT_TORCH for folder, (allowed, _) in LAYERS.items()}


def test_layers_import_only_what_is_above_them():
    above = set(WITHOUT_TORCH)
    for layer, (allowed, _) in LAYERS.items():
        assert allowed <= above, f"{layer} stands above {sorted(allowed - above)}"
        above.add(layer)


def test_what_torch_keeps_to_itself_is_read_in_one_place():
    private = re.compile(r"torch\.(_(?!_)|ops\.)")
    readers = [path for path in sorted(PACKAGE.rglob("*.py")) if private.search(path.read_text(encoding="utf-8"))]
    assert readers == [PACKAGE / "functional" / "pytorch.py"]


def test_what_torch_is_doing_is_asked_by_the_mathematics_only():
    """Whether a graph is recorded, transforms are active, somebody counts operations."""
    questions = re.compile(r"is_compiling|is_tracing|records_a_graph|is_transformed|is_watched\(\)")
    others = [path for path in sorted((PACKAGE / "nn").rglob("*.py")) if questions.search(path.read_text("utf-8"))]
    assert others == []


def functions_of(*folders: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for folder in folders:
        for path in sorted((PACKAGE / folder).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.FunctionDef):
                    yield f"{path.relative_to(PACKAGE).as_posix()}: {node.name}", node


def test_functions_of_the_mathematics_take_ten_arguments_at_most():
    """Parts of a softmax, slots and calls are records."""
    counts = {name: len(node.args.args + node.args.kwonlyargs) for name, node in functions_of("functional")}
    assert {name: count for name, count in counts.items() if count > 10} == {}


def test_names_in_the_core_say_what_things_are():
    """No pronouns: what is found, given or near is something."""
    pronouns = re.compile(r"(found|each|given|wanted|near|there|most|some|every|others?|both|same|known|own|of_\w+)$")
    names = set()
    for place, node in functions_of("functional", "nn"):
        stored = [x.id for x in ast.walk(node) if isinstance(x, ast.Name) and isinstance(x.ctx, ast.Store)]
        names |= {f"{place}: {name}" for name in [*stored, *(x.arg for x in node.args.args)] if pronouns.match(name)}
    assert names == {"functional/dynamic.py: joined: other"}  # as Python calls the second operand


def test_no_two_classes_have_one_name():
    places: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(path.relative_to(PACKAGE).as_posix())
    assert {name: files for name, files in places.items() if len(files) > 1} == {}


def test_no_two_files_have_one_name():
    """But for an operation, its module and its model; and a command, which is named as what it runs."""
    mathematics, free = {"functional", "nn", "encoders", "models"}, {"cli"}
    rooms: dict[str, set[str]] = {}
    files: dict[str, list[str]] = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        place = path.relative_to(PACKAGE)
        if path.name != "__init__.py" and place.parts[0] not in free:
            rooms.setdefault(path.name, set()).add(place.parts[0])
            files.setdefault(path.name, []).append(place.as_posix())
    alike = {name: found for name, found in files.items() if len(found) > 1}
    assert {name: found for name, found in alike.items() if not rooms[name] <= mathematics} == {}


@pytest.mark.parametrize("layer", LAYERS)
def test_folder_imports_only_what_its_layer_allows(layer):
    files = sorted((PACKAGE / layer).rglob("*.py"))
    assert files, f"src/torch_linformer/{layer} has no modules"
    found = [line for path in files for line in forbidden_imports(path, layer)]
    assert not found, f"{layer} may import {LAYERS[layer]}, but:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import a.b as c", ["a.b"]),
        ("from a import b, c", ["a.b", "a.c"]),
        ("from . import b", ["torch_linformer.nn.b"]),
        ("from .b import c", ["torch_linformer.nn.b.c"]),
        ("from ..models import c", ["torch_linformer.models.c"]),
        ("def f():\n    from .. import training", ["torch_linformer.training"]),
    ],
)
def test_imports_are_read_however_they_are_written(source, expected):
    assert [name for _, name in imported_modules(source, "torch_linformer.nn")] == expected


@pytest.mark.parametrize(
    ("module", "kept_out"),
    [
        ("torch_linformer", ["torch", "transformers"]),
        ("torch_linformer.cli.app", ["torch", "numpy", "transformers", "datasets", "rich"]),
        ("torch_linformer.nn", ["transformers", "datasets", "matplotlib", "rich", "sklearn", "typer"]),
    ],
)
def test_importing_stays_light(module, kept_out):
    code = f"import {module}, sys; print([name for name in {kept_out} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]", f"import {module} brought these in"


@pytest.mark.parametrize("module", PUBLIC_NAMES)
def test_public_names_are_pinned(module):
    names = importlib.import_module(module).__all__
    assert list(names) == sorted(names), f"{module}.__all__ is not sorted"
    assert list(names) == PUBLIC_NAMES[module]
    shown = dir(importlib.import_module(module))  # by which shells complete names
    lazy = "__getattr__" in vars(importlib.import_module(module))
    assert shown == names if lazy else set(names) <= set(shown)


@pytest.mark.parametrize(
    ("module", "name"),
    [(module, name) for module, names in PUBLIC_NAMES.items() for name in names if name[0] != "_"],
)
def test_public_names_have_docstrings(module, name):
    thing = getattr(importlib.import_module(module), name)
    assert callable(thing)
    own = (thing.__doc__ or "").strip()
    assert own and not own.startswith(f"{name}("), f"{module}.{name} needs a docstring of its own"


def test_the_reference_has_every_public_name():
    documented = set()
    for page in sorted((ROOT / "docs" / "reference").glob("*.rst")):
        module = ""
        for directive, name in re.findall(r"^\.\. (\w+):: (\S+)$", page.read_text(encoding="utf-8"), re.MULTILINE):
            module = name if directive == "currentmodule" else module
            if directive in {"autoclass", "autofunction"}:
                home, _, own = (name if "." in name else f"{module}.{name}").rpartition(".")
                documented.add(getattr(importlib.import_module(home), own))
    public = [(module, name) for module, names in PUBLIC_NAMES.items() for name in names if name[0] != "_"]
    left_out = [pair for pair in public if getattr(importlib.import_module(pair[0]), pair[1]) not in documented]
    assert left_out == []


def test_unknown_names_at_the_top_are_attribute_errors():
    package = importlib.import_module("torch_linformer")
    with pytest.raises(AttributeError, match="module 'torch_linformer' has no attribute 'Linfromer'"):
        _ = package.Linfromer


@pytest.mark.skipif(
    not (ROOT / ".git").exists() or shutil.which("git") is None, reason="git says which files are the project's"
)
def test_no_file_names_a_place_outside_the_project():
    places = [r"[.][.]/{}".format("shared"), r"(?<![\w.])/{}/".format("work"), "file:///{}".format("opt")]
    outside = re.compile("|".join(places))
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in tracked.split("\0") if (ROOT / name).is_file()]
    assert "tests/test_structure.py" in names
    lines = [
        f"{name}:{number}"
        for name in names
        for number, line in enumerate((ROOT / name).read_text("utf-8", errors="ignore").splitlines(), start=1)
        if outside.search(line)
    ]
    assert not lines, lines
