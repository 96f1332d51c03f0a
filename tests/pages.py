"""The code that pages of the documentation show."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def blocks(page: str, *languages: str) -> list[tuple[str, str]]:
    """Language and code of the fences of a page, which is named by its path in the repository, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8")
    fences = re.findall(r"^```(\w+)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [(language, code) for language, code in fences if language in languages]


def python_blocks(page: str) -> list[str]:
    return [code for _, code in blocks(page, "python")]
