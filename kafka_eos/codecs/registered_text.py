"""JSON text of values that any program wrote with a schema registry, for readers that have no type for them.

Rule: a text has every field of the value, and exact numbers. A value that its schema does not describe has none.
"""

from __future__ import annotations

import json
from collections.abc import Callable

import msgspec

from kafka_eos._util.extras import ensure_extra
from kafka_eos.codecs.avro.foreign_schemas import create_decoder, create_safe_reader, parse_schema
from kafka_eos.codecs.avro.inlined_types import inline_named_types
from kafka_eos.codecs.registry.registry_client import MAX_SCHEMA_ID, RegisteredSchema, Registry
from kafka_eos.codecs.registry.schema_references import fetch_references
from kafka_eos.codecs.registry.unknown_schemas import PAUSES, SchemaLookupRetry, expect_found
from kafka_eos.codecs.registry.wire_format import MAGIC, PREFIX, DecoderCache

Decode = Callable[[bytes], str]


class RegisteredTexts:
    """Converts values in Confluent's wire format to JSON text, with the schemas of one registry.

    Other bytes are text as they are. Raises RegistryUnavailable, and ConfigError if the registry refuses the request.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._decoders = DecoderCache()
        self._unknown = SchemaLookupRetry(() if registry.in_memory else PAUSES)

    def read(self, data: bytes) -> str | None:
        """Return the text; None if the registry has no such schema, or the bytes are not what it describes."""
        try:
            if data[:1] != MAGIC or len(data) < PREFIX:
                return data.decode()
            decode = self._decoders.get(data[:PREFIX]) or self._fetch(data[:PREFIX])
            return decode(data[PREFIX:])
        except ValueError:
            return None

    def _fetch(self, prefix: bytes) -> Decode:
        schema_id = int.from_bytes(prefix[len(MAGIC) :], "big")
        if schema_id > MAX_SCHEMA_ID:
            raise ValueError(f"{schema_id} is no schema id")
        registry = self._registry
        schema = self._unknown.retry(
            schema_id, lambda: expect_found(registry.schema(schema_id), schema_id, registry.url)
        )
        decode = _decoder(schema, registry)
        self._decoders.keep(prefix, decode, len(schema.text))
        return decode


def _decoder(schema: RegisteredSchema, registry: Registry) -> Decode:
    match schema.kind:
        case "AVRO":
            return _avro(schema, registry)
        case "PROTOBUF":
            ensure_extra("protobuf", f"schemas of {registry.url} in Protobuf")
            from kafka_eos.codecs.protobuf.registry_language import create_text_decoder

            return create_text_decoder(schema, registry)
        case "JSON":
            return bytes.decode
    raise ValueError(f"a schema of kind {schema.kind} cannot be read")


def _avro(schema: RegisteredSchema, registry: Registry) -> Decode:
    """Decimals, times and UUIDs are text in JSON, bytes are text in base64."""
    try:
        named = [json.loads(each.text) for each in fetch_references(schema, registry).values()]
        writer, names = parse_schema(json.loads(schema.text), named)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    read, plain = create_safe_reader(writer, names), inline_named_types(writer)
    return create_decoder(read, plain, None, lambda value: msgspec.json.encode(value).decode(), "value of the schema")
