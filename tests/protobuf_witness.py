"""Protobuf in Confluent's wire format by Confluent's own serializers; and classes like those of protoc."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass

from kafka_eos.codecs.protobuf.descriptor_pools import pooled
from kafka_eos.codecs.protobuf.proto_parser import parse_proto


def proto3(*lines: str, package: str = "com.shop") -> str:
    """A file of these lines."""
    return "\n".join(('syntax = "proto3";', f"package {package};", *lines))


def classes(text: str, name: str = "shop.proto", **imports: str) -> dict[str, Any]:
    """The class of each message at the top of a file, by its name; ``imports``: the files ``<name>.proto``."""
    others = {f"{each}.proto": parse_proto(text, f"{each}.proto") for each, text in imports.items()}
    file = pooled(parse_proto(text, name), others)
    return {each: GetMessageClass(message) for each, message in file.message_types_by_name.items()}


def generated(text: str, name: str = "shop.proto") -> str:
    """A module that has the classes of a file: what protoc writes, in short."""
    file = parse_proto(text, name)
    lines = [
        *(f"import {each.removesuffix('.proto')}_pb2" for each in file.dependency),
        "from google.protobuf import descriptor_pool, message_factory",
        f"_file = descriptor_pool.Default().AddSerializedFile({file.SerializeToString()!r})",
        *(
            f'{each.name} = message_factory.GetMessageClass(_file.message_types_by_name["{each.name}"])'
            for each in file.message_type
        ),
    ]
    return "\n".join(lines) + "\n"


def written(url: str, topic: str, values: Iterable[Any]) -> list[bytes]:
    """Each message as Confluent's serializer writes it, which registers its file as a descriptor in base64."""
    made: list[bytes] = []
    for value in values:
        serialize = ProtobufSerializer(
            type(value), SchemaRegistryClient.new_client({"url": url}), {"use.deprecated.format": False}
        )
        made.append(serialize(value, SerializationContext(topic, MessageField.VALUE)))
    return made


def told(tp: Any, data: bytes) -> Any:
    """What Confluent's deserializer makes of it. Without a registry: it asks for schemas in base64, which Apicurio's
    does not answer with.
    """
    deserialize = ProtobufDeserializer(tp, {"use.deprecated.format": False})
    return deserialize(data, SerializationContext("topic", MessageField.VALUE))
