"""JSON with a schema registry: ``json_schema(Order, registry=registry)``.

The written schema is derived from the type; a read one may be of any program. Rule: JSON names its fields, so the type
alone decides what is read, record by record, as without a registry. Written data is validated against its registered
schema, because serializers check little of their input.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, Generic, Literal, TypeVar

import pydantic

from kafka_eos.codecs import type_inspection as types
from kafka_eos.codecs.json_codec import JsonCodec
from kafka_eos.codecs.json_schema.differences import SchemaSide, differences, obstacles
from kafka_eos.codecs.json_schema.draft_07 import DRAFT, Schema, closed, draft_07, of_document
from kafka_eos.codecs.json_schema.schema_references import in_parts
from kafka_eos.codecs.json_schema.validation import create_validating_encoder
from kafka_eos.codecs.registry.header_ids import IdIn
from kafka_eos.codecs.registry.registry_client import RegisteredSchema, Registry
from kafka_eos.codecs.registry.registry_format import RegistryFormat, Subject
from kafka_eos.codecs.registry.schema_references import fetch_references, subjects_of
from kafka_eos.codecs.type_inspection import is_model, reason, type_name
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")


def json_schema(
    tp: type[T],
    *,
    registry: Registry,
    subject: Subject = "topic",
    references: Mapping[type, str] | None = None,
    id_in: IdIn = "prefix",
    auto_register: bool = False,
) -> RegistryFormat[T]:
    """Values of ``tp`` as JSON with schemas of ``registry``, for keys and values of ``KafkaSource`` and ``KafkaSink``.

    ``tp``             a pydantic model, a msgspec Struct, a dataclass, or another type that has a JSON schema
    ``subject``        the subject of the written schema: "topic" (``orders-value``),
                       "record" (the type's name), "topic-record", or a function of topic, part and the type's name
    ``references``     types within ``tp`` that have subjects of their own, by type: ``{Line: "line"}``. The schema that
                       is written refers to them, as ``Line.json``
    ``id_in``          where a record says which schema it was written with: before the value ("prefix"), in Confluent's
                       header ("header") or in Apicurio's ("apicurio-header"); where there is no header, what stands
                       before the value is read
    ``auto_register``  register the schema when the job starts, if the subject does not have it
    """
    return RegistryFormat(_JsonSchemaLanguage(tp, references or {}), registry, subject, id_in, auto_register)


class _JsonSchemaLanguage(Generic[T]):
    """The schema language of JSON Schema."""

    schema_type, label, message_indexes = "JSON", "JSON Schema", b""

    def __init__(self, tp: type[T], references: Mapping[type, str]) -> None:
        codec: JsonCodec[T] = JsonCodec(tp)
        self.type, self._decode = tp, codec.decode
        written = closed(_schema(tp, "serialization"))
        self.record = str(written.get("title", type_name(tp))) if isinstance(written, dict) else type_name(tp)
        self.schema: Json = {"$schema": DRAFT, **written} if isinstance(written, dict) else written
        self.write_schema = in_parts(written, subjects_of(references, _held(written, references), tp))
        self._encode = create_validating_encoder(written, type_name(tp), codec)
        self._here, self._read = SchemaSide(written, {}), SchemaSide(_schema(tp, "validation"), {})

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        return partial(self._encode, before)

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        _parsed(writer)
        return self._decode

    def list_differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        return differences(_side(other, registry), self._here)

    def find_incompatibilities(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        return obstacles(_side(writer, registry), self._read)

    def is_equivalent(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Return whether both have the same bytes.

        Registries also store descriptions, and not all find equivalent schemas.
        """
        return not self.list_differences(other, registry)


def _held(schema: Schema, types: Iterable[type]) -> Mapping[str, type]:
    """Return those of ``types`` with definitions in a schema, by the names of these."""
    known = schema.get("definitions", {}) if isinstance(schema, dict) else {}
    return {tp.__name__: tp for tp in types if tp.__name__ in known}


def _schema(tp: Any, mode: Literal["serialization", "validation"]) -> Schema:
    try:
        return draft_07(tp.model_json_schema(mode=mode) if is_model(tp) else types.derive_json_schema(tp))
    except (TypeError, ValueError, NotImplementedError, pydantic.errors.PydanticUserError) as error:
        raise PlanError(f"type {type_name(tp)} has no JSON schema: {reason(error)}") from error


def _side(schema: RegisteredSchema, registry: Registry) -> SchemaSide:
    others = {
        name: of_document(_parsed(each), name)
        for name, each in fetch_references(schema, registry).items()
        if each.kind == "JSON"
    }
    return SchemaSide(_parsed(schema), others)


def _parsed(schema: RegisteredSchema) -> Schema:
    try:
        return draft_07(json.loads(schema.text))
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
