"""Codecs without conversion: bytes unchanged, and text as UTF-8."""

from __future__ import annotations

from kafka_eos.abc.codec import Codec
from kafka_eos.core.json_values import Json


class BytesCodec(Codec[bytes]):
    """Bytes in, the same bytes out."""

    name = "raw"
    type = bytes
    schema: Json = None

    def encode(self, value: bytes) -> bytes:
        if not isinstance(value, bytes):
            raise ValueError(f"expected bytes, got {type(value).__name__}")
        return value

    def decode(self, data: bytes) -> bytes:
        return data

    def reader_of(self, schema: Json) -> BytesCodec:
        return self


class StrCodec(Codec[str]):
    """Text as UTF-8."""

    name = "utf-8"
    type = str
    schema: Json = None

    def encode(self, value: str) -> bytes:
        if not isinstance(value, str):
            raise ValueError(f"expected str, got {type(value).__name__}")
        return value.encode()

    def decode(self, data: bytes) -> str:
        return data.decode()

    def reader_of(self, schema: Json) -> StrCodec:
        return self
