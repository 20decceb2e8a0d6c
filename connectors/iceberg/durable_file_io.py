"""Files of an Iceberg table's metadata, durable before the catalog names them.

The library writes metadata, manifests and manifest lists through its ``FileIO``. Its default has three problems:
- It syncs no file: after a power cut a catalog might name files that are empty.
- It writes an object as an upload, of which a crashed process leaves parts that are never found.
- It deletes the files of a rejected commit. But a proxy may have sent the request twice, so that the rejection is of
  the
  second request and the first one succeeded: then the table names deleted files.

Rule: a closed file is durable, and so is its name. An object is written in one request, so it is complete or absent.
Files of a rejected commit are deleted after the table was read again.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from pyiceberg.io import InputFile, OutputFile, OutputStream
from pyiceberg.io.pyarrow import PyArrowFileIO

from kafka_eos.connectors.files import disk
from kafka_eos.connectors.files.s3.bucket import Bucket
from kafka_eos.connectors.iceberg.table_location import in_bucket, local_path

_METADATA: Final = ".metadata.json"
_NOTHING: Final[Mapping[str, str]] = {}


class DurableFileIO(PyArrowFileIO):
    """The ``FileIO`` that the library uses for a table's files."""

    def __init__(self, properties: Mapping[str, str] = _NOTHING) -> None:
        super().__init__({**properties})
        self._refused = list[str]()

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]  # the library declares its own class
        if (path := local_path(location)) is not None:
            return _DurableFile(location, super().new_input, lambda new: _synced(path, new))
        if (found := in_bucket(location, self.properties)) is not None:
            return _DurableFile(location, super().new_input, lambda _: _MetadataObject(*found))
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Delete old metadata at once, and other files later; see ``delete_refused``."""
        name = location if isinstance(location, str) else location.location
        if name.endswith(_METADATA):
            super().delete(name)
        else:
            self._refused.append(name)

    def delete_refused(self) -> None:
        """Delete manifests that were written for a commit that did not succeed."""
        refused, self._refused = self._refused, []
        for name in refused:
            super().delete(name)


class _DurableFile(OutputFile):
    """A new file. ``begin`` receives whether the file must be new, and returns the stream to write to."""

    def __init__(
        self, location: str, opened: Callable[[str], InputFile], begin: Callable[[bool], OutputStream]
    ) -> None:
        super().__init__(location)
        self._opened, self._begin = opened, begin

    def __len__(self) -> int:
        return len(self.to_input_file())

    def exists(self) -> bool:
        return self.to_input_file().exists()

    def to_input_file(self) -> InputFile:
        return self._opened(self.location)

    def create(self, overwrite: bool = False) -> OutputStream:
        return self._begin(not overwrite)


def _synced(path: Path, new: bool) -> _SyncedFile:
    disk.create_directory(path.parent)
    return _SyncedFile(path, "x" if new else "w")


class _SyncedFile(io.BufferedWriter):
    """A metadata file that is synced when it is closed."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._directory = path.parent

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            disk.sync_directory(self._directory)


class _MetadataObject(io.BytesIO):
    """A metadata object, sent in one request when it is closed. The library gives each a unique name."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        super().__init__()
        self._bucket, self._name = bucket, name

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._bucket.put(self._name, content)
