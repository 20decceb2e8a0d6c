"""Rows of an Avro object container: a header with the schema, then blocks of records.

Rule: whatever the bytes are, there are rows or a ValueError, and no block takes more memory than the user allows.
fastavro itself unpacks a block whole, and follows nested records on the stack of the process until that ends.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from pathlib import Path
from typing import Any, Final

import fastavro

from kafka_eos._util.extras import expect_extra
from kafka_eos.codecs.avro.foreign_schemas import careful, parsed
from kafka_eos.codecs.avro.inlined_types import linked
from kafka_eos.connectors.files.source.bounded_text import TooLarge
from kafka_eos.connectors.files.varints import unsigned

_SYNC: Final = 16
_HEADER: Final = fastavro.parse_schema({
    "type": "record", "name": "header", "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC}},
    ],
})  # fmt: skip
_MOST_OF_XZ: Final = 256 << 20
"""Bytes of memory that a block in xz may ask for."""
_NO_SIZE: Final = "a block has a size that is none"
_CHECKSUM: Final = 4
"""Bytes behind a block in snappy."""


def avro_rows(largest: int, path: Path, first: int) -> Generator[Any]:
    """From the row ``first`` on. ``largest``: bytes of a block, packed or not."""
    with open(path, "rb") as opened:
        file = _Bounded(opened, largest)
        header: Any = fastavro.schemaless_reader(file, _HEADER, None)  # type: ignore[arg-type]
        if header["magic"] != b"Obj\x01":
            raise ValueError("it does not begin as files of Avro do")
        unpacked = _unpacking(header["meta"].get("avro.codec", b"null"), largest)
        schema, names = parsed(json.loads(header["meta"].get("avro.schema", b"null")))
        read = careful({"type": "array", "items": schema}, names)  # rows that take no bytes may be any number, too
        linked(schema)
        while (count := _count(file)) is not None:
            packed = file.read(_long(file))
            if file.read(_SYNC) != header["sync"]:
                raise ValueError("a block does not end as its header says")
            if first < count:
                yield from islice(
                    _records(unpacked(packed), count, lambda block: read(block, schema, None)), first, None
                )
            first = max(0, first - count)


def _records(data: bytes, count: int, read: Callable[[io.BytesIO], Any]) -> Iterator[Any]:
    block = io.BytesIO(data)
    for _ in range(count):
        yield read(block)
    if block.read(1):
        raise ValueError("a block has more bytes than its records")


class _Bounded:
    """A file of which no part, its header or a block, is larger than allowed."""

    def __init__(self, file: Any, largest: int) -> None:
        self._file, self._largest, self._left = file, largest, largest

    def read(self, size: int, /) -> bytes:
        if size < 0:
            raise ValueError("something in it has a size below zero")
        self._left -= size
        if self._left < 0:
            raise TooLarge(self._largest)
        data = bytes(self._file.read(size))
        if len(data) < size:
            raise EOFError(f"it is cut off: {size} bytes should follow, and there are {len(data)}")
        return data

    def next_part(self) -> bytes:
        """Its first byte; none at the end of the file."""
        self._left = self._largest
        return bytes(self._file.read(1))


def _count(file: _Bounded) -> int | None:
    """Of the records of the next block; None if there is none."""
    first = file.next_part()
    return _number(chain(first, _rest(file))) if first else None


def _long(file: _Bounded) -> int:
    return _number(_rest(file))


def _rest(file: _Bounded) -> Iterator[int]:
    while True:
        yield file.read(1)[0]


def _number(data: Iterable[int]) -> int:
    """A count or a size. ValueError if it is negative."""
    number = unsigned(data, _NO_SIZE)
    if number & 1:
        raise ValueError(_NO_SIZE)
    return number >> 1


def _unpacking(codec: bytes, largest: int) -> Callable[[bytes], bytes]:
    """What unpacks a block. ValueError if nobody knows how."""
    name = codec.decode("ascii", "replace")
    if (begin := _STEPWISE.get(name)) is not None:
        return lambda data: _within(largest, begin().decompress(data, largest + 1))
    match name:
        case "null":
            return bytes
        case "snappy" | "zstandard":
            expect_extra("parquet", f"a file of Avro with blocks in {name}")
            return lambda data: _by_pyarrow(name, data, largest)
    raise ValueError(f"its blocks are packed by {name!r}, which is not read")


def _within(largest: int, data: bytes) -> bytes:
    if len(data) > largest:
        raise TooLarge(largest)
    return data


def _by_pyarrow(name: str, data: bytes, largest: int) -> bytes:
    import pyarrow

    if name == "zstandard":
        with pyarrow.input_stream(pyarrow.py_buffer(data), compression="zstd") as stream:
            return _within(largest, bytes(stream.read(largest + 1)))
    body = _Bounded(io.BytesIO(data[:-_CHECKSUM]), largest)
    size = unsigned(_rest(body), _NO_SIZE)
    if size > largest:
        raise TooLarge(largest)
    return bytes(pyarrow.Codec("snappy").decompress(data[:-_CHECKSUM], decompressed_size=size, asbytes=True))


_STEPWISE: Final[Mapping[str, Callable[[], Any]]] = {
    "deflate": lambda: zlib.decompressobj(wbits=-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_MOST_OF_XZ),
}
