"""The README as PyPI shows it: a relative link is followed in the repository, whose address [project.urls] has."""

import re
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_IMAGE = re.compile(r"^!\[[^\]]*\]\((?!https:)([^)]+)\)\n+", re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\((?!https:)([^)]+)\)")


class ReadmeHook(MetadataHookInterface):
    """Until the project has an address, relative links are plain text there, and pictures are left out."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the field ``readme``."""
        text = (Path(self.root) / "README.md").read_text(encoding="utf-8")
        address = metadata.get("urls", {}).get("Repository")
        if address is None:
            text = _LINK.sub(r"\1", _IMAGE.sub("", text))
        else:
            text = re.sub(r"(!\[[^\]]*\]\()(?!https:)", rf"\g<1>{address}/raw/main/", text)
            text = re.sub(r"(\]\()(?!https:)", rf"\g<1>{address}/blob/main/", text)
        metadata["readme"] = {"content-type": "text/markdown", "text": text}
