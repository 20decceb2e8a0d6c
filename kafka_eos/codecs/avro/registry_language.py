"""Avro with a schema registry: ``avro(Order, registry=registry)``.

The written schema is derived from the type; a read one may be of any program. Rule: names of fields must match, names
of types need not: a type that another team calls ``com.shop.OrderPlaced`` can be read as ``Order``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, Generic, TypeVar

from kafka_eos.codecs.avro.avro_codec import AvroCodec
from kafka_eos.codecs.avro.differences import differences
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.codecs.avro.schema_derivation import named_types
from kafka_eos.codecs.avro.schema_references import split_by_subject
from kafka_eos.codecs.registry.header_ids import IdIn
from kafka_eos.codecs.registry.registry_client import RegisteredSchema, Registry
from kafka_eos.codecs.registry.registry_format import RegistryFormat, Subject
from kafka_eos.codecs.registry.schema_references import fetch_references, subjects_of
from kafka_eos.core.errors import PlanError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

_NAMESPACE: Final = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def avro(
    tp: type[T],
    *,
    registry: Registry,
    subject: Subject = "topic",
    namespace: str | None = None,
    references: Mapping[type, str] | None = None,
    id_in: IdIn = "prefix",
    auto_register: bool = False,
) -> RegistryFormat[T]:
    """Values of ``tp`` as Avro with schemas of ``registry``, for keys and values of ``KafkaSource`` and ``KafkaSink``.

    ``tp``             a pydantic model, a msgspec Struct or a dataclass
    ``subject``        the subject of the written schema: "topic" (``orders-value``),
                       "record" (the record's full name), "topic-record", or a function of topic, part and record name
    ``namespace``      of the record that is written
    ``references``     types within ``tp`` that have subjects of their own, by type: ``{Line: "com.shop.Line"}``. The
                       schema that is written refers to them
    ``id_in``          where a record says which schema it was written with: before the value ("prefix"), in Confluent's
                       header ("header") or in Apicurio's ("apicurio-header"); where there is no header, what stands
                       before the value is read
    ``auto_register``  register the schema when the job starts, if the subject does not have it
    """
    if namespace is not None and not _NAMESPACE.fullmatch(namespace):
        raise PlanError(f"namespace={namespace!r}: use names with dots between them, as com.example.orders")
    return RegistryFormat(_AvroLanguage(tp, namespace, references or {}), registry, subject, id_in, auto_register)


class _AvroLanguage(Generic[T]):
    """The schema language of Avro."""

    schema_type, label, message_indexes = "AVRO", "Avro", b""

    def __init__(self, tp: type[T], namespace: str | None, references: Mapping[type, str]) -> None:
        self._codec: AvroCodec[T] = AvroCodec(tp)
        schema: Any = self._codec.schema
        self.type = tp
        self.schema: Json = schema if namespace is None else {"namespace": namespace, **schema}
        self.record: str = schema["name"] if namespace is None else f"{namespace}.{schema['name']}"
        self.write_schema = split_by_subject(schema, namespace, subjects_of(references, named_types(tp), tp))

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        return self._codec.writing(before)

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        return self._codec.foreign(_parsed(writer), _named(writer, registry))

    def list_differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        return differences(*parse_schema(_parsed(other), _named(other, registry)), *parse_schema(self.schema))

    def find_incompatibilities(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        return obstacles(*parse_schema(_parsed(writer), _named(writer, registry)), *parse_schema(self.schema))

    def is_equivalent(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Return whether both have the same bytes. Registries compare schemas, but not inlined ones with references."""
        return bool(other.references) and not self.list_differences(other, registry)


def _named(schema: RegisteredSchema, registry: Registry) -> list[Json]:
    return [_parsed(each) for each in fetch_references(schema, registry).values()]


def _parsed(schema: RegisteredSchema) -> Json:
    try:
        parsed: Json = json.loads(schema.text)
    except RecursionError:
        raise ValueError("the schema is nested too deeply") from None
    return parsed
