"""Rows under way that belong to a snapshot, as files of the checkpoint.

A file is one line ``kafka-eos frames 1``, then frames of ``wire``, each after its length (four bytes, big endian). It
says nothing about subtasks: whoever restores it, at whatever parallelism, takes the rows that are routed to it.
Rule: frames of one channel stay in order, in one file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from kafka_eos.errors import ConfigError, CorruptCheckpoint
from kafka_eos.interfaces import CheckpointStorage, InFlight, ListCodec

_MAGIC = b"kafka-eos frames 1\n"
_LENGTH = 4


def store(
    storage: CheckpointStorage,
    scratch: Path,
    exchange: str,
    codec: ListCodec[Any],
    frames: Iterable[bytes],
    overtaken: bool,
) -> InFlight:
    """Upload the frames of one exchange, as one subtask saw them. ``scratch`` is a file name to use meanwhile."""
    try:
        with scratch.open("xb") as target:
            target.write(_MAGIC)
            for frame in frames:
                target.write(len(frame).to_bytes(_LENGTH, "big") + frame)
        scratch.chmod(0o600)  # a private file is linked, not copied
        file = storage.upload(scratch, scratch.name)
    finally:
        scratch.unlink(missing_ok=True)
    return InFlight(exchange, {"name": codec.name, "schema": codec.schema}, (file,), overtaken)


def load(storage: CheckpointStorage, scratch: Path, kept: Sequence[InFlight]) -> Iterator[tuple[str, bytes]]:
    """All frames, with the name of their exchange. CorruptCheckpoint names a file that is not what was stored."""
    for part in kept:
        for file in part.files:
            try:
                storage.fetch(file, scratch)
                for frame in _frames(scratch.read_bytes(), file.name):
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


def _frames(data: bytes, name: str) -> Iterator[bytes]:
    if not data.startswith(_MAGIC):
        raise ConfigError(f"{name}: not in a format that this kafka-eos reads. Upgrade kafka-eos.")
    at = len(_MAGIC)
    while at < len(data):
        size = int.from_bytes(data[at : at + _LENGTH], "big")
        at += _LENGTH
        if at + size > len(data):
            raise CorruptCheckpoint(f"{name}: a frame of rows is cut off")
        yield data[at : at + size]
        at += size
