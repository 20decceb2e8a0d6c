"""Codecs: conversion of values to bytes and back.

Rule: stored data names the format and schema with which it was written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Headers

T = TypeVar("T")

RecordPart: TypeAlias = Literal["key", "value"]
"""Which part of a Kafka record: key or value."""


class Codec(Protocol[T]):
    """Turns values into bytes and back. It takes and returns lists: one call per batch, not per record."""

    @property
    def name(self) -> str:
        """Format name that is stored next to the data, e.g. ``json`` or ``avro``."""

    @property
    def schema(self) -> Json:
        """The writer's schema, stored next to the data; None where the format has none."""

    def encode(self, value: T) -> bytes: ...

    def decode(self, data: bytes) -> T:
        """Raise ValueError (or a subclass) with a readable reason if ``data`` is not a valid value."""


class ListCodec(Protocol[T]):
    """A codec of many values at once, for rows that move between subtasks."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Json: ...

    def encode(self, values: Sequence[T]) -> bytes:
        """Encode the values.

        Raise ValueError if one is not of the declared type, or would be decoded as another value.
        """

    def decode(self, data: bytes) -> list[T]: ...


@runtime_checkable
class TopicFormat(Protocol[T]):
    """A format that sources and sinks of Kafka accept in place of a codec: its codec depends on the topic."""

    def for_topic(self, topic: str, part: RecordPart) -> Codec[T]: ...


@runtime_checkable
class SupportsHeaders(Protocol):
    """A codec that stores part of its information (a schema id) in record headers. ``encode`` returns only the rest.

    ``decode`` reads what ``encode`` returns.
    """

    def headers(self) -> Headers:
        """Return the headers that each written record needs. Raises the same errors as ``encode``."""

    def decode_with(self, data: bytes, headers: Headers) -> Any:
        """Decode the value of a record with these headers. Raises ValueError as ``decode`` does."""


@runtime_checkable
class SupportsBatches(Protocol):
    """A codec that encodes and decodes many values faster than one by one."""

    def decode_batch(self, data: Sequence[bytes]) -> list[Any] | None:
        """Decode all values. Return None if they must be decoded one by one, for instance because one is malformed."""

    def encode_batch(self, values: Sequence[Any]) -> list[bytes] | None:
        """Encode all values. Return None if they must be encoded one by one, for instance because one is invalid."""


@runtime_checkable
class SupportsDescribe(Protocol):
    """A codec that can describe its format and schema for explain."""

    def describe(self) -> str:
        """Describe the format, the schema and where it comes from, for ``explain``."""


@runtime_checkable
class SupportsCodecCheck(Protocol):
    """A codec that checks its environment (a schema registry, say) at start."""

    def check(self) -> Sequence[str]:
        """Check the environment at startup; return notices.

        Raise ConfigError if nothing can be written, and Retryable if that cannot be determined now.
        """

    def check_reading(self) -> Sequence[str]:
        """Check the environment at startup, for a reader; return notices.

        Like ``check``, but what cannot be read is a notice: some records may be older.
        """


@dataclass(frozen=True, slots=True)
class SchemaComparison:
    """The code's schema compared with its registered or stored counterpart.

    ``counterpart``   describes the schema compared with, or says that there is none
    ``differences``   the differences, one per line
    ``problems``      why a job with it would be refused, or stopped by a record; empty if it would not
    ``is_there``      whether there is a schema to compare with
    """

    counterpart: str
    differences: Sequence[str] = ()
    problems: Sequence[str] = ()
    is_there: bool = True


@runtime_checkable
class SupportsSchemaCompare(Protocol):
    """A codec that can compare its schema with the one that is registered or stored."""

    def compare_schema(self, reading: bool) -> SchemaComparison:
        """Compare the schema with the newest registered or stored one. Changes nothing.

        Raises ConfigError or Retryable if they cannot be compared.

        ``reading``: compare whether this schema can read data written with that one; otherwise, whether it can replace
        it for writing.
        """
