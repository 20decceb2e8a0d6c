"""JSON lines: each value, as its codec encodes it, is one line.

Rule: an encoding with a newline is not a line; its row is rejected.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from msgspec import Struct

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import JsonCodec, codec_for
from kafka_eos.codecs.type_inspection import known_type
from kafka_eos.connectors._shared.row_errors import map_rows
from kafka_eos.connectors.files.formats.format import ByteOutput, BytesBlock, TextWriter, expect_compression
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

_TORN: Final = "its encoding contains a newline"
_BINARY: Final = ("avro", "msgpack")
_ENVELOPE: Final = re.compile(rb'\{"provenance":"([!#-~]*)","value":(.*)\}', re.DOTALL)


class JsonLines(Struct, frozen=True):
    """The JSON lines format. ``compression``: None or "gzip"."""

    compression: str | None = None

    def __post_init__(self) -> None:
        expect_compression(self.compression, (None, "gzip"), "lines")

    @property
    def extension(self) -> str:
        return "jsonl.gz" if self.compression else "jsonl"

    @property
    def needs_type(self) -> bool:
        return False

    def layout(self, value: Any, envelope: bool) -> JsonLinesLayout:
        codec: Codec[Any] = codec_for(Any if value is None else value)
        if codec.name in _BINARY or (envelope and codec.name != "json"):
            what = "its envelope holds JSON" if envelope else "it writes lines of text"
            raise ConfigError(f"a file of lines cannot hold values in the format {codec.name!r}: {what}.")
        return JsonLinesLayout(codec, envelope, self.compression is not None)

    def describe(self) -> Mapping[str, Json]:
        return {"compression": self.compression} if self.compression else {}


def json_value(tp: Any) -> JsonCodec[Any] | None:
    """Return the JSON codec of a stream's type; None if the type is unknown. Raise PlanError if it is not JSON.

    Also for ``str`` and ``bytes``: a sink without a type writes JSON.
    """
    known = known_type(tp)
    return None if known is None else JsonCodec(known)


class JsonLinesLayout:
    """JSON lines of one codec, optionally with a provenance envelope."""

    def __init__(self, codec: Codec[Any], envelope: bool, compressed: bool) -> None:
        self.codec = codec
        self._envelope = envelope
        self._compressed = compressed

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> BytesBlock:
        lines = _lines(self.codec.encode, values)
        if provenance is None:
            return BytesBlock(lines)
        pairs = zip(provenance, lines, strict=True)
        return BytesBlock(b'{"provenance":"%b","value":%b}' % (text.encode(), line) for text, line in pairs)

    def joined(self, blocks: Sequence[BytesBlock]) -> BytesBlock:
        return BytesBlock.joined(blocks)

    def body(self, out: ByteOutput) -> TextWriter:
        return TextWriter(out, self._compressed)

    def encode_for_audit(self, block: BytesBlock) -> list[bytes]:
        return block

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            for line in file:
                row = line.removesuffix(b"\n")
                match = _ENVELOPE.fullmatch(row) if self._envelope else None
                yield (row, None) if match is None else (match[2], match[1].decode("ascii"))


def _lines(encode: Callable[[Any], bytes], values: Sequence[Any]) -> list[bytes]:
    """Return the encoded values. Raise BadRows for those that cannot be a line."""

    def encode_line(value: Any) -> bytes:
        line = encode(value)
        if b"\n" in line:
            raise ValueError(_TORN)
        return line

    return map_rows(encode_line, values)
