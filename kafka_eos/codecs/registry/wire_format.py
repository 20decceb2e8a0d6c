"""Confluent's wire format: a zero byte, the schema id in four bytes, then the value in the schema's format.

    RegistryCodec    for one topic: reads every schema that the registry knows, writes with one schema of it

Rule: a value is resolved from the schema with which it was written, found by its id. An id that the registry does not
know, or refuses, is the record's fault. An unavailable registry is not, and is retried; and so is one that refuses all
requests after the start, because a proxy or a change of its permissions may do so for a while. Only the check at the
start of a job registers schemas: other encoders, such as the audit, change nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Protocol, TypeAlias, TypeVar

from kafka_eos.abc.codec import Codec, SchemaComparison
from kafka_eos.codecs.batch_functions import BatchDecoder, BatchEncoder
from kafka_eos.codecs.registry.registry_client import (
    MAX_SCHEMA_ID,
    IncompatibleSchema,
    RegisteredSchema,
    Registry,
)
from kafka_eos.codecs.registry.schema_registration import (
    ReferenceNotRegistered,
    UnregisteredSchema,
    register,
    resolve_versions,
)
from kafka_eos.codecs.registry.unknown_schemas import PAUSES, SchemaLookupRetry, SchemaNotFound, expect_found
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.core.error_messages import UnfitValue
from kafka_eos.core.errors import ConfigError, RegistryUnavailable
from kafka_eos.core.json_values import Json

T = TypeVar("T")

MAGIC: Final = b"\0"
PREFIX: Final = 5
"""Bytes of the magic byte and the id."""
_MOST: Final = 1000
"""Schemas whose decoders are kept; a topic has a few. The oldest are fetched again from the registry."""
_MOST_TEXT: Final = 16 << 20
"""Characters of all these schemas: a parsed one takes about ten times as many bytes. A single one may be larger."""
_TO_REGISTER: Final = "not registered: auto_register=True does it at the start"


SchemaId: TypeAlias = "int | str"
"""A number, or a globally unique one in its usual form."""


class SchemaLanguage(Protocol[T]):
    """Values of one type in one schema language: Avro, Protobuf or JSON Schema."""

    type: Any
    schema_type: str
    """AVRO, PROTOBUF or JSON, as registries name it."""
    label: str
    """Its name for display."""
    record: str
    """The full name of the record, for subjects."""
    schema: Json
    """The schema that is written, as JSON."""
    write_schema: UnregisteredSchema
    """The schema that is written, before registration."""
    message_indexes: bytes
    """Protobuf's message indexes between schema id and value; else empty."""

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        """Return a function that encodes values, each behind ``before``. It may be a ``BatchEncoder``."""

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        """Return a decoder of values of ``writer``, possibly a ``BatchDecoder``.

        Raises ValueError if it is not a schema, or does not fit the type.
        """

    def list_differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        """List the differences to the schema that is written. Raises ValueError if ``other`` is not a schema."""

    def is_equivalent(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Return whether values written with another schema have the same bytes.

        Raises ValueError if it is not a schema.
        """

    def find_incompatibilities(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        """List why values of a writer's schema cannot be read. Raises ValueError if it is not a schema."""


class DecoderCache:
    """The decoders of the most recent schemas, by value prefix. Rule: memory is bounded."""

    def __init__(self) -> None:
        self._kept: dict[bytes, Callable[[bytes], Any]] = {}
        self._text: dict[bytes, int] = {}
        self.get = self._kept.get
        """The decoder behind a prefix; None if it must be made."""

    def keep(self, prefix: bytes, decode: Callable[[bytes], Any], text: int) -> None:
        """Cache a decoder. ``text``: characters of the schema."""
        while self._kept and (len(self._kept) >= _MOST or sum(self._text.values()) + text > _MOST_TEXT):
            oldest = next(iter(self._kept))
            del self._kept[oldest], self._text[oldest]
        self._kept[prefix], self._text[prefix] = decode, text


def _refuse(error: ValueError) -> Callable[[bytes], Any]:
    """Return the decoder of a schema whose values cannot be read. Parsing it again for each might take seconds."""
    kind, text = type(error), str(error)

    def decode(data: bytes) -> Any:
        raise kind(text)

    return decode


class RegistryCodec(Codec[T]):
    """Values of one type in Confluent's wire format."""

    def __init__(self, language: SchemaLanguage[T], registry: Registry, subject: str, auto_register: bool) -> None:
        self.type, self.subject = language.type, subject
        self._language = language
        self._registry = registry
        self._auto_register = auto_register
        self._prefix: bytes | None = None
        self._encode: Callable[[T], bytes] | None = None
        self._decoders = DecoderCache()
        self._unknown = SchemaLookupRetry(() if registry.in_memory else PAUSES)

    @property
    def name(self) -> str:
        return f"registry-{self._language.schema_type.lower()}"

    @property
    def schema(self) -> Json:
        return self._language.schema

    def describe(self) -> str:
        """Describe the codec."""
        others = ", ".join(self._language.write_schema.subjects())
        more = f"; it refers to {others}" if others else ""
        return f"{self._language.label} {type_name(self.type)}, subject {self.subject} of {self._registry.url}{more}"

    def check(self) -> Sequence[str]:
        """Check that a schema exists to write with. ``auto_register`` registers it."""
        if self._auto_register and self._known_id() is None:
            self._register()
        self._require_schema_id()
        return self._in_memory()

    def check_reading(self) -> Sequence[str]:
        compared = self.compare_schema(reading=True)
        if not compared.problems:
            return self._in_memory()
        return [
            f"{compared.counterpart} cannot be read as {type_name(self.type)}: "
            f"{'; '.join(compared.problems)}. Records that "
            "are written with it will be refused"
        ]

    def compare_schema(self, reading: bool) -> SchemaComparison:
        """Compare the schema."""
        found = self._registry.get_latest_version(self.subject)
        if found is None:
            missing = f"subject {self.subject} of {self._registry.url} does not exist"
            refused = [] if reading or self._auto_register else [_TO_REGISTER]
            return SchemaComparison(missing, problems=refused, is_there=False)
        counterpart = f"version {found.number} of subject {self.subject} of {self._registry.url}"
        try:
            differences, wrong = self._differences(found.schema), self._wrong(found.schema, reading)
        except ValueError as error:
            return SchemaComparison(counterpart, problems=[str(error)])
        return SchemaComparison(counterpart, differences, wrong)

    def _wrong(self, newest: RegisteredSchema, reading: bool) -> Sequence[str]:
        if reading:
            if newest.kind != self._language.schema_type:
                return [f"it is one of kind {newest.kind}, not {self._language.schema_type}"]
            return self._language.find_incompatibilities(newest, self._registry)
        if self._known_id() is not None:
            return []
        try:
            written = resolve_versions(self._language.write_schema, self._registry)
        # the registry cannot compare a schema whose references are not registered
        except ReferenceNotRegistered as error:
            return [] if self._auto_register else [str(error), _TO_REGISTER]
        if not self._registry.is_compatible(self.subject, written):
            asked = self._registry.compatibility(self.subject)
            return [f"not compatible: the subject requires {asked}", *self._differences(newest)]
        return [] if self._auto_register else [_TO_REGISTER]

    def _in_memory(self) -> Sequence[str]:
        if not self._registry.in_memory:
            return []
        return [f"the registry {self._registry.url} is in the memory of each process: it is for tests only"]

    def encode(self, value: T) -> bytes:
        """Encode a value; the first one fetches the schema id."""
        if self._encode is None:
            self._encode = self._language.encoder(self._before_values())
        return self._encode(value)

    def _before_values(self) -> bytes:
        """Return the bytes before each written value."""
        return self._head()

    def _head(self) -> bytes:
        """Return the prefix that identifies the schema of written values, and their message in it."""
        return (self._prefix or self._expect_schema_id()) + self._language.message_indexes

    def _expect_schema_id(self) -> bytes:
        """Look up the id after the start. It has found the schema, so another response now may change again."""
        try:
            return self._require_schema_id()
        except ConfigError as error:
            if self._registry.in_memory:
                raise
            raise RegistryUnavailable(str(error)) from None

    def decode(self, data: bytes) -> T:
        decode = self._decoders.get(data[:PREFIX])
        if decode is None:
            decode = self._fetch_decoder(data[:PREFIX])
        return decode(data[PREFIX:])

    def decode_batch(self, data: Sequence[bytes]) -> list[T] | None:
        """Decode values of a known schema."""
        before = data[0][:PREFIX] if data else b""
        decode: Any = self._decoders.get(before)
        return decode.batch(before, data) if isinstance(decode, BatchDecoder) else None

    def encode_batch(self, values: Sequence[T]) -> list[bytes] | None:
        """Encode values once the id is known."""
        return self._encode.batch(values) if isinstance(self._encode, BatchEncoder) else None

    def _require_schema_id(self) -> bytes:
        schema_id = self._known_id()
        if schema_id is None:
            how = "start the job again" if self._auto_register else "auto_register=True does it at the start"
            raise ConfigError(
                f"subject {self.subject!r} of the schema registry {self._registry.url} does not have the schema of "
                f"{type_name(self.type)}. {self._compared()}. Register it: {how}, or send it yourself{self._behind()}: "
                f"{self._language.write_schema.text}"
            )
        self._prefix = MAGIC + schema_id.to_bytes(4, "big")
        return self._prefix

    def _register(self) -> None:
        """Register the schema, and wait until all queried servers of the registry know it."""
        try:
            register(self.subject, self._language.write_schema, self._registry, self._unknown)
        except IncompatibleSchema as error:
            raise ConfigError(self._not_taken(error)) from None
        with suppress(SchemaNotFound):  # the later lookup reports what is missing
            self._unknown.retry(self.subject, self._expect_known)

    def _expect_known(self) -> None:
        if self._known_id() is None:
            raise SchemaNotFound(f"subject {self.subject} does not have it")

    def _not_taken(self, error: IncompatibleSchema) -> str:
        compared = f" {self._compared()}." if error.subject == self.subject else ""
        asked = self._registry.compatibility(error.subject)
        return (
            f"subject {error.subject!r} of the schema registry {self._registry.url} rejects the "
            f"schema of {type_name(self.type)}.{compared} The subject requires {asked}. Make the "
            "change compatible: a new field needs a default, a removed field must have had one, "
            "and a type may only become wider. Or write to another topic or subject. Or, if all "
            "readers of the topic can read both, let the owner of the subject set its "
            f"compatibility to NONE. The registry says: {error.reason}"
        )

    def _behind(self) -> str:
        others = ", ".join(self._language.write_schema.subjects())
        return f", behind those that it refers to (subjects {others})" if others else ""

    def _known_id(self) -> int | None:
        """Return the id of the written schema, or of an equivalent one; None if the subject has neither."""
        try:
            found = self._registry.id_of(self.subject, resolve_versions(self._language.write_schema, self._registry))
        except ReferenceNotRegistered:
            found = None
        if found is not None:
            return found
        newest = self._registry.get_latest_version(self.subject)
        if newest is None or newest.schema.kind != self._language.schema_type:
            return None
        try:
            return newest.schema_id if self._language.is_equivalent(newest.schema, self._registry) else None
        except ValueError:
            return None  # not a schema, so not equivalent; the comparison reports what it is

    def _compared(self) -> str:
        """Compare the schema with the newest one of its subject."""
        found = self._registry.get_latest_version(self.subject)
        if found is None:
            return "The subject does not exist yet"
        try:
            differences = self._differences(found.schema)
        except ValueError as error:
            return f"Its newest version, {found.number}, cannot be compared: {error}"
        what = "; ".join(differences) or "in documentation or properties alone"
        return f"In its newest version, {found.number}, it differs: {what}"

    def _differences(self, newest: RegisteredSchema) -> list[str]:
        if newest.kind != self._language.schema_type:
            return [f"it is one of kind {newest.kind} there, {self._language.schema_type} here"]
        return self._language.list_differences(newest, self._registry)

    def _fetch_decoder(self, prefix: bytes) -> Callable[[bytes], T]:
        """Fetch a schema and create its decoder."""
        schema_id, ask = self._named(prefix)
        return self._unknown.retry(schema_id, lambda: self._ask(prefix, schema_id, ask))

    def _ask(
        self, prefix: bytes, schema_id: SchemaId, ask: Callable[[], RegisteredSchema | None]
    ) -> Callable[[bytes], T]:
        """Ask the registry once. If it refuses every request, and not those for this schema, no record is at fault."""
        try:
            return self._fetched(prefix, schema_id, ask())
        except ConfigError as refused:
            if self._registry.answers_for_ids():
                raise SchemaNotFound(str(refused)) from None
            raise RegistryUnavailable(str(refused)) from None

    def _fetched(self, prefix: bytes, schema_id: SchemaId, found: RegisteredSchema | None) -> Callable[[bytes], T]:
        writer = expect_found(found, schema_id, self._registry.url)
        try:
            if writer.kind != self._language.schema_type:
                raise UnfitValue(f"schema {schema_id} is one of kind {writer.kind}, not {self._language.schema_type}")
            decode, text = self._language.decoder(writer, self._registry), len(writer.text)
        except SchemaNotFound as error:  # it refers to one that may be registered later
            raise SchemaNotFound(f"schema {schema_id} of {self._registry.url}: {error}") from None
        except UnfitValue as error:
            decode, text = _refuse(error), 0
        except ValueError as error:
            decode, text = _refuse(ValueError(f"schema {schema_id} of {self._registry.url}: {error}")), 0
        self._decoders.keep(prefix, decode, text)
        return decode

    def _named(self, prefix: bytes) -> tuple[SchemaId, Callable[[], RegisteredSchema | None]]:
        """Return the id in a prefix, and the function that fetches its schema."""
        if len(prefix) < PREFIX or prefix[:1] != MAGIC:
            raise ValueError(
                "not in the wire format of a schema registry: it begins with "
                f"{prefix.hex(' ') or 'nothing'}, not with a zero byte and a schema id. Use "
                'id_in="header" if a record header contains the id'
            )
        schema_id = int.from_bytes(prefix[1:], "big")
        if schema_id > MAX_SCHEMA_ID:
            raise UnfitValue(f"{schema_id} is not a schema id: the largest one is {MAX_SCHEMA_ID}")
        return schema_id, partial(self._registry.schema, schema_id)
