"""Schema ids in record headers: ``avro(Order, registry=registry, id_in="header")``.

    "header"           Confluent's: ``__value_schema_id``, with everything that would otherwise precede the value
    "apicurio-header"  Apicurio's: ``apicurio.value.contentId``, a number of eight bytes

Rule: to decode, the header's content is put before the value again. A record without the header is decoded with the id
before its value, as Confluent's clients do: so a topic may change from one to the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Literal, Protocol, TypeAlias, TypeVar
from uuid import UUID

from msgspec import Struct

from kafka_eos.abc.codec import RecordPart, SupportsHeaders
from kafka_eos.codecs.registry.registry_client import RegisteredSchema, Registry
from kafka_eos.codecs.registry.wire_format import MAGIC, PREFIX, RegistryCodec, SchemaId, SchemaLanguage
from kafka_eos.core.errors import ConfigError
from kafka_eos.core.records import Headers

T = TypeVar("T")

IdIn: TypeAlias = Literal["prefix", "header", "apicurio-header"]
"""The location of the schema id in a record."""

_OF_GUID: Final = b"\x01"
_GUID: Final = 17
"""Bytes of the magic byte and a globally unique id."""
_ID: Final = 8
"""Bytes of an id of Apicurio. Ids of Confluent's API have four."""
_SHORT: Final = PREFIX - len(MAGIC)
_BINARY: Final = b"BINARY"


class SchemaIdHeaders(Protocol):
    """The encoding of schema ids in record headers.

    The prefix is that of Confluent's wire format, followed by ``SchemaLanguage.message_indexes``.
    """

    @property
    def header(self) -> str:
        """Return the name of the header with the id."""

    def written(self, prefix: bytes) -> Headers:
        """Return the headers that replace a prefix."""

    def prefix(self, headers: Headers) -> bytes | None:
        """Return the prefix that the headers stand for; None without such a header.

        Raises ValueError if it is invalid.
        """


def select_id_headers(id_in: str, language: SchemaLanguage[Any], part: RecordPart) -> SchemaIdHeaders:
    """Return the header format of that name. Raises ConfigError."""
    match id_in:
        case "header":
            return ConfluentHeaders(f"__{part}_schema_id", alone=not language.message_indexes)
        case "apicurio-header" if not language.message_indexes:
            return ApicurioHeaders(f"apicurio.{part}", language.schema_type == "AVRO")
        case "apicurio-header":
            raise ConfigError(f'{language.label}: Apicurio keeps more in its headers than an id; use id_in="prefix".')
        case _:
            raise ConfigError(f'id_in={id_in!r}: use "prefix", "header" or "apicurio-header".')


class ConfluentHeaders(Struct, frozen=True):
    """Confluent's header: everything that would precede the value. The id is a number, or globally unique."""

    header: str
    alone: bool
    """Whether it contains only the id. With Protobuf, the message indexes follow."""

    def written(self, prefix: bytes) -> Headers:
        return ((self.header, prefix),)

    def prefix(self, headers: Headers) -> bytes | None:
        found = _last(headers, self.header)
        if found is None:
            return None
        size = _GUID if found[:1] == _OF_GUID else PREFIX
        if len(found) < size or (self.alone and len(found) > size):
            raise ValueError(f"header {self.header} is {found.hex(' ') or 'empty'}, not a schema id")
        return found


class ApicurioHeaders(Struct, frozen=True):
    """Apicurio's headers: the content id, and the encoding for Avro.

    For Avro, another header says that values are not in its JSON encoding.
    """

    room: str
    avro: bool

    @property
    def header(self) -> str:
        return f"{self.room}.contentId"

    def written(self, prefix: bytes) -> Headers:
        number = (self.header, prefix[len(MAGIC) : PREFIX].rjust(_ID, b"\0"))
        return (number, (f"{self.room}.encoding", _BINARY)) if self.avro else (number,)

    def prefix(self, headers: Headers) -> bytes | None:
        encoding = _last(headers, f"{self.room}.encoding")
        if encoding not in (None, _BINARY):
            raise ValueError(f"header {self.room}.encoding is {encoding!r}: only {_BINARY!r} can be read")
        number = _last(headers, self.header)
        if number is None:
            if _last(headers, f"{self.room}.globalId") is not None:
                raise ValueError(
                    f"header {self.room}.globalId has a number that Confluent's API does not support; "
                    "configure the producer with apicurio.registry.use-id=contentId"
                )
            return None
        if len(number) != _ID or any(number[:-_SHORT]):
            raise ValueError(f"header {self.header} is {number.hex(' ') or 'empty'}, not an id of eight bytes")
        return MAGIC + number[-_SHORT:]


class HeaderIdCodec(SupportsHeaders, RegistryCodec[T]):
    """Registry codec whose schema id is in a record header."""

    def __init__(
        self,
        language: SchemaLanguage[T],
        registry: Registry,
        subject: str,
        auto_register: bool,
        naming: SchemaIdHeaders,
    ) -> None:
        super().__init__(language, registry, subject, auto_register)
        self._naming = naming

    def describe(self) -> str:
        return f"{super().describe()}, its id in header {self._naming.header}"

    def headers(self) -> Headers:
        return self._naming.written(self._head())

    def decode(self, data: bytes) -> T:
        return super().decode(self._head() + data)

    def decode_with(self, data: bytes, headers: Headers) -> T:
        prefix = self._naming.prefix(headers)
        if prefix is None:
            return super().decode(data)
        if prefix[:1] != _OF_GUID:
            return super().decode(prefix + data)
        decode = self._decoders.get(prefix[:_GUID])
        if decode is None:
            decode = self._fetch_decoder(prefix[:_GUID])
        return decode(prefix[_GUID:] + data)

    def _before_values(self) -> bytes:
        self._head()  # each of them gets a header
        return b""

    def _named(self, prefix: bytes) -> tuple[SchemaId, Callable[[], RegisteredSchema | None]]:
        if prefix[:1] != _OF_GUID:
            return super()._named(prefix)
        guid = str(UUID(bytes=prefix[1:]))
        return guid, lambda: self._registry.schema_of_guid(guid)


def _last(headers: Headers, name: str) -> bytes | None:
    """Return the last of several headers with one name, which takes precedence."""
    return next((value for header, value in reversed(headers) if header == name), None)
