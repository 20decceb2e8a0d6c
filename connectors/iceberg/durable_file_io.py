"""Files of an Iceberg table's metadata, durable before anybody hears of them.

The library writes metadata, manifests and lists of these through its ``FileIO``. Its own syncs no file: after a power
cut a catalog might name files that are empty. And it sends an object as an upload, of which a process that dies leaves
a part that nobody finds.
And it deletes what it has written for a commit that was refused. But the refusal may be that of a second sending, by
something between here and the catalog, and the first one was made: then the table names what is deleted.
Rule: a file that is closed is durable, and so is its name. An object is one request, so it is whole or not there. What
was written for a refused commit goes when the table was looked at again.
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
    """What the library uses for a table's files."""

    def __init__(self, properties: Mapping[str, str] = _NOTHING) -> None:
        super().__init__({**properties})
        self._refused = list[str]()

    def new_output(self, location: str) -> OutputFile:  # type: ignore[override]  # what it promises is its own class
        if (path := local_path(location)) is not None:
            return _DurableFile(location, super().new_input, lambda new: _synced(path, new))
        if (found := in_bucket(location, self.properties)) is not None:
            return _DurableFile(location, super().new_input, lambda _: _Object(*found))
        return super().new_output(location)

    def delete(self, location: str | InputFile | OutputFile) -> None:
        """Old metadata goes at once; see ``delete_refused``."""
        name = location if isinstance(location, str) else location.location
        if name.endswith(_METADATA):
            super().delete(name)
        else:
            self._refused.append(name)

    def delete_refused(self) -> None:
        """Manifests that were written for a commit which was not made."""
        refused, self._refused = self._refused, []
        for name in refused:
            super().delete(name)


class _DurableFile(OutputFile):
    """``begin`` gets whether the file has to be new, and gives what is written to."""

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


def _synced(path: Path, new: bool) -> _Synced:
    disk.create_directory(path.parent)
    return _Synced(path, "x" if new else "w")


class _Synced(io.BufferedWriter):
    """A file of a directory."""

    def __init__(self, path: Path, mode: str) -> None:
        super().__init__(io.FileIO(path, mode))
        self._directory = path.parent

    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            super().close()
            disk.sync_directory(self._directory)


class _Object(io.BytesIO):
    """An object of a bucket. The library gives each a name that no other has."""

    def __init__(self, bucket: Bucket, name: str) -> None:
        super().__init__()
        self._bucket, self._name = bucket, name

    def close(self) -> None:
        if not self.closed:
            content = self.getvalue()
            super().close()
            self._bucket.put(self._name, content)
