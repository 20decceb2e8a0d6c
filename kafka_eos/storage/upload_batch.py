"""The files that a worker stores in one epoch: small ones together in packs, each of which is one request to the store.

Most epochs change little of each operator's state, so most files are small. Stored one by one, their number per epoch
would grow with operators and workers; a store charges for each request, and answers it in tens of milliseconds.
Rule: a pack is an object like any other: named by its content, complete or absent, deleted when no manifest needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from msgspec.structs import replace

from kafka_eos.abc.storage import CheckpointStorage, FileRef, PackedAt
from kafka_eos.core.errors import CorruptCheckpoint
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage import local_files as files
from kafka_eos.storage import object_names as paths

_SmallFile = tuple[FileRef, bytes]


class UploadBatch:
    """Files of one epoch that are stored together. Create one instance per epoch; see ``abc.FileBatch``."""

    def __init__(self, storage: CheckpointStorage) -> None:
        self._storage = storage
        self._small: list[_SmallFile] = []
        self._stored: list[FileRef] = []
        """The references to the small files, in their order."""

    def add(self, path: Path) -> Callable[[], FileRef]:
        """Add as ``FileBatch`` does: a large file is stored at once, and a small one is kept in memory until then."""
        if path.stat().st_size > LIMITS.small_file_bytes:
            ref = self._storage.upload(path, path.name)
            return lambda: ref
        with files.open_file(path) as fd:
            content = files.read_all(fd)
        number = len(self._small)
        self._small.append(
            (FileRef(paths.ensure_plain_name(path.name), hashlib.sha256(content).hexdigest(), len(content)), content)
        )
        return lambda: self._stored[number]

    def store(self) -> None:
        """Store the small files. Raises OSError if they cannot be stored."""
        for pack in _divide(self._small):
            self._stored += self._store_pack(pack)

    def _store_pack(self, pack: Sequence[_SmallFile]) -> Iterator[FileRef]:
        content = b"".join(part for _, part in pack)
        sha256 = hashlib.sha256(content).hexdigest()
        name = paths.shared_name(sha256)
        try:
            self._storage.publish(name, content)
        except FileExistsError:
            if self._storage.read(name) != content:
                raise CorruptCheckpoint(f"{name}: the content does not match its checksum") from None
        start = 0
        for ref, part in pack:
            yield ref if len(pack) == 1 else replace(ref, pack=PackedAt(sha256, len(content), start))
            start += len(part)


def _divide(small: Iterable[_SmallFile]) -> Iterator[list[_SmallFile]]:
    """Yield the files of each pack."""
    pack: list[_SmallFile] = []
    size = 0
    for file in small:
        size += file[0].size
        if pack and size > LIMITS.state_pack_bytes:
            yield pack
            pack, size = [], file[0].size
        pack.append(file)
    if pack:
        yield pack
