"""Codecs for stored data by name and schema alone, for tools that do not have the program that wrote it.

    msgpack, json      plain values: dicts, lists, text, numbers
    avro               dicts, by the stored schema
    counted-…          ``{"updates": the key's number of outputs, "accumulator": the value}``
    elements-…         lists of ``{"value": the value, "place": where it is in event time}``
    row-panes-…        lists of ``{"first": the number of the row that a pane begins with, "value": what it holds}``
    maybe-…            the value, or None
    key, raw, utf-8    unchanged
    anything else      the codec given to ``register_codec``, or the bytes

Rule: they have the names and schemas of the codecs that they replace, so those can read what they write. A value whose
type is ambiguous (a date or text) stays as it was stored.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import fastavro
import msgspec
from fastavro.schema import SchemaParseException

from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.msgpack_codec import KeyCodec
from kafka_eos.codecs.operator_state.window_codecs import ElementsCodec, RowPanesCodec
from kafka_eos.codecs.operator_state.wrapping_codecs import CountedCodec, OptionalCodec
from kafka_eos.codecs.raw_codecs import BytesCodec, StrCodec
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

_COUNTED = "counted-"
_ELEMENTS = "elements-"
_MAYBE = "maybe-"
_ROW_PANES = "row-panes-"
_BAD = (ValueError, TypeError, LookupError, EOFError, OverflowError, RecursionError, msgspec.MsgspecError)


def register_codec(name: str, made: Callable[[Json], Codec[Any]]) -> None:
    """Register a codec of your own, so that tools can read its state without the pipeline.

    ``made`` receives the stored schema and returns the codec, or raises ConfigError. ConfigError if ``name`` is taken.
    """
    if name in _MADE or name.startswith((_COUNTED, _ELEMENTS, _MAYBE, _ROW_PANES)):
        raise ConfigError(f"a codec named {name!r} already exists: rename yours")
    _MADE[name] = made


def get_plain_codec(name: str, schema: Json) -> Codec[Any]:
    """Return the plain codec for data written by a codec of that name and schema.

    Raises ConfigError for a bad schema.
    """
    if name.startswith(_COUNTED):
        return _PlainCounted(get_plain_codec(name.removeprefix(_COUNTED), schema))
    if name.startswith(_ELEMENTS):
        return _PlainElements(get_plain_codec(name.removeprefix(_ELEMENTS), schema))
    if name.startswith(_ROW_PANES):
        return _PlainRowPanes(get_plain_codec(name.removeprefix(_ROW_PANES), schema))
    if name.startswith(_MAYBE):
        return OptionalCodec(get_plain_codec(name.removeprefix(_MAYBE), schema))
    made = _MADE.get(name)
    return _OpaqueCodec(name, schema) if made is None else made(schema)


class _PlainCodec(Codec[Any]):
    """Codec of plain values in MessagePack or JSON."""

    name: str = ""
    schema: Json = None

    def __init__(self, name: str, schema: Json) -> None:
        self.name, self.schema = name, schema
        if name == "msgpack":
            self._encode = msgspec.msgpack.Encoder(order="deterministic").encode
            self._decode = msgspec.msgpack.Decoder().decode
        else:
            self._encode = msgspec.json.Encoder(order="deterministic").encode
            self._decode = msgspec.json.Decoder().decode

    def encode(self, value: Any) -> bytes:
        check_fields(value, self.schema)
        try:
            return self._encode(value)
        except _BAD as error:
            raise ValueError(f"cannot be stored as {self.name}: {error}") from error

    def decode(self, data: bytes) -> Any:
        return self._decode(data)


class _PlainAvroCodec(Codec[Any]):
    """Codec of dicts in Avro without a header."""

    schema: Json = None
    name = "avro"

    def __init__(self, schema: Json) -> None:
        self.schema = schema
        try:
            self._parsed = fastavro.parse_schema(json.loads(json.dumps(schema)))
        except (SchemaParseException, *_BAD) as error:
            raise ConfigError(f"the stored Avro schema is not usable: {error}") from error

    def encode(self, value: Any) -> bytes:
        out = io.BytesIO()
        try:
            fastavro.schemaless_writer(out, self._parsed, value, strict=True)
        except _BAD as error:
            raise ValueError(f"does not fit the Avro schema: {error}") from error
        return out.getvalue()

    def decode(self, data: bytes) -> Any:
        try:
            return fastavro.schemaless_reader(io.BytesIO(data), self._parsed, None)
        except _BAD as error:
            raise ValueError(f"does not fit the Avro schema: {error}") from error


class _PlainCounted(Codec[Any]):
    """Entries of ``CountedCodec`` as a dict."""

    name: str = ""
    schema: Json = None

    def __init__(self, inner: Codec[Any]) -> None:
        self._pair = CountedCodec(inner)
        self.name, self.schema = self._pair.name, self._pair.schema

    def encode(self, value: Any) -> bytes:
        if not (isinstance(value, Mapping) and value.keys() == {"updates", "accumulator"}):
            raise ValueError('expected {"updates": a number, "accumulator": a value}')
        if type(value["updates"]) is not int or value["updates"] < 0:
            raise ValueError(f"updates is a number from 0, not {value['updates']!r}")
        return self._pair.encode((value["updates"], value["accumulator"]))

    def decode(self, data: bytes) -> dict[str, Any]:
        updates, accumulator = self._pair.decode(data)
        return {"updates": updates, "accumulator": accumulator}


class _PlainElements(Codec[Any]):
    """Entries of ``ElementsCodec`` as dicts: tables cannot hold values and sort keys in one list."""

    name: str = ""
    schema: Json = None

    def __init__(self, inner: Codec[Any]) -> None:
        self._elements = ElementsCodec(inner)
        self.name, self.schema = self._elements.name, self._elements.schema

    def encode(self, value: Any) -> bytes:
        return self._elements.encode(
            [(each["value"], tuple(each["place"])) for each in _dicts(value, "value", "place")]
        )

    def decode(self, data: bytes) -> list[dict[str, Any]]:
        return [{"value": each, "place": list(place)} for each, place in self._elements.decode(data)]


class _PlainRowPanes(Codec[Any]):
    """Entries of ``RowPanesCodec`` as dicts: fields of tables cannot have numbers as names."""

    name: str = ""
    schema: Json = None

    def __init__(self, inner: Codec[Any]) -> None:
        self._panes = RowPanesCodec(inner)
        self.name, self.schema = self._panes.name, self._panes.schema

    def encode(self, value: Any) -> bytes:
        return self._panes.encode({each["first"]: each["value"] for each in _dicts(value, "first", "value")})

    def decode(self, data: bytes) -> list[dict[str, Any]]:
        return [{"first": first, "value": held} for first, held in self._panes.decode(data).items()]


def _dicts(value: Any, *names: str) -> list[Mapping[str, Any]]:
    """Return a list of dicts with these fields. Raises ValueError if it is another value."""
    if not (isinstance(value, list) and all(isinstance(each, Mapping) and each.keys() == {*names} for each in value)):
        raise ValueError(f"expected a list of dicts with the fields {', '.join(names)}")
    return value


class _OpaqueCodec(BytesCodec):
    """Codec of an unknown format: bytes unchanged."""

    def __init__(self, name: str, schema: Json) -> None:
        self.name, self.schema = name, schema


_MADE: dict[str, Callable[[Json], Codec[Any]]] = {
    "msgpack": partial(_PlainCodec, "msgpack"),
    "json": partial(_PlainCodec, "json"),
    "avro": _PlainAvroCodec,
    "key": lambda _: KeyCodec(),
    "raw": lambda _: BytesCodec(),
    "utf-8": lambda _: StrCodec(),
}
"""Codecs by name; ``register_codec`` adds to them."""


def check_fields(value: Any, schema: Json) -> None:
    """Raise ValueError if the JSON schema lists an object's fields, and ``value`` lacks one or has an additional
    one."""
    described = _resolved(schema)
    properties = described.get("properties")
    if not isinstance(properties, dict) or not isinstance(value, Mapping):
        return
    required = described.get("required")
    missing = {str(name) for name in (required if isinstance(required, list) else ())} - value.keys()
    unknown = value.keys() - properties.keys()
    if missing or unknown:
        wrong = [f"lacks {name!r}" for name in sorted(missing)] + [f"has {name!r}" for name in sorted(unknown)]
        raise ValueError(f"the stored type has the fields {sorted(properties)}, and the value {', '.join(wrong)}")


def _resolved(schema: Json) -> Mapping[str, Json]:
    """Return the schema, or the definition to which its top-level reference points."""
    if not isinstance(schema, dict):
        return {}
    reference, definitions = schema.get("$ref"), schema.get("$defs")
    if isinstance(reference, str) and isinstance(definitions, dict):
        found = definitions.get(reference.rpartition("/")[2])
        return found if isinstance(found, dict) else {}
    return schema
