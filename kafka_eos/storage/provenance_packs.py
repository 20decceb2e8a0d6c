"""Many files of provenance in one: what a pack is, and which files go into one together.

    kafka-eos provenance pack <version>       one line
    SHA-256 and content of each file          msgpack, deflated; its bytes and their SHA-256 are in the pack's name

Files of one job are much alike, so a pack has a quarter to a half of their bytes. Packs are packed again until they
have ``Limits.pack_bytes`` bytes: the number of files then grows with their bytes, and no longer with the epochs.

Pure. Rule: the same files are the same pack, whoever makes it: its name says nothing of how it was deflated, or of what
it was made from. So of two who pack at once neither deletes the only object that holds a file.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypeVar

import msgspec

from kafka_eos.core.ids import Epoch
from kafka_eos.core.limits import LIMITS
from kafka_eos.storage.object_names import Pack, Single

_MAGIC: Final = b"kafka-eos provenance pack 1\n"
_QUICKLY: Final = 1

F = TypeVar("F", Single, Pack)


def groups(files: Iterable[F]) -> list[tuple[F, ...]]:
    """Those that are to be put together, oldest first: ``files_per_pack``, or fewer with ``pack_bytes`` together."""
    found: list[tuple[F, ...]] = []
    group: list[F] = []
    for file in sorted(file for file in files if file.size < LIMITS.pack_bytes):
        group.append(file)
        if len(group) == LIMITS.files_per_pack or sum(each.size for each in group) >= LIMITS.pack_bytes:
            found.append(tuple(group))
            group = []
    return found


def span(files: Sequence[Single | Pack]) -> tuple[Epoch, Epoch]:
    """The first and the last epoch that they tell of."""
    ends = [(file.epoch, file.epoch) if isinstance(file, Single) else (file.first, file.last) for file in files]
    return min(first for first, _ in ends), max(last for _, last in ends)


def encode(first: Epoch, last: Epoch, files: Mapping[str, bytes]) -> tuple[Pack, bytes]:
    """A pack of files, by their SHA-256, and its content."""
    body = msgspec.msgpack.encode([(bytes.fromhex(sha256), files[sha256]) for sha256 in sorted(files)])
    return Pack(first, last, len(body), hashlib.sha256(body).hexdigest()), _MAGIC + zlib.compress(body, _QUICKLY)


def decode(pack: Pack, data: bytes) -> dict[str, bytes]:
    """What ``encode`` was given. ValueError if it is something else, or of a newer version."""
    if not data.startswith(_MAGIC):
        raise ValueError(f"it begins with {data[:40]!r}, not with {_MAGIC!r}")
    try:
        body = zlib.decompress(data[len(_MAGIC) :])
    except zlib.error as error:
        raise ValueError(f"it cannot be inflated: {error}") from error
    if (len(body), hashlib.sha256(body).hexdigest()) != (pack.size, pack.sha256):
        raise ValueError("the content does not match its checksum")
    return {sha256.hex(): content for sha256, content in msgspec.msgpack.decode(body, type=list[tuple[bytes, bytes]])}
