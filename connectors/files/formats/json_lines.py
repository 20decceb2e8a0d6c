"""JSON lines: what the values' codec writes, one line each.

Rule: an encoding with a newline is no line; its row is refused.
"""

from __future__ import annotations

import gzip
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs import codec_for
from kafka_eos.connectors._shared.row_errors import BadRows, tried
from kafka_eos.connectors.files.formats.format import Chunks, Out, Text, expect_compression
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

_TORN: Final = "its encoding contains a newline"
_BINARY: Final = ("avro", "msgpack")
_ENVELOPE: Final = re.compile(rb'\{"provenance":"([^"]*)","value":(.*)\}', re.DOTALL)


@dataclass(frozen=True, slots=True)
class JsonLines:
    """``compression``: None or "gzip"."""

    compression: str | None = None

    def __post_init__(self) -> None:
        expect_compression(self.compression, (None, "gzip"), "lines")

    @property
    def extension(self) -> str:
        return "jsonl.gz" if self.compression else "jsonl"

    def layout(self, value: Any, envelope: bool) -> LinesLayout:
        codec: Codec[Any] = codec_for(Any if value is None else value)
        if codec.name in _BINARY or (envelope and codec.name != "json"):
            what = "its envelope holds JSON" if envelope else "it writes lines of text"
            raise ConfigError(f"a file of lines cannot hold values in the format {codec.name!r}: {what}.")
        return LinesLayout(codec, envelope, self.compression is not None)

    def describe(self) -> Mapping[str, Json]:
        return {"compression": self.compression} if self.compression else {}


class LinesLayout:
    """Lines of one codec; in an envelope if they have a provenance."""

    def __init__(self, codec: Codec[Any], envelope: bool, compressed: bool) -> None:
        self.codec, self._envelope, self._compressed = codec, envelope, compressed

    def block(self, values: Sequence[Any], provenance: Sequence[str] | None) -> Chunks:
        lines = _lines(self.codec.encode, values)
        if provenance is None:
            return Chunks(lines)
        pairs = zip(provenance, lines, strict=True)
        return Chunks(b'{"provenance":"%b","value":%b}' % (text.encode(), line) for text, line in pairs)

    def joined(self, blocks: Sequence[Chunks]) -> Chunks:
        return Chunks.joined(blocks)

    def body(self, out: Out) -> Text:
        return Text(out, self._compressed)

    def told(self, block: Chunks) -> list[bytes]:
        return block

    def read(self, path: Path) -> Iterator[tuple[bytes, str | None]]:
        opened = gzip.open if path.suffix == ".gz" else open
        with opened(path, "rb") as file:
            for line in file:
                said = line.removesuffix(b"\n")
                match = _ENVELOPE.fullmatch(said) if self._envelope else None
                yield (said, None) if match is None else (match[2], match[1].decode("ascii", "replace"))


def _lines(encode: Callable[[Any], bytes], values: Sequence[Any]) -> list[bytes]:
    """The encoded values. Raises BadRows for all that cannot be a line, up to one that may be the environment's fault.

    One pass: what failed in passing might work in a second one, and nothing would say why the batch was refused.
    """
    lines, errors = tried(encode, values)
    if errors or any(b"\n" in line for line in lines):
        those = (index for index in range(len(values)) if index not in errors)
        torn = {index: ValueError(_TORN) for index, line in zip(those, lines, strict=False) if b"\n" in line}
        raise BadRows(dict(sorted({**errors, **torn}.items())))
    return lines
