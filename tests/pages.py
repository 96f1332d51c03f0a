"""The Python that pages of the documentation show."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def python_blocks(page: str) -> list[str]:
    """The code of every ```python fence of a page, which is named by its path in the repository."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
