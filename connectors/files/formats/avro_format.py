"""Avro object container files: a header with the schema, then blocks of records.

A record is encoded when its row is written, so a bad record leaves no partial bytes in a block.
Rule: the schema in a file is the one that its records were written with.
"""

from __future__ import annotations

import io
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import fastavro
from msgspec import Struct

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import AvroCodec, JsonCodec
from kafka_eos.codecs.avro.value_conversion import build_preparer
from kafka_eos.connectors._shared.plain_rows import encode_row
from kafka_eos.connectors._shared.row_errors import map_rows
from kafka_eos.connectors.files.formats.format import PROVENANCE, ByteOutput, BytesBlock, expect_compression
from kafka_eos.connectors.files.formats.record_fields import expect_columns
from kafka_eos.core.errors import ConfigError, PlanError
from kafka_eos.core.json_values import Json
from kafka_eos.core.limits import LIMITS

_BAD_DATA: Final = (ValueError, TypeError, LookupError, OverflowError)


class Avro(Struct, frozen=True):
    """The Avro format. ``schema``: the record schema for a stream of dicts. ``compression``: None or "deflate"."""

    schema: Mapping[str, Any] | None = None
    compression: str | None = "deflate"

    def __post_init__(self) -> None:
        expect_compression(self.compression, (None, "deflate"), "Avro")

    @property
    def extension(self) -> str:
        return "avro"

    @property
    def needs_type(self) -> bool:
        return self.schema is None

    def layout(self, value: Any, envelope: bool) -> AvroLayout:
        if (value is None) == (self.schema is None):
            raise ConfigError("Avro needs its schema: value=Model, or format=Avro(schema={…}) for dicts")
        if self.schema is not None:
            schema, encode = dict(self.schema), _encoder(self.schema)
        else:
            try:
                codec: AvroCodec[Any] = AvroCodec(value)
            except PlanError as error:
                raise ConfigError(f"FileSink with format=avro: {error}") from error
            schema, encode = json.loads(json.dumps(codec.schema)), codec.encode
        expect_columns([field["name"] for field in schema.get("fields", ())])
        if envelope:
            schema["fields"] = [*schema["fields"], {"name": PROVENANCE, "type": "string"}]
        return AvroLayout(schema, encode, self.compression or "null")

    def describe(self) -> Mapping[str, Json]:
        return {} if self.compression == "deflate" else {"compression": self.compression}


def _encoder(schema: Mapping[str, Any]) -> Callable[[Any], bytes]:
    try:
        parsed = fastavro.parse_schema(dict(schema))
    except (fastavro.schema.SchemaParseException, fastavro.schema.UnknownType, KeyError) as error:
        raise ConfigError(f"Avro(schema=…) is not a valid schema: {error}") from error
    if not isinstance(parsed, dict) or parsed["type"] != "record":
        raise ConfigError("Avro(schema=…) must be that of a record")

    make = build_preparer(parsed)

    def encode(value: Any) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, parsed, make(value), strict_allow_default=True)
        except _BAD_DATA as error:
            raise ValueError(f"not of the schema: {error}") from error
        return out.getvalue()

    return encode


class AvroLayout:
    """Avro records of one schema."""

    def __init__(self, schema: Mapping[str, Any], encode: Callable[[Any], bytes], codec: str) -> None:
        self._schema = schema
        self._encode = encode
        self._compression = codec
        self._parsed = fastavro.parse_schema(dict(schema))
        self.codec: Codec[Any] = JsonCodec(Any)

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> BytesBlock:
        records = map_rows(self._encode, values)
        if provenance is None:
            return BytesBlock(records)
        return BytesBlock(record + _bytes(text.encode()) for record, text in zip(records, provenance, strict=True))

    def joined(self, blocks: Sequence[BytesBlock]) -> BytesBlock:
        return BytesBlock.joined(blocks)

    def body(self, out: ByteOutput) -> _AvroWriter:
        return _AvroWriter(out, self._schema, self._compression)

    def encode_for_audit(self, block: BytesBlock) -> list[bytes]:
        without = fastavro.parse_schema(
            {**self._schema, "fields": [each for each in self._schema["fields"] if each["name"] != PROVENANCE]}
        )
        return [encode_row(fastavro.schemaless_reader(io.BytesIO(record), without, None)) for record in block]

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        with open(path, "rb") as file:
            for record in fastavro.reader(file, reader_schema=self._parsed):
                assert isinstance(record, dict)
                text = record.pop(PROVENANCE, None)
                yield encode_row(record), None if text is None else str(text)


class _AvroWriter:
    """A writer of one Avro object container file."""

    def __init__(self, out: ByteOutput, schema: Mapping[str, Any], codec: str) -> None:
        self._out = out
        self._codec = codec
        self._sync = os.urandom(16)
        self._records, self._size = list[bytes](), 0
        meta = {"avro.schema": json.dumps(schema).encode(), "avro.codec": codec.encode()}
        pairs = b"".join(_bytes(name.encode()) + _bytes(value) for name, value in meta.items())
        out.write(b"Obj\x01" + _long(len(meta)) + pairs + _long(0) + self._sync)

    def write(self, block: BytesBlock) -> None:
        full = LIMITS.avro_block_bytes
        for record in block:
            self._records.append(record)
            self._size += len(record)
            if self._size >= full:
                self.flush()

    @property
    def buffered_bytes(self) -> int:
        return self._size

    @property
    def memory(self) -> int:
        return self._size

    def close(self) -> None:
        self.flush()

    def flush(self) -> None:
        if not self._records:
            return
        data = b"".join(self._records)
        if self._codec == "deflate":
            packer = zlib.compressobj(wbits=-15)
            data = packer.compress(data) + packer.flush()
        self._out.write(_long(len(self._records)) + _bytes(data) + self._sync)
        self._records, self._size = [], 0


def _long(number: int) -> bytes:
    """Return a long that is not negative as Avro encodes it: zigzag, seven bits per byte."""
    number, out = number << 1, bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _bytes(data: bytes) -> bytes:
    return _long(len(data)) + data
