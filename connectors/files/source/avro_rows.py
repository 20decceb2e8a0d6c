"""Rows of an Avro object container: a header with the schema, then blocks of records.

Rule: any bytes give rows or a ValueError, and no block takes more memory than the user allows. fastavro itself
decompresses a block without a limit. It also reads nested records recursively until the process's stack overflows.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Final

import fastavro

from kafka_eos._util.extras import ensure_extra
from kafka_eos.codecs.avro.foreign_schemas import create_safe_reader, parse_schema
from kafka_eos.codecs.avro.inlined_types import inline_named_types
from kafka_eos.connectors._shared.varints import unsigned
from kafka_eos.connectors.files.source.avro_stored import as_stored, with_stored_fields
from kafka_eos.connectors.files.source.bounded_reads import READ_ENDS, PartTooLarge, ReadSize, rows_from
from kafka_eos.connectors.files.source.unreadable_rows import TypeColumns, UnreadableRow

_SYNC: Final = 16
_HEADER: Final = fastavro.parse_schema({
    "type": "record", "name": "header", "fields": [
        {"name": "magic", "type": {"type": "fixed", "name": "magic", "size": 4}},
        {"name": "meta", "type": {"type": "map", "values": "bytes"}},
        {"name": "sync", "type": {"type": "fixed", "name": "sync", "size": _SYNC}},
    ],
})  # fmt: skip
_MOST_OF_XZ: Final = 256 << 20
"""Bytes of memory that decompressing an xz block may use."""
_NO_SIZE: Final = "a block has an invalid size"
_CHECKSUM: Final = 4
"""Bytes of the checksum after a snappy block."""
_UNREPRESENTABLE: Final = (ValueError, ArithmeticError)
"""Raised for a value that Python cannot represent, and for some damaged records."""


def avro_rows(largest: int, columns: TypeColumns, path: Path, first: int) -> Generator[Any]:
    """Yield the rows from number ``first`` on. ``largest``: most bytes of a block, compressed or not."""
    with open(path, "rb") as opened:
        file = _LimitedFile(opened, largest)
        header: Any = fastavro.schemaless_reader(file, _HEADER, None)  # type: ignore[arg-type]
        if header["magic"] != b"Obj\x01":
            raise ValueError("it does not begin like an Avro file")
        unpacked = _unpacking(header["meta"].get("avro.codec", b"null"), largest)
        schema, names = parse_schema(json.loads(header["meta"].get("avro.schema", b"null")))
        read = create_safe_reader(
            {"type": "array", "items": schema}, names
        )  # a block may have any number of rows that take no bytes
        inline_named_types(schema)
        records, size = None, ReadSize()
        while (count := _count(file)) is not None:
            packed = file.read(_long(file))
            if file.read(_SYNC) != header["sync"]:
                raise ValueError("a block does not end with the sync marker of its header")
            if first < count or not count:  # a block without records has no bytes
                if records is None:
                    records = _Records(read, schema, columns, size)
                yield from rows_from(first, records.of(unpacked(packed), count))
            first = max(0, first - count)
            if size.is_used_up(len(packed)):
                yield READ_ENDS


class _Records:
    """The reading of a block's records. Fields that the type does not take are read as they are stored, and dropped."""

    def __init__(self, read: Callable[..., Any], schema: Any, columns: TypeColumns, size: ReadSize) -> None:
        self._read, self._size = read, size
        self._stored = as_stored(schema)
        self._dropped: Sequence[str] = ()
        if isinstance(schema, dict) and schema["type"] in ("record", "error"):
            names = [field["name"] for field in schema["fields"]]
            self._dropped = sorted({*names} - {*columns.select(names)})
        self._schema = with_stored_fields(schema, {*self._dropped}) if self._dropped else schema

    def of(self, data: bytes, count: int) -> Iterator[Any]:
        block = io.BytesIO(data)
        for _ in range(count):
            begin = block.tell()
            row = self._record(block)
            for name in self._dropped:
                del row[name]
            yield row
            if self._size.is_used_up(block.tell() - begin):
                yield READ_ENDS
        if block.read(1):
            raise ValueError("a block has more bytes than its records")

    def _record(self, block: io.BytesIO) -> Any:
        begin = block.tell()
        try:
            return self._read(block, self._schema, None)
        except _UNREPRESENTABLE as error:
            block.seek(begin)
            try:
                row = self._read(block, self._stored, None)
            except Exception:  # noqa: BLE001 - whatever it is, the bytes are no record
                raise error from None
            return UnreadableRow(row if isinstance(row, dict) else {"value": row}, str(error))


class _LimitedFile:
    """A file whose header and blocks may not exceed a size limit."""

    def __init__(self, file: Any, largest: int) -> None:
        self._file = file
        self._largest = largest
        self._left = largest

    def read(self, size: int, /) -> bytes:
        if size < 0:
            raise ValueError("it contains a negative size")
        self._left -= size
        if self._left < 0:
            raise PartTooLarge(self._largest)
        data = bytes(self._file.read(size))
        if len(data) < size:
            raise EOFError(f"it is cut off: {size} bytes should follow, but only {len(data)} do")
        return data

    def next_part(self) -> bytes:
        """Begin a new part; return its first byte, or b"" at the end of the file."""
        self._left = self._largest
        return bytes(self._file.read(1))


def _count(file: _LimitedFile) -> int | None:
    """Return the number of records of the next block; None at the end of the file."""
    first = file.next_part()
    return _number(chain(first, _rest(file))) if first else None


def _long(file: _LimitedFile) -> int:
    return _number(_rest(file))


def _rest(file: _LimitedFile) -> Iterator[int]:
    while True:
        yield file.read(1)[0]


def _number(data: Iterable[int]) -> int:
    """Return a count or a size. Raise ValueError if it is negative."""
    number = unsigned(data, _NO_SIZE)
    if number & 1:
        raise ValueError(_NO_SIZE)
    return number >> 1


def _unpacking(codec: bytes, largest: int) -> Callable[[bytes], bytes]:
    """Return a function that decompresses a block. Raise ValueError if the codec is not known."""
    name = codec.decode("ascii", "replace")
    if (begin := _STEPWISE.get(name)) is not None:
        return lambda data: _decompressed(begin(), data, largest)
    match name:
        case "null":
            return bytes
        case "snappy" | "zstandard":
            ensure_extra("parquet", f"a file of Avro with blocks in {name}")
            return lambda data: _by_pyarrow(name, data, largest)
    raise ValueError(f"its blocks are compressed with {name!r}, which is not supported")


def _decompressed(stream: Any, data: bytes, largest: int) -> bytes:
    found = _within(largest, stream.decompress(data, largest + 1))
    if not stream.eof:  # its checksum is at the end
        raise EOFError("the compressed data of a block are cut off")
    return found


def _within(largest: int, data: bytes) -> bytes:
    if len(data) > largest:
        raise PartTooLarge(largest)
    return data


def _by_pyarrow(name: str, data: bytes, largest: int) -> bytes:
    import pyarrow

    if name == "zstandard":
        with pyarrow.input_stream(pyarrow.py_buffer(data), compression="zstd") as stream:
            return _within(largest, bytes(stream.read(largest + 1)))
    body = _LimitedFile(io.BytesIO(data[:-_CHECKSUM]), largest)
    size = unsigned(_rest(body), _NO_SIZE)
    if size > largest:
        raise PartTooLarge(largest)
    found = bytes(pyarrow.Codec("snappy").decompress(data[:-_CHECKSUM], decompressed_size=size, asbytes=True))
    if zlib.crc32(found) != int.from_bytes(data[-_CHECKSUM:], "big"):
        raise ValueError("a block does not match its checksum: the file was changed")
    return found


_STEPWISE: Final[Mapping[str, Callable[[], Any]]] = {
    "deflate": lambda: zlib.decompressobj(wbits=-15),
    "bzip2": bz2.BZ2Decompressor,
    "xz": lambda: lzma.LZMADecompressor(memlimit=_MOST_OF_XZ),
}
