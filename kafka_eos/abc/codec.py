"""Codecs: conversion of values to bytes and back.

Rule: stored data names the format and schema with which it was written.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct

from kafka_eos.core.errors import ConfigError
from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Headers

T = TypeVar("T")

RecordPart: TypeAlias = Literal["key", "value"]
"""A part of a Kafka record: key or value."""


class SchemaComparison(Struct, frozen=True):
    """The code's schema compared with its registered or stored counterpart.

    ``counterpart``   describes the schema compared with, or says that there is none
    ``differences``   the differences, one per line
    ``problems``      why a job with it would be refused, or stopped by a record; empty if it would not
    ``is_there``      whether a schema to compare with exists
    """

    counterpart: str
    differences: Sequence[str] = ()
    problems: Sequence[str] = ()
    is_there: bool = True


class StoredFormat(ABC):
    """A format, whose name is stored with the data: the base of codecs of one value and of many."""

    type: Any = None
    """The type of the values; None if only the codec knows it."""

    @property
    @abstractmethod
    def name(self) -> str:
        """Format name that is stored next to the data, e.g. ``json`` or ``avro``."""

    @property
    def schema(self) -> Json:
        """The writer's schema, stored next to the data; None, the default, where the format has none."""
        return None

    def reader_of(self, schema: Json) -> Any:
        """Return the codec that decodes data of an older ``schema`` into current values.

        Raises UserError if they are incompatible. Default: any other schema is refused. A codec that contains another
        one calls the inner ``reader_of``.
        """
        raise ConfigError(f"codec {self.name!r} cannot read data of another schema: it has no reader_of")


class SchemaChecks:
    """Descriptions and checks of a codec: its format, and its environment, such as a schema registry."""

    def describe(self) -> str | None:
        """Describe the format, the schema and where it comes from, for ``explain``. Default: None, name and type."""
        return None

    def check(self) -> Sequence[str]:
        """Check the environment at startup; return notices. Default: nothing is checked.

        Raise ConfigError if nothing can be written, and Retryable if that cannot be determined now.
        """
        return ()

    def check_reading(self) -> Sequence[str]:
        """Check the environment at startup, for a reader; return notices. Default: nothing is checked.

        Like ``check``, but what cannot be read is a notice: some records may be older.
        """
        return ()

    def compare_schema(self, reading: bool) -> SchemaComparison | None:
        """Compare the schema with the newest registered or stored one. Changes nothing. Default: None, there is none.

        Raises ConfigError or Retryable if they cannot be compared.

        ``reading``: compare whether this schema can read data written with that one; otherwise, whether it can replace
        it for writing.
        """
        return None


class Codec(StoredFormat, SchemaChecks, Generic[T]):
    """Turns values into bytes and back.

    Implement ``name``, ``encode`` and ``decode``. The other methods have a default, which their docstring states.
    """

    @abstractmethod
    def encode(self, value: T) -> bytes:
        """Encode a value. Raise ValueError if it is not of the declared type, or would be decoded as another value."""

    @abstractmethod
    def decode(self, data: bytes) -> T:
        """Raise ValueError (or a subclass) with a readable reason if ``data`` is not a valid value."""

    def encode_batch(self, values: Sequence[T]) -> list[bytes] | None:
        """Encode all values faster than one by one. Return None, the default, if they must be encoded one by one.

        For instance, one may be invalid.
        """
        return None

    def decode_batch(self, data: Sequence[bytes]) -> list[T] | None:
        """Decode all values faster than one by one. Return None, the default, if they must be decoded one by one.

        For instance, one may be malformed.
        """
        return None


class ListCodec(StoredFormat, Generic[T]):
    """A codec of many values at once, for rows that move between subtasks."""

    @abstractmethod
    def encode(self, values: Sequence[T]) -> bytes:
        """Encode the values.

        Raise ValueError if one is not of the declared type, or would be decoded as another value.
        """

    def expect_encodable(self, values: Sequence[T]) -> None:
        """Raise the error that ``encode`` would raise. The default calls ``encode``; override it if that is slow."""
        self.encode(values)

    @abstractmethod
    def decode(self, data: bytes) -> list[T]: ...


class TopicFormat(ABC, Generic[T]):
    """A format that sources and sinks of Kafka accept in place of a codec: its codec depends on the topic."""

    @abstractmethod
    def for_topic(self, topic: str, part: RecordPart) -> Codec[T]: ...


class SupportsHeaders(ABC):
    """An ability that a codec inherits if it stores part of its information (a schema id) in record headers.

    ``encode`` returns only the rest, and ``decode`` reads what ``encode`` returns.
    """

    @abstractmethod
    def headers(self) -> Headers:
        """Return the headers that each written record needs. Raises the same errors as ``encode``."""

    @abstractmethod
    def decode_with(self, data: bytes, headers: Headers) -> Any:
        """Decode the value of a record with these headers. Raises ValueError as ``decode`` does."""
