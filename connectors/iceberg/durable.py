"""Files of an Iceberg table's metadata in a directory, synced before anybody hears of them.

The library writes metadata, manifests and lists of these through its ``FileIO``, and its own syncs none of them: after
a power cut a catalog might name files that are empty.
Rule: a file that is closed is durable, and so is its name. Object stores are as the library has them.
"""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlparse

from pyiceberg.io import OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from kafka_eos.connectors.files import disk

_LOCAL: Final = ("", "file")


def local_path(location: str) -> Path | None:
    """The path of a file in a directory of this machine; None for one elsewhere."""
    parsed = urlparse(location)
    if parsed.scheme not in _LOCAL or parsed.netloc not in ("", "localhost"):
        return None
    return Path(os.path.abspath(parsed.path if parsed.scheme == "" else unquote(parsed.path)))


class DurableFileIO(PyArrowFileIO):
    """What the library uses for a table's files."""

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]  # what it promises is its own class
        path = local_path(location)
        return super().new_output(location) if path is None else _DurableFile(location, path, super().new_input)


class _DurableFile(OutputFile):
    def __init__(self, location: str, path: Path, opened: Any) -> None:
        super().__init__(location)
        self._path, self._opened = path, opened

    def __len__(self) -> int:
        return self._path.stat().st_size

    def exists(self) -> bool:
        return self._path.exists()

    def to_input_file(self) -> Any:
        return self._opened(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        disk.create_directory(self._path.parent)
        return _Synced(self._path, "w" if overwrite else "x")


class _Synced(io.BufferedWriter):
    """A new file."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._directory = path.parent

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            disk.sync_directory(self._directory)
