"""What the lessons share: the command, an embedder, and Python's own source files as documents."""

import ast
import subprocess
import sys
import sysconfig
from pathlib import Path

LEFT_OUT = {"site-packages", "test", "tests", "idle_test", "__pycache__"}


def linformer(*arguments):
    """Run the command ``linformer``, as it could be typed on a terminal; its screen is shown."""
    print("$ linformer", *arguments, flush=True)
    done = subprocess.run([sys.executable, "-m", "torch_linformer.cli", *map(str, arguments)])
    if done.returncode:  # it has said why, in one line
        sys.exit(done.returncode)


def source_files(*packages):
    """Path and text of the files of packages of the standard library, or of all of it."""
    top = Path(sysconfig.get_path("stdlib"))
    for file in sorted(top.rglob("*.py")):
        parts = file.relative_to(top).parts
        if not LEFT_OUT.intersection(parts) and (not packages or parts[0] in packages):
            yield "/".join(parts), file.read_text(encoding="utf-8", errors="replace")


def described_modules(number):
    """The longest modules that begin with a description: (name, the text without it, its first paragraph)."""
    found = []
    for name, text in source_files():
        try:
            body = ast.parse(text).body
        except SyntaxError:
            continue
        described = body and isinstance(body[0], ast.Expr) and isinstance(getattr(body[0].value, "value", None), str)
        if described and len(query := " ".join(body[0].value.value.strip().split("\n\n")[0].split())) >= 60:
            found.append((name, "\n".join(text.splitlines()[body[0].end_lineno :]), query))
    return sorted(found, key=lambda module: len(module[1]), reverse=True)[:number]
