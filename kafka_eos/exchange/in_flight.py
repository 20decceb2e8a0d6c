"""Rows under way that belong to a snapshot, as files of the checkpoint.

A file is one line ``kafka-eos frames 1``, then frames of ``wire``, each after its length (four bytes, big endian). It
says nothing about subtasks: whoever restores it, at whatever parallelism, takes the rows that are routed to it.
Rule: frames of one channel stay in order, in one file; one frame at a time is in memory, however many there are.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

from kafka_eos.errors import ConfigError, CorruptCheckpoint
from kafka_eos.interfaces import CheckpointStorage, InFlight, ListCodec

_MAGIC = b"kafka-eos frames 1\n"
_LENGTH = 4
_IN_MEMORY = 1 << 20
"""Bytes of a log that are collected before they go to the local disk."""


class Log:
    """A file of a checkpoint in the making: what one subtask has seen under way on one exchange so far.

    Rows go on being processed whatever becomes of their log. So a file that cannot be written (a full disk) does not
    show in ``add``, but in ``store``: without the log there is no checkpoint, and no more than that.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tail = bytearray(_MAGIC)
        """What is not in the file yet."""
        self._begun = False
        self._error: OSError | None = None

    def add(self, frame: bytes) -> None:
        self._tail += len(frame).to_bytes(_LENGTH, "big") + frame
        if len(self._tail) >= _IN_MEMORY:
            self._write()

    def store(self, storage: CheckpointStorage, exchange: str, codec: ListCodec[Any], overtaken: bool) -> InFlight:
        """Upload the whole log. OSError if it could not be written, or cannot be stored."""
        self._write()
        if self._error is not None:
            raise self._error
        self._path.chmod(0o600)  # a private file is linked, not copied
        file = storage.upload(self._path, self._path.name)
        return InFlight(exchange, {"name": codec.name, "schema": codec.schema}, (file,), overtaken)

    def drop(self) -> None:
        """It is stored, or its epoch was given up."""
        self._path.unlink(missing_ok=True)

    def _write(self) -> None:
        if self._error is None:
            try:
                with self._path.open("ab" if self._begun else "wb") as file:
                    file.write(self._tail)
                self._begun = True
            except OSError as error:
                self._error = error
        self._tail.clear()


def load(storage: CheckpointStorage, scratch: Path, kept: Sequence[InFlight]) -> Iterator[tuple[str, bytes]]:
    """All frames, with the name of their exchange. CorruptCheckpoint names a file that is not what was stored."""
    for part in kept:
        for file in part.files:
            try:
                storage.fetch(file, scratch)
                with scratch.open("rb") as data:
                    for frame in _frames(data, file.name):
                        yield part.exchange, frame
            finally:
                scratch.unlink(missing_ok=True)


def check_codec(kept: InFlight, codec: ListCodec[Any]) -> None:
    """ConfigError, with both shown, if rows under way were written by another codec than the plan declares now."""
    now = {"name": codec.name, "schema": codec.schema}
    if kept.codec != now:
        raise ConfigError(
            f"rows on their way through {kept.exchange!r} were written with {kept.codec}, and the pipeline declares "
            f"{now} there. Run the old version until it has stopped with a savepoint, which holds no such rows."
        )


def _frames(data: IO[bytes], name: str) -> Iterator[bytes]:
    if data.read(len(_MAGIC)) != _MAGIC:
        raise ConfigError(f"{name}: not in a format that this kafka-eos reads. Upgrade kafka-eos.")
    while head := data.read(_LENGTH):
        size = int.from_bytes(head, "big")
        frame = data.read(size)
        if len(head) < _LENGTH or len(frame) < size:
            raise CorruptCheckpoint(f"{name}: a frame of rows is cut off")
        yield frame
