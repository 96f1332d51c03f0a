"""Check the types of the documentation's Python: mypy --strict and pyright on README.md, docs/ and docstring examples.

The blocks of a page are one module, as a reader types them one after the other; a docstring is another. What is wrong
is told by the line of the page or of the source file.
"""

import ast
import doctest
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SOURCES = sorted((ROOT / "src").rglob("*.py"))
# Options that are misspelled; where that is no error, --strict calls the comments unused.
MISSPELLED = """
import torch_linformer as tl
tl.train("a.csv", minuets=3)  # type: ignore[call-arg]
tl.adapt("a", "b.csv", minuets=3)  # type: ignore[call-arg]
tl.evaluate("a", "b.csv", minuets=3)  # type: ignore[call-arg]
"""
# As pyright does by itself. What a page imports beside this package need not be installed, torch.distributed does not
# say that its stores are public, and of our names mypy says it.
PYRIGHT = {"typeCheckingMode": "standard", "reportMissingImports": False, "reportPrivateImportUsage": False}


def blocks_of_page(text: str) -> Iterator[tuple[int, str]]:
    """Every block of Python on a page, with the number of its first line, from 0."""
    for block in re.finditer(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, block.start(1)), block[1]


def examples_of_source(text: str) -> Iterator[list[tuple[int, str]]]:
    """The examples of every docstring of a module that has some, with the numbers of their first lines."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef)
    for node in (node for node in ast.walk(ast.parse(text)) if isinstance(node, kinds)):
        docstring = ast.get_docstring(node, clean=False)
        if docstring and (examples := doctest.DocTestParser().get_examples(docstring)):
            first = node.body[0].lineno - 1
            yield [(first + example.lineno, example.source) for example in examples]


def modules() -> dict[str, str]:
    """The modules by the places that they are of; each line stands where it stands there."""
    pieces = {page.relative_to(ROOT).as_posix(): [*blocks_of_page(page.read_text("utf-8"))] for page in PAGES}
    for path in SOURCES:
        for examples in examples_of_source(path.read_text("utf-8")):
            pieces[f"{path.relative_to(ROOT).as_posix()}:{examples[0][0] + 1}"] = examples
    texts = {}
    for place, blocks in pieces.items():
        lines: list[str] = []
        for first, block in blocks:
            lines += [""] * (first - len(lines))
            lines += block.splitlines()
        texts[place] = "\n".join(lines) + "\n"
    return {place: text for place, text in texts.items() if text.strip()} | {"tools/check_snippets.py": MISSPELLED}


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="snippets-") as name:
        folder, places = Path(name), {}
        for place, text in modules().items():
            module = re.sub(r"\W", "_", place)
            (folder / f"{module}.py").write_text(text, encoding="utf-8")
            places[module] = place.partition(":")[0]
        (folder / "pyrightconfig.json").write_text(json.dumps(PYRIGHT), encoding="utf-8")
        files = sorted(map(str, folder.glob("*.py")))
        failed = False
        for command in (
            ["mypy", "--strict", "--allow-untyped-calls", *files],  # torch does not type all of its methods
            ["basedpyright", "--level", "error", "--pythonpath", sys.executable, "--project", name],
        ):
            done = subprocess.run(
                [sys.executable, "-m", *command], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            if done.returncode != 0:
                failed = True
                told = re.sub(r"\S*?(\w+)\.py(?=:\d)", lambda match: places.get(match[1], match[0]), done.stdout)
                print(f"{command[0]}:\n{told}")
    if failed:
        raise SystemExit(1)
    print(f"{len(places)} pages and docstrings: no errors of types")


if __name__ == "__main__":
    main()
