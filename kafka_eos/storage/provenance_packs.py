"""Provenance packs: many provenance files in one object; their format, and which files are packed together.

    kafka-eos provenance pack <version>       one line
    SHA-256 and content of each file          msgpack, deflated; its bytes and their SHA-256 are in the pack's name

Files of one job are similar, so a pack takes a quarter to a half of their bytes. Packs are packed again until they have
``Limits.pack_bytes`` bytes: the number of objects then grows with their bytes, and no longer with the epochs.

Pure. Rule: the same files give the same pack, whichever process creates it: its name depends neither on the compression
nor on the objects that it was created from. So of two concurrent packers neither deletes the only object with a file.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from kafka_eos.core.ids import Epoch
from kafka_eos.core.inflation import ZLIB, inflate
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage.object_names import ProvenanceFile, ProvenancePack

_MAGIC: Final = b"kafka-eos provenance pack 1\n"
_QUICKLY: Final = 1

F = TypeVar("F", ProvenanceFile, ProvenancePack)


def groups(files: Iterable[F]) -> list[tuple[F, ...]]:
    """Return the groups to pack together, oldest first: ``files_per_pack`` files, or fewer if they have
    ``pack_bytes``.
    """
    found: list[tuple[F, ...]] = []
    group: list[F] = []
    for file in sorted(file for file in files if file.size < LIMITS.pack_bytes):
        group.append(file)
        if len(group) == LIMITS.files_per_pack or sum(each.size for each in group) >= LIMITS.pack_bytes:
            found.append(tuple(group))
            group = []
    return found


def span(files: Sequence[ProvenanceFile | ProvenancePack]) -> tuple[Epoch, Epoch]:
    """Return the first and the last epoch of these files."""
    ends = [(file.epoch, file.epoch) if isinstance(file, ProvenanceFile) else (file.first, file.last) for file in files]
    return min(first for first, _ in ends), max(last for _, last in ends)


def encode(first: Epoch, last: Epoch, files: Mapping[str, bytes]) -> tuple[ProvenancePack, bytes]:
    """Return a pack of files, given by SHA-256, and its content."""
    body = msgspec.msgpack.encode([(bytes.fromhex(sha256), files[sha256]) for sha256 in sorted(files)])
    return ProvenancePack(first, last, len(body), hashlib.sha256(body).hexdigest()), _MAGIC + zlib.compress(
        body, _QUICKLY
    )


def decode(pack: ProvenancePack, data: bytes) -> dict[str, bytes]:
    """Return the files that ``encode`` packed. Raise ValueError for other content or a newer version."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"it begins with {data[:40]!r}, not with {_MAGIC!r}")
    body = inflate(data[len(_MAGIC) :], pack.size, ZLIB)
    if (len(body), hashlib.sha256(body).hexdigest()) != (pack.size, pack.sha256):
        raise ValueError("the content does not match its checksum")
    return {sha256.hex(): content for sha256, content in msgspec.msgpack.decode(body, type=list[tuple[bytes, bytes]])}
