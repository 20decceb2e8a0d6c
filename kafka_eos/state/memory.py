"""Rows in a dict; a checkpoint is one file a state, with all of its rows.

File: one line ``kafka-eos rows 1``, then blocks: four bytes length, big endian, and a MessagePack list of
key, value, key, value … For state that fits in memory several times over: every checkpoint writes all of it.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import msgspec

from kafka_eos.errors import ConfigError, CorruptCheckpoint
from kafka_eos.ids import Epoch
from kafka_eos.interfaces import CheckpointStorage, FileRef, StateHandle
from kafka_eos.state.rows import Row, Rows, UploadFiles

KIND = "memory"
_MAGIC = b"kafka-eos rows 1\n"
_SUFFIX = ".rows"
_BLOCK = 8192
"""Rows a block."""
_LENGTH = 4


class MemoryRows:
    """The rows of one state."""

    def __init__(self) -> None:
        self.data: dict[bytes, bytes] = {}

    def get(self, keys: list[bytes]) -> Sequence[bytes | None]:
        return list(map(self.data.get, keys))

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], deleted: Iterable[bytes]) -> None:
        self.data.update(zip(keys, values, strict=True))
        for key in deleted:
            self.data.pop(key, None)

    def scan(self) -> Iterator[Row]:
        return iter(list(self.data.items()))


class MemoryStore:
    """See ``rows.Store``. ``directory`` takes the files of a checkpoint until they are uploaded."""

    kind = KIND

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._states: dict[str, MemoryRows] = {}

    def states(self) -> Collection[str]:
        return self._states.keys()

    def rows(self, state: str) -> Rows:
        return self._states.setdefault(state, MemoryRows())

    def freeze(self, epoch: Epoch) -> UploadFiles:
        frozen = {state: rows.data.copy() for state, rows in self._states.items()}
        directory = self._directory / f"checkpoint-{epoch}"

        def upload(storage: CheckpointStorage) -> tuple[FileRef, ...]:
            directory.mkdir()
            try:
                return tuple(_upload(storage, directory / f"{state}{_SUFFIX}", rows) for state, rows in frozen.items())
            finally:
                shutil.rmtree(directory)

        return upload

    def close(self) -> None:
        self._states.clear()


def read_rows(handle: StateHandle, storage: CheckpointStorage, scratch: Path) -> Iterator[tuple[str, list[Row]]]:
    """All rows of a handle that a memory store made, in blocks, with the state that they belong to."""
    for file in handle.files:
        path = scratch / file.name
        storage.fetch(file, path)
        with path.open("rb") as source:
            for block in _read(source, file.name):
                yield file.name.removesuffix(_SUFFIX), block
        path.unlink()


def _upload(storage: CheckpointStorage, path: Path, rows: dict[bytes, bytes]) -> FileRef:
    with path.open("xb") as target:
        _write(target, rows)
    return storage.upload(path, path.name)


def _write(target: BinaryIO, rows: dict[bytes, bytes]) -> None:
    target.write(_MAGIC)
    items = iter(rows.items())
    while block := list(itertools.chain.from_iterable(itertools.islice(items, _BLOCK))):
        data = msgspec.msgpack.encode(block)
        target.write(len(data).to_bytes(_LENGTH, "big") + data)


def _read(source: BinaryIO, name: str) -> Iterator[list[Row]]:
    if source.readline(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{name}: not in a format that this kafka-eos reads. Upgrade kafka-eos.")
    while head := source.read(_LENGTH):
        data = source.read(int.from_bytes(head, "big"))
        try:
            block = msgspec.msgpack.decode(data, type=list[bytes])
        except msgspec.DecodeError as error:
            raise CorruptCheckpoint(f"{name}: a block of rows cannot be read: {error}") from error
        yield list(zip(block[::2], block[1::2], strict=True))
