"""The type of a sink's values: its own, compared with that of its stream, or that of the stream."""

from __future__ import annotations

import copy
from abc import abstractmethod
from typing import Any, Self, TypeVar

from kafka_eos.abc.sink import Sink
from kafka_eos.codecs.type_inspection import can_be, is_model, is_record, known_type, type_name
from kafka_eos.core.errors import PlanError

T = TypeVar("T")


def expect_type(sink: object, declared: Any, tp: Any, part: str = "value") -> None:
    """Raise PlanError if values of the stream's type ``tp`` cannot be of the type that the sink declares.

    Both may be unknown: None. A sink of dicts writes the fields of models, Structs and dataclasses.
    """
    expected, found = known_type(declared), known_type(tp)
    if expected is None or found is None or (expected is dict and (is_model(found) or is_record(found))):
        return
    if not can_be(found, expected):
        raise PlanError(
            f"{sink!r} writes {part}s of type {type_name(expected)}, but the stream has {part}s "
            f"of type {type_name(found)}. Map them to {type_name(expected)} before the sink, or "
            f"omit {part}= to use the type of the stream."
        )


class StreamTypedSink(Sink[T]):
    """Base of the sinks that take the type of the stream if they have none of their own."""

    _value: Any
    """The type of the values, or their codec; None if it is unknown."""

    def for_stream_type(self, tp: Any) -> Self:
        """Return the sink with the type of the stream."""
        if self._value is not None:
            expect_type(self, self._value, tp)
            return self
        sink = copy.copy(self)
        sink._take_type(tp)
        return sink

    @abstractmethod
    def _take_type(self, tp: Any) -> None:
        """Use the type of the stream, None if it is unknown. Raise ConfigError if its values cannot be written."""
