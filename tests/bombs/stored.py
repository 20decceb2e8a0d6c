"""Compressed files of the checkpoint store: segments of logs, packs and blocks of provenance."""

from __future__ import annotations

import gzip
import hashlib
import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial

import msgspec

from kafka_eos.core import provenance_blocks as blocks
from kafka_eos.core.ids import Epoch
from kafka_eos.storage import object_names as paths
from kafka_eos.storage import provenance_packs as packs
from kafka_eos.storage.object_names import ProvenancePack
from tests.bombs import Attempt
from tests.bombs.files import broken
from tests.bombs.schemas import number

TOO_MUCH = paths._MOST_INFLATED + 1


def segments(chance: random.Random) -> Iterator[Attempt]:
    """Logs: the history and the ledger."""
    line = b'{"epoch":1}\n'
    good = gzip.compress(line * 1000, 1)
    large = _repeated_zeros(TOO_MUCH, zlib.MAX_WBITS | 16)
    while True:
        data = large if chance.random() < 0.01 else broken(good, chance)
        yield partial(_lines, data)


def _lines(data: bytes) -> list[str]:
    return paths.complete_lines(paths.inflate_segment("ledger/1-1.gz", data))


def provenance_packs(chance: random.Random) -> Iterator[Attempt]:
    files = {hashlib.sha256(content).hexdigest(): content for content in (b"", b"one", bytes(10_000))}
    pack, good = packs.encode(Epoch(1), Epoch(4), files)
    large = good[: len(packs._MAGIC)] + _repeated_zeros(TOO_MUCH, zlib.MAX_WBITS)
    while True:
        data = large if chance.random() < 0.1 else broken(good, chance)
        size = chance.choice((pack.size, 0, 10))
        yield partial(packs.decode, ProvenancePack(pack.first, pack.last, size, pack.sha256), data)


def provenance_blocks(chance: random.Random) -> Iterator[Attempt]:
    plane = _repeated_zeros(TOO_MUCH, -zlib.MAX_WBITS)
    decoders: tuple[Callable[[bytes], object], ...] = (blocks.decode_block, blocks.decode_output_partitions)
    while True:
        count = chance.choice((0, 1, 700, 1 << 24, 1 << 40, 1 << 62))
        span = blocks.ProvenanceSpan(count, *(0 for _ in blocks.ProvenanceSpan.__struct_fields__[1:]))
        columns = [[plane] * min(number(chance), 8) for _ in range(6)]
        made = msgspec.msgpack.encode([["orders"], [span], *columns])
        yield partial(chance.choice(decoders), broken(made, chance))


def _repeated_zeros(size: int, form: int) -> bytes:
    deflate = zlib.compressobj(9, zlib.DEFLATED, form)
    piece = bytes(1 << 20)
    return b"".join(deflate.compress(piece) for _ in range(size // len(piece) + 1)) + deflate.flush()
