"""Whether a tag may be released: one line for each reason against it.

python tools/tag_check.py v0.1.0
"""

import re
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def reasons_against(tag: str, root: Path = ROOT) -> list[str]:
    """What is wrong or missing: the version, its section in the changelog, the citation, the project's addresses."""
    texts = {
        name: (root / name).read_text(encoding="utf-8")
        for name in ("src/torch_linformer/__init__.py", "CHANGELOG.md", "CITATION.cff", "pyproject.toml")
    }
    version = re.search(r'^__version__ = "(.+)"$', texts["src/torch_linformer/__init__.py"], re.MULTILINE)[1]
    project = tomllib.loads(texts["pyproject.toml"])["project"]
    found = []
    if tag != f"v{version}":
        found.append(
            f"the tag is {tag}, and the version in src/torch_linformer/__init__.py is {version}: tag v{version}"
        )
    if not re.search(rf"^## \[{re.escape(version)}\] - \d{{4}}-\d\d-\d\d$", texts["CHANGELOG.md"], re.MULTILINE):
        found.append(f"CHANGELOG.md has no line '## [{version}] - YEAR-MONTH-DAY'")
    if f"\nversion: {version}\n" not in texts["CITATION.cff"]:
        found.append(f"CITATION.cff has no line 'version: {version}'")
    for name in ("Repository", "Issues", "Changelog"):
        if name not in project.get("urls", {}):
            found.append(f"pyproject.toml has no address of the {name} in [project.urls]")
    if "\nrepository-code: " not in texts["CITATION.cff"]:
        found.append("CITATION.cff has no line 'repository-code: ADDRESS'")
    return found


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: python tools/tag_check.py TAG")
    found = reasons_against(sys.argv[1])
    print("\n".join(found or [f"{sys.argv[1]} may be released"]))
    sys.exit(1 if found else 0)
