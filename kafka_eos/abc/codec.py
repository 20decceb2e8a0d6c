"""How values become bytes and come back.

Rule: what is stored says by which format and schema it was written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, TypeVar, runtime_checkable

from kafka_eos.core.json_values import Json
from kafka_eos.core.records import Headers

T = TypeVar("T")

Part: TypeAlias = Literal["key", "value"]
"""Of a record of a topic."""


class Codec(Protocol[T]):
    """Turns values into bytes and back. Lists in, lists out: one call a batch, not a record."""

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
    """A codec of many values at once, for rows that change subtasks."""

    @property
    def name(self) -> str: ...

    @property
    def schema(self) -> Json: ...

    def encode(self, values: Sequence[T]) -> bytes:
        """Raise ValueError if a value is not of the declared type, or would come back as another one."""

    def decode(self, data: bytes) -> list[T]: ...


@runtime_checkable
class TopicFormat(Protocol[T]):
    """What may stand where a codec may, in sources and sinks of Kafka: its codec depends on the topic."""

    def for_topic(self, topic: str, part: Part) -> Codec[T]: ...


@runtime_checkable
class InHeaders(Protocol):
    """A codec that keeps a part of what it has to say in headers of the record. ``encode`` makes only the rest.

    ``decode`` reads what ``encode`` makes.
    """

    def headers(self) -> Headers:
        """What each record that is written needs besides. Raises what ``encode`` raises."""

    def decode_with(self, data: bytes, headers: Headers) -> Any:
        """A value of a record with these headers. Raises ValueError as ``decode`` does."""


@runtime_checkable
class InBatches(Protocol):
    """A codec that decodes and encodes many values faster than one by one."""

    def decode_batch(self, data: Sequence[bytes]) -> list[Any] | None:
        """What ``decode`` makes of each. None if they must be decoded one by one, for instance because one is bad."""

    def encode_batch(self, values: Sequence[Any]) -> list[bytes] | None:
        """What ``encode`` makes of each. None if they must be encoded one by one, for instance because one is bad."""


@runtime_checkable
class Described(Protocol):
    """A codec that has more to tell than the user's type does."""

    def describe(self) -> str:
        """For ``explain``: the format, the schema and where it comes from."""


@runtime_checkable
class Checked(Protocol):
    """A codec that needs something of its environment."""

    def check(self) -> Sequence[str]:
        """At start: raise ConfigError if nothing can be written; Retryable if nobody can tell now. Returns notices."""

    def check_reading(self) -> Sequence[str]:
        """At start, where it reads: the same, but what cannot be read is a notice, for some records may be older."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """A schema of the code beside the one that is stored, or registered.

    ``beside``       which one that is, or that there is none
    ``differences``  in what the two differ, in lines
    ``wrong``        why a job with it would be refused, or stopped by a record; none if it would not
    ``is_there``     is there one to compare with?
    """

    beside: str
    differences: Sequence[str] = ()
    wrong: Sequence[str] = ()
    is_there: bool = True


@runtime_checkable
class Comparable(Protocol):
    """A codec whose schema has a counterpart that is kept elsewhere."""

    def compared(self, reading: bool) -> Comparison:
        """With the newest there is. Changes nothing. Raises ConfigError or Retryable if nobody can tell.

        ``reading``: can what was written with that be read; else: can this be written.
        """


@runtime_checkable
class HasCodecs(Protocol):
    """A source or sink that tells what reads or writes its keys and values."""

    def codecs(self) -> Mapping[str, Codec[Any] | Described]:
        """By what they are for, in words: ``value``, or ``value of orders-eu`` where each topic has another one."""
