"""Java's own serializers as a witness: Apicurio's for Kafka, with Avro's and networknt's libraries, and Protobuf's.

    with java_serdes() as java:
        data = java.avro(registry.url).written("orders", schema, {"id": 1})

A JVM of its own runs them, and py4j hands bytes and texts over. Rule: nothing here knows our codecs. Values go in and
come out as JSON, in the encoding that the Java library itself has for it.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from google.protobuf.descriptor_pb2 import FileDescriptorProto
from py4j.java_gateway import GatewayParameters, JavaGateway, launch_gateway

from kafka_eos._util.jvm.jars import fetch_jars
from kafka_eos._util.jvm.java import find_java
from kafka_eos.core.records import Headers

_IN_HEADERS = {"apicurio.registry.headers.enabled": True}
_OPTIONS = ["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx256m"]


@contextmanager
def java_serdes() -> Iterator[JavaSerdes]:
    """A JVM with the serializers, which ends with the block."""
    port = launch_gateway(
        classpath=os.pathsep.join(map(str, fetch_jars("serdes"))),
        javaopts=_OPTIONS,
        java_path=find_java(),
        die_on_exit=True,
        redirect_stderr=subprocess.DEVNULL,
    )
    gateway = JavaGateway(gateway_parameters=GatewayParameters(port=port, auto_convert=True))
    try:
        yield JavaSerdes(gateway.jvm)
    finally:
        gateway.shutdown()


class JavaSerdes:
    def __init__(self, jvm: Any) -> None:
        self._jvm = jvm

    # ------------------------------------------------------------ Avro

    def avro_written(self, url: str, topic: str, schema: dict[str, Any], values: Sequence[Any]) -> list[bytes]:
        """Each value, as JSON in Avro's own encoding, as the serializer writes it; it registers the schema."""
        avro = self._jvm.org.apache.avro
        parsed = avro.Schema.Parser().parse(json.dumps(schema))
        serializer = self._configured(self._jvm.io.apicurio.registry.serde.avro.AvroKafkaSerializer(), url)
        return [bytes(serializer.serialize(topic, self._record(parsed, value))) for value in values]

    def avro_told(self, url: str, topic: str, data: bytes) -> Any:
        """What the deserializer makes of it, as JSON in Avro's own encoding."""
        avro = self._jvm.org.apache.avro
        deserializer = self._configured(self._jvm.io.apicurio.registry.serde.avro.AvroKafkaDeserializer(), url)
        record = deserializer.deserialize(topic, data)
        out = self._jvm.java.io.ByteArrayOutputStream()
        encoder = avro.io.EncoderFactory.get().jsonEncoder(record.getSchema(), out)
        avro.generic.GenericDatumWriter(record.getSchema()).write(record, encoder)
        encoder.flush()
        return json.loads(out.toString())

    def avro_with_headers(self, url: str, topic: str, schema: dict[str, Any], value: Any) -> tuple[bytes, Headers]:
        """The same with the id of the schema in a header."""
        avro = self._jvm.org.apache.avro
        parsed = avro.Schema.Parser().parse(json.dumps(schema))
        serializer = self._configured(self._jvm.io.apicurio.registry.serde.avro.AvroKafkaSerializer(), url, _IN_HEADERS)
        headers = self._jvm.org.apache.kafka.common.header.internals.RecordHeaders()
        data = bytes(serializer.serialize(topic, headers, self._record(parsed, value)))
        return data, [(header.key(), bytes(header.value())) for header in headers.toArray()]

    def avro_told_by_headers(self, url: str, topic: str, data: bytes, given: Headers) -> str:
        """What the deserializer makes of it, as text."""
        room = self._jvm.io.apicurio.registry.serde.avro
        headers = self._jvm.org.apache.kafka.common.header.internals.RecordHeaders()
        for name, value in given:
            headers.add(name, value)
        record = self._configured(room.AvroKafkaDeserializer(), url, _IN_HEADERS).deserialize(topic, headers, data)
        return str(record.toString())

    def _record(self, schema: Any, value: Any) -> Any:
        avro = self._jvm.org.apache.avro
        decoder = avro.io.DecoderFactory.get().jsonDecoder(schema, json.dumps(value))
        return avro.generic.GenericDatumReader(schema).read(None, decoder)

    # ------------------------------------------------------------ JSON Schema

    def json_written(self, url: str, topic: str, value: Any) -> bytes:
        """The value as the serializer writes it, which compares it with the newest schema of its subject."""
        room = self._jvm.io.apicurio.registry.serde.jsonschema
        tree = self._jvm.com.fasterxml.jackson.databind.ObjectMapper().readTree(json.dumps(value))
        newest = {"apicurio.registry.auto-register": False, "apicurio.registry.find-latest": True}
        serializer = self._configured(room.JsonSchemaKafkaSerializer(), url, newest)
        return bytes(serializer.serialize(topic, tree))

    def json_told(self, url: str, topic: str, data: bytes) -> Any:
        """What the deserializer makes of it. Raises if it does not fit its schema."""
        deserializer = self._configured(
            self._jvm.io.apicurio.registry.serde.jsonschema.JsonSchemaKafkaDeserializer(), url
        )
        return json.loads(deserializer.deserialize(topic, data).toString())

    # ------------------------------------------------------------ Protobuf

    def protobuf_told(self, files: Sequence[FileDescriptorProto], name: str, body: bytes) -> Any:
        """What Protobuf for Java makes of a message, as JSON. The last of ``files`` has it, and imports the others."""
        room = self._jvm.com.google.protobuf
        message = room.DynamicMessage.parseFrom(self._descriptor(files, name), body)
        assert message.getUnknownFields().asMap().isEmpty()
        return json.loads(room.util.JsonFormat.printer().print(message))

    def protobuf_written(self, files: Sequence[FileDescriptorProto], name: str, value: Any) -> bytes:
        """The message of a value in Protobuf's JSON."""
        room = self._jvm.com.google.protobuf
        builder = room.DynamicMessage.newBuilder(self._descriptor(files, name))
        room.util.JsonFormat.parser().merge(json.dumps(value), builder)
        return bytes(builder.build().toByteArray())

    def _descriptor(self, files: Sequence[FileDescriptorProto], name: str) -> Any:
        """Of the message ``name`` in the last file."""
        room = self._jvm.com.google.protobuf
        known: list[Any] = []
        for file in files:
            proto = room.DescriptorProtos.FileDescriptorProto.parseFrom(file.SerializeToString())
            needed = self._jvm.java.lang.reflect.Array.newInstance(
                self._jvm.java.lang.Class.forName("com.google.protobuf.Descriptors$FileDescriptor"), len(known)
            )
            for at, each in enumerate(known):
                needed[at] = each
            known.append(room.Descriptors.FileDescriptor.buildFrom(proto, needed))
        return known[-1].findMessageTypeByName(name)

    def _configured(self, serde: Any, url: str, more: dict[str, Any] | None = None) -> Any:
        """For Confluent's wire format and subjects by topic."""
        settings = self._jvm.java.util.HashMap()
        for name, value in {
            "apicurio.registry.url": url.replace("/ccompat/v7", "/registry/v2"),
            "apicurio.registry.auto-register": True,
            "apicurio.registry.headers.enabled": False,
            "apicurio.registry.id-handler": "io.apicurio.registry.serde.Legacy4ByteIdHandler",
            "apicurio.registry.use-id": "contentId",
            "apicurio.registry.artifact-resolver-strategy": "io.apicurio.registry.serde.strategy.TopicIdStrategy",
            **(more or {}),
        }.items():
            settings.put(name, value)
        serde.configure(settings, False)
        return serde
