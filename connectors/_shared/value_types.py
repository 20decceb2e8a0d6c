"""The type of a sink's values, compared with that of its stream."""

from __future__ import annotations

from typing import Any

from kafka_eos.codecs.type_inspection import can_be, is_model, is_record, known_type, type_name
from kafka_eos.core.errors import PlanError


def expect_type(sink: object, declared: Any, tp: Any, part: str = "value") -> None:
    """Raise PlanError if values of the stream's type ``tp`` cannot be of the type that the sink declares.

    Both may be unknown: None. A sink of dicts writes the fields of models, Structs and dataclasses.
    """
    expected, found = known_type(declared), known_type(tp)
    if expected is None or found is None or (expected is dict and (is_model(found) or is_record(found))):
        return
    if not can_be(found, expected):
        raise PlanError(
            f"{sink!r} writes {part}s of type {type_name(expected)}, and the stream has {part}s of type "
            f"{type_name(found)}. Map them to {type_name(expected)} before the sink, or leave {part}= out: then it is "
            "the type of the stream."
        )
