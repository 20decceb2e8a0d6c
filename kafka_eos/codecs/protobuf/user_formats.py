"""``protobuf(Order)`` and ``protobuf(Order, registry=registry)``, for sources, sinks and state.

Protobuf is an extra, so it is imported only when it is used.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeVar, overload

from kafka_eos._util.extras import ensure_extra
from kafka_eos.abc.codec import Codec
from kafka_eos.codecs.registry.header_ids import IdIn
from kafka_eos.codecs.registry.registry_client import Registry
from kafka_eos.codecs.registry.registry_format import RegistryFormat, Subject
from kafka_eos.core.errors import ConfigError

T = TypeVar("T")


@overload
def protobuf(tp: type[T]) -> Codec[T]: ...


@overload
def protobuf(
    tp: type[T],
    *,
    registry: Registry,
    subject: Subject = "topic",
    references: Mapping[str, str] | None = None,
    id_in: IdIn = "prefix",
    auto_register: bool = False,
) -> RegistryFormat[T]: ...


def protobuf(
    tp: type[T],
    *,
    registry: Registry | None = None,
    subject: Subject = "topic",
    references: Mapping[str, str] | None = None,
    id_in: IdIn = "prefix",
    auto_register: bool = False,
) -> Codec[T] | RegistryFormat[T]:
    """Values of ``tp``, a class that protoc has generated, as Protobuf: for keys, values and state.

    Without a registry, messages as they are; in sources, sinks and state the class alone means the same.

    ``registry``       schemas are in it, and records in Confluent's wire format; for keys and values only
    ``subject``        the subject of the written schema: "topic" (``orders-value``),
                       "record" (the message's full name), "topic-record", or a function of topic, part and full name
    ``references``     the subjects of files that the message's file imports, by file; default: each is called like its
                       file, as with Confluent's serializers
    ``id_in``          where a record says which schema it was written with: before the value ("prefix") or in
                       Confluent's header ("header"); where there is no header, what stands before the value is read
    ``auto_register``  register the schema when the job starts, if the subject does not have it
    """
    if registry is None:
        if subject != "topic" or references or id_in != "prefix" or auto_register:
            raise ConfigError(
                "protobuf(…) without a registry has no subject, and registers nothing: registry=… is missing"
            )
        return message_codec(tp)
    ensure_extra("protobuf", "protobuf(…)")
    from kafka_eos.codecs.protobuf.registry_language import ProtobufLanguage

    return RegistryFormat(ProtobufLanguage(tp, references or {}), registry, subject, id_in, auto_register)


def message_codec(tp: Any) -> Codec[Any]:
    """Return the codec of plain messages. Raises PlanError if ``tp`` is not a message class."""
    ensure_extra("protobuf", "protobuf(…)")
    from kafka_eos.codecs.protobuf.message_codec import ProtobufCodec

    return ProtobufCodec(tp)
