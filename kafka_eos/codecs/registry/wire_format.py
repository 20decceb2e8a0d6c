"""Confluent's wire format: a zero byte, the id of the schema in four bytes, then the value in the format of the schema.

    RegistryCodec    for one topic: reads whatever the registry knows, writes with one schema of it

Rule: what is read is resolved from the schema that it was written with, found by its id. An id that the registry does
not know is the record's fault; a registry that is away is nobody's, and is asked again. Only the check at the start of
a job registers: whoever encodes besides, as the audit does, changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, Generic, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.abc.codec import Comparison
from kafka_eos.codecs.registry.decoder_cache import Decoders
from kafka_eos.codecs.registry.registry_client import NotTaken, RegisteredSchema, Registry
from kafka_eos.codecs.registry.schema_registration import Draft, NotRegistered, looked_up, register
from kafka_eos.codecs.registry.unknown_schemas import PAUSES, NotKnown, Unknown
from kafka_eos.codecs.type_inspection import type_name
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json

T = TypeVar("T")

MAGIC: Final = b"\0"
PREFIX: Final = 5
"""Bytes of the magic byte and the id."""
_TO_REGISTER: Final = "not registered: auto_register=True does it at the start"


SchemaId: TypeAlias = "int | str"
"""A number, or a globally unique one in its usual form."""


class Language(Protocol[T]):
    """Values of one type in one kind of schemas: what stands behind the id."""

    type: Any
    kind: str
    """As registries call it."""
    label: str
    """As people call it."""
    record: str
    """The full name of the record, for subjects."""
    schema: Json
    """Of what is written."""
    written: Draft
    """The same as a registry keeps it."""
    place: bytes
    """What stands between the id and a value: of Protobuf, which message of its file the value is; else nothing."""

    def encoder(self, before: bytes) -> Callable[[T], bytes]:
        """What writes values, each behind ``before``. It may be a ``BatchEncoder``."""

    def decoder(self, writer: RegisteredSchema, registry: Registry) -> Callable[[bytes], T]:
        """What decodes values of ``writer``. ValueError if it is no schema, or none that fits the type.

        It may be a ``BatchDecoder``.
        """

    def differences(self, other: RegisteredSchema, registry: Registry) -> list[str]:
        """In what it differs from what is written, for people. ValueError if it is no schema."""

    def alike(self, other: RegisteredSchema, registry: Registry) -> bool:
        """Is what is written written with ``other`` as well, byte by byte? ValueError if it is no schema."""

    def obstacles(self, writer: RegisteredSchema, registry: Registry) -> list[str]:
        """Why values of ``writer``, or some, cannot be read as the type. ValueError if it is no schema."""


@runtime_checkable
class BatchDecoder(Protocol):
    """A decoder that is faster with many values."""

    def batch(self, before: bytes, data: Sequence[bytes]) -> list[Any] | None:
        """Values behind ``before`` each. None if one does not stand there, or must be decoded alone."""


@runtime_checkable
class BatchEncoder(Protocol):
    """An encoder that is faster with many values."""

    def batch(self, values: Sequence[Any]) -> list[bytes] | None:
        """None if one must be encoded alone, for instance because it is bad."""


class RegistryCodec(Generic[T]):
    """Values of one type in Confluent's wire format."""

    def __init__(self, language: Language[T], registry: Registry, subject: str, auto_register: bool) -> None:
        self.type, self.subject = language.type, subject
        self._language, self._registry, self._auto_register = language, registry, auto_register
        self._prefix: bytes | None = None
        self.encode: Callable[[T], bytes] = self._encode_first
        self._decoders = Decoders()
        self._unknown = Unknown(() if registry.in_memory else PAUSES)

    @property
    def name(self) -> str:
        return f"registry-{self._language.kind.lower()}"

    @property
    def schema(self) -> Json:
        return self._language.schema

    def describe(self) -> str:
        """See ``abc.Described``."""
        others = ", ".join(self._language.written.subjects())
        more = f"; it refers to {others}" if others else ""
        return f"{self._language.label} {type_name(self.type)}, subject {self.subject} of {self._registry.url}{more}"

    def check(self) -> Sequence[str]:
        """See ``abc.Checked``: is there a schema to write with? With ``auto_register`` there is one then."""
        if self._auto_register and self._known_id() is None:
            self._register()
        self._ready()
        return self._in_memory()

    def check_reading(self) -> Sequence[str]:
        compared = self.compared(reading=True)
        if not compared.wrong:
            return self._in_memory()
        return [
            f"{compared.beside} cannot be read as {type_name(self.type)}: {'; '.join(compared.wrong)}. Records that "
            "are written with it will be refused"
        ]

    def compared(self, reading: bool) -> Comparison:
        """See ``abc.Comparable``."""
        found = self._registry.newest(self.subject)
        if found is None:
            missing = f"subject {self.subject} of {self._registry.url} is not there"
            refused = [] if reading or self._auto_register else [_TO_REGISTER]
            return Comparison(missing, wrong=refused, is_there=False)
        beside = f"version {found.number} of subject {self.subject} of {self._registry.url}"
        try:
            differences, wrong = self._differences(found.schema), self._wrong(found.schema, reading)
        except ValueError as error:
            return Comparison(beside, wrong=[str(error)])
        return Comparison(beside, differences, wrong)

    def _wrong(self, newest: RegisteredSchema, reading: bool) -> Sequence[str]:
        if reading:
            if newest.kind != self._language.kind:
                return [f"it is one of kind {newest.kind}, not {self._language.kind}"]
            return self._language.obstacles(newest, self._registry)
        if self._known_id() is not None:
            return []
        try:
            written = looked_up(self._language.written, self._registry)
        except NotRegistered as error:  # what is not there yet the registry cannot compare
            return [] if self._auto_register else [str(error), _TO_REGISTER]
        if not self._registry.takes(self.subject, written):
            asked = self._registry.compatibility(self.subject)
            return [f"not compatible: the subject asks for {asked}", *self._differences(newest)]
        return [] if self._auto_register else [_TO_REGISTER]

    def _in_memory(self) -> Sequence[str]:
        if not self._registry.in_memory:
            return []
        return [f"the registry {self._registry.url} is in the memory of each process: it is for tests alone"]

    def _encode_first(self, value: T) -> bytes:
        """From now on the id is known, and ``encode`` is what the language makes of it."""
        self.encode = self._language.encoder(self._before_values())
        return self.encode(value)

    def _before_values(self) -> bytes:
        """What stands before each value that is written."""
        return self._head()

    def _head(self) -> bytes:
        """What names the schema of values that are written, and their place in it."""
        return (self._prefix or self._ready()) + self._language.place

    def decode(self, data: bytes) -> T:
        decode = self._decoders.get(data[:PREFIX])
        if decode is None:
            decode = self._opened(data[:PREFIX])
        return decode(data[PREFIX:])

    def decode_batch(self, data: Sequence[bytes]) -> list[T] | None:
        """See ``abc.InBatches``: values of a schema that was read before."""
        before = data[0][:PREFIX] if data else b""
        decode: Any = self._decoders.get(before)
        return decode.batch(before, data) if isinstance(decode, BatchDecoder) else None

    def encode_batch(self, values: Sequence[T]) -> list[bytes] | None:
        """See ``abc.InBatches``: as soon as the id is known."""
        encode: Any = self.encode
        return encode.batch(values) if isinstance(encode, BatchEncoder) else None

    def _ready(self) -> bytes:
        schema_id = self._known_id()
        if schema_id is None:
            how = "start the job again" if self._auto_register else "auto_register=True does it at the start"
            raise ConfigError(
                f"subject {self.subject!r} of the schema registry {self._registry.url} does not have the schema of "
                f"{type_name(self.type)}. {self._compared()}. Register it: {how}, or send it yourself{self._behind()}: "
                f"{self._language.written.text}"
            )
        self._prefix = MAGIC + schema_id.to_bytes(4, "big")
        return self._prefix

    def _register(self) -> None:
        """Return when the registry knows it, whichever of its servers is asked."""
        try:
            register(self.subject, self._language.written, self._registry, self._unknown)
        except NotTaken as error:
            raise ConfigError(self._not_taken(error)) from None
        with suppress(NotKnown):  # who needs it says what is missing
            self._unknown.waited_for(self.subject, self._expect_known)

    def _expect_known(self) -> None:
        if self._known_id() is None:
            raise NotKnown(f"subject {self.subject} does not have it")

    def _not_taken(self, error: NotTaken) -> str:
        compared = f" {self._compared()}." if error.subject == self.subject else ""
        asked = self._registry.compatibility(error.subject)
        return (
            f"subject {error.subject!r} of the schema registry {self._registry.url} does not take the schema of "
            f"{type_name(self.type)}.{compared} The subject asks for {asked}. Make the "
            "change compatible: a field that is new has a default, one that goes had one, a type becomes a wider one. "
            "Or write to another topic or subject. Or let the owner of the subject allow the change, by setting its "
            f"compatibility to NONE, when all who read the topic can read both. The registry says: {error.said}"
        )

    def _behind(self) -> str:
        others = ", ".join(self._language.written.subjects())
        return f", behind those that it refers to (subjects {others})" if others else ""

    def _known_id(self) -> int | None:
        """Of the schema that is written, or of one that is alike; None if the subject has neither."""
        try:
            found = self._registry.id_of(self.subject, looked_up(self._language.written, self._registry))
        except NotRegistered:
            found = None
        if found is not None:
            return found
        newest = self._registry.newest(self.subject)
        if newest is None or newest.schema.kind != self._language.kind:
            return None
        try:
            return newest.schema_id if self._language.alike(newest.schema, self._registry) else None
        except ValueError:
            return None  # whatever it is, it is not the one; who compares them is told what it is

    def _compared(self) -> str:
        """The schema beside the newest one of its subject."""
        found = self._registry.newest(self.subject)
        if found is None:
            return "There is no such subject yet"
        try:
            differences = self._differences(found.schema)
        except ValueError as error:
            return f"Its newest version, {found.number}, cannot be compared: {error}"
        what = "; ".join(differences) or "in documentation or properties alone"
        return f"In its newest version, {found.number}, it differs: {what}"

    def _differences(self, newest: RegisteredSchema) -> list[str]:
        if newest.kind != self._language.kind:
            return [f"it is one of kind {newest.kind} there, {self._language.kind} here"]
        return self._language.differences(newest, self._registry)

    def _opened(self, prefix: bytes) -> Callable[[bytes], T]:
        """The decoder of the schema that a prefix names, fetched."""
        schema_id, ask = self._named(prefix)
        return self._unknown.waited_for(schema_id, lambda: self._fetched(prefix, schema_id, ask()))

    def _fetched(self, prefix: bytes, schema_id: SchemaId, writer: RegisteredSchema | None) -> Callable[[bytes], T]:
        if writer is None:
            raise NotKnown(f"the schema registry {self._registry.url} does not know schema {schema_id}")
        if writer.kind != self._language.kind:
            raise ValueError(f"schema {schema_id} is one of kind {writer.kind}, not {self._language.kind}")
        try:
            decode = self._language.decoder(writer, self._registry)
        except ValueError as error:
            kind = NotKnown if isinstance(error, NotKnown) else ValueError
            raise kind(f"schema {schema_id} of {self._registry.url}: {error}") from None
        self._decoders.keep(prefix, decode, len(writer.text))
        return decode

    def _named(self, prefix: bytes) -> tuple[SchemaId, Callable[[], RegisteredSchema | None]]:
        """The id in a prefix, and what asks the registry for its schema."""
        if len(prefix) < PREFIX or prefix[:1] != MAGIC:
            raise ValueError(
                f"not in the wire format of a schema registry: it begins with {prefix.hex(' ') or 'nothing'}, not with "
                'a zero byte and the id of a schema. An id in a header of its own is read with id_in="header"'
            )
        schema_id = int.from_bytes(prefix[1:], "big")
        return schema_id, partial(self._registry.schema, schema_id)
