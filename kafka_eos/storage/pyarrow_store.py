"""A file system that pyarrow reaches (HDFS, and others with atomic rename) as a ``remote_storage.BlobStore``.

Each object is a directory with one file. It is written under ``.staged`` and renamed to its name. A plain file would
not work: pyarrow's ``move`` replaces files, on HDFS by deleting the old one first. A directory is never replaced: the
rename fails, or (HDFS) moves the directory into the existing one, where it is found and moved back.
Rule: only a rename creates or removes a name. The result "absent" of ``get_file_info`` for a single path is never
trusted: on HDFS it may also mean "no connection". Listings raise instead.
"""

from __future__ import annotations

import errno
import secrets
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.limits import LIMITS

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

STAGED = ".staged"
_CONTENT = "content"


def connect(uri: str) -> PyArrowStore:
    """Return the store at an address that pyarrow supports. Raise ConfigError for other addresses, or without
    pyarrow.
    """
    try:
        import pyarrow
        from pyarrow.fs import FileSystem
    except ImportError as error:
        raise ConfigError(f"checkpoints in {uri} need pyarrow: pip install 'kafka-eos[spark]'") from error
    try:
        filesystem, root = FileSystem.from_uri(uri)
    except (pyarrow.ArrowException, ValueError, OSError) as error:
        raise ConfigError(f"checkpoint_dir {uri}: {error}") from error
    return PyArrowStore(filesystem, root)


class PyArrowStore:
    """The directory ``root`` of a file system. Directories are created by the first write."""

    def __init__(self, filesystem: FileSystem, root: str) -> None:
        self._files, self._root = filesystem, root.rstrip("/")

    def create(self, name: str, data: bytes) -> None:
        self._place(name, [data])

    def put(self, name: str, chunks: Iterable[bytes], size: int) -> None:
        with suppress(FileExistsError):  # another process stored the same content a moment ago
            self._place(name, chunks)

    def read(self, name: str) -> Iterator[bytes]:
        with self._files.open_input_stream(f"{self._path(name)}/{_CONTENT}") as stream:
            while piece := stream.read(LIMITS.copied_bytes):
                yield piece

    def read_part(self, name: str, start: int, size: int) -> bytes:
        with self._files.open_input_file(f"{self._path(name)}/{_CONTENT}") as file:
            return bytes(file.read_at(size, start))

    def size(self, name: str) -> int | None:
        found = self._files.get_file_info(f"{self._path(name)}/{_CONTENT}")
        return found.size if found.is_file else None

    def list(self, directory: str) -> Sequence[str]:
        return self._entries(self._path(directory))

    def directories(self) -> Sequence[str]:
        from pyarrow.fs import FileSelector

        try:
            found = self._files.get_file_info(FileSelector(self._root))
        except FileNotFoundError:
            return []
        return [info.base_name for info in found if not info.is_file]

    def delete(self, names: Sequence[str]) -> None:
        for name in names:
            self._delete(name)

    def _delete(self, name: str) -> None:
        directory, _, plain = self._path(name).rpartition("/")
        if plain not in self._entries(directory):
            return
        away = self._temporary()
        self._files.create_dir(f"{self._root}/{STAGED}")
        try:
            self._files.move(self._path(name), away)
        except OSError:
            if plain in self._entries(directory):
                raise
        else:
            self._files.delete_dir(away)

    def remove_debris(self) -> None:
        for name in self._entries(f"{self._root}/{STAGED}"):
            self._files.delete_dir(f"{self._root}/{STAGED}/{name}")

    def _place(self, name: str, chunks: Iterable[bytes]) -> None:
        staged, target = self._temporary(), self._path(name)
        self._files.create_dir(target.rpartition("/")[0])
        self._files.create_dir(staged)
        try:
            with self._files.open_output_stream(f"{staged}/{_CONTENT}") as stream:
                for chunk in chunks:
                    stream.write(chunk)
        except BaseException:
            self._files.delete_dir(staged)
            raise
        self._rename(staged, target)

    def _rename(self, staged: str, target: str) -> None:
        """Give a staged directory its name. Raise FileExistsError if the name is taken, OSError if the outcome is
        unknown."""
        failure: OSError | None = None
        try:
            self._files.move(staged, target)
        except OSError as error:
            failure = error
        still_staged = staged.rpartition("/")[2] in self._entries(f"{self._root}/{STAGED}")
        found = self._entries(target)
        inside = staged.rpartition("/")[2] in found
        if failure is not None and not still_staged and not inside:
            raise failure  # removed by a supervisor that took over the job and may have published the same name since
        if _CONTENT in found and (still_staged or inside):
            self._files.delete_dir(staged if still_staged else f"{target}/{staged.rpartition('/')[2]}")
            raise FileExistsError(errno.EEXIST, "exists", target) from failure
        if _CONTENT not in found:
            raise failure or OSError(errno.EIO, "missing after a confirmed rename", target)

    def _entries(self, directory: str) -> Sequence[str]:
        from pyarrow.fs import FileSelector

        try:
            return [info.base_name for info in self._files.get_file_info(FileSelector(directory))]
        except FileNotFoundError:
            return []

    def _temporary(self) -> str:
        return f"{self._root}/{STAGED}/{secrets.token_hex(16)}"

    def _path(self, name: str) -> str:
        return f"{self._root}/{name}"
