"""Codecs that are as simple as they can be, with schemas that can be told apart."""

from __future__ import annotations

import json
from typing import Any

from kafka_eos.abc.codec import Codec
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json


class JsonText(Codec[Any]):
    """Values as JSON text."""

    schema: Json = None
    name = "json-text"

    def __init__(self, schema: Json = None) -> None:
        self.schema = schema

    def encode(self, value: Any) -> bytes:
        return json.dumps(value).encode()

    def decode(self, data: bytes) -> Any:
        return json.loads(data)


class Versioned(JsonText):
    """Schema 1 is a number; schema 2 is a list of it, and can read schema 1."""

    def reader_of(self, writer_schema: Json) -> JsonText:
        if (self.schema, writer_schema) != (2, 1):
            raise ConfigError(f"{self.schema} cannot read {writer_schema}")
        return _Wrapped()


class _Wrapped(JsonText):
    def decode(self, data: bytes) -> Any:
        return [json.loads(data)]


KEY = JsonText("key")
TOTAL: StateDescriptor[Any] = StateDescriptor("sum", KEY, JsonText("number"))
OTHER: StateDescriptor[Any] = StateDescriptor("other", KEY, JsonText("number"))
