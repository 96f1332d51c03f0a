"""Texts in files that a table names."""

import os
from pathlib import Path
from typing import NamedTuple

from torch_linformer.data.reading.data_options import DataOptions
from torch_linformer.data.reading.plain_texts import whole_text
from torch_linformer.data.reading.rows import ReadReport
from torch_linformer.errors import InputError

_LONGEST_PATH = 255


class TextFolder(NamedTuple):
    """A folder with the texts of which a table names the files."""

    path: Path
    options: DataOptions

    def read(self, name: str, where: str) -> str:
        """The text of a file in it.

        Raises:
            InputError: there is no such file, or it lies elsewhere.
        """
        file = self.path / name
        if not self.holds(name):
            raise InputError(f"{where}: no file {name!r} in {self.path}; --text-folder names another folder")
        return str(whole_text(file, self.options, ReadReport()).values["text"])

    def holds(self, name: object) -> bool:
        """Whether a cell names a file in it; a table may not reach what lies outside."""
        if not isinstance(name, str) or not 0 < len(name) <= _LONGEST_PATH or "\0" in name:
            return False
        file = self.path / name
        # Not `Path.is_file`, to which a name that is too long is an error.
        return os.path.isfile(file) and file.resolve().is_relative_to(self.path.resolve())

    def state(self, name: object) -> tuple[int, int] | None:
        """Size and time of the file that a cell names, if it names one; another file has another state."""
        if not isinstance(name, str) or not self.holds(name):
            return None
        state = (self.path / name).stat()
        return state.st_size, state.st_mtime_ns
