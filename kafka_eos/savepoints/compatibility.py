"""Comparison of stored state with the state that the code declares, before a job starts.

Pure. Rule: what ``evolution`` would refuse is reported here. For Avro the report also says why some rows could not be
read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import SchemaComparison
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs.avro.differences import differences
from kafka_eos.codecs.avro.foreign_schemas import parse_schema
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.core.errors import UserError
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.schema_evolution import describe, form_changed, redefined, resolve_codec

_AVRO = ("avro", "counted-avro")


def compare_state(counterpart: str, descriptor: StateDescriptor[Any], stored: Mapping[str, Json]) -> SchemaComparison:
    """Compare a declared state with its stored description."""
    declared = describe(descriptor)
    changed = [part for part in {**stored, **declared} if stored.get(part) != declared.get(part)]
    difference_lines = [line for part in changed for line in _lines(part, stored.get(part), declared.get(part))]
    form = form_changed(stored, declared)
    wrong = [f"{part} cannot change" for part in changed if part in form]
    if redefined(stored, declared):
        wrong.append("it was stored for another definition")
    if "value" in changed:
        wrong += _unreadable(descriptor, stored["value"], declared["value"])
    return SchemaComparison(counterpart, difference_lines, wrong)


def _unreadable(descriptor: StateDescriptor[Any], stored: Any, declared: Any) -> Sequence[str]:
    try:
        resolve_codec(descriptor.value, stored)
    except UserError as error:
        return [str(error)]
    return (
        obstacles(*parse_schema(stored["schema"]), *parse_schema(declared["schema"]))
        if _are_avro(stored, declared)
        else []
    )


def _lines(part: str, stored: Any, declared: Any) -> Sequence[str]:
    if _are_avro(stored, declared):
        found = differences(*parse_schema(stored["schema"]), *parse_schema(declared["schema"]))
        return [f"{part}: {line}" for line in found]
    return [f"{part} is {_named(stored)} there, {_named(declared)} here"]


def _are_avro(*described: Any) -> bool:
    return all(isinstance(each, dict) and each.get("name") in _AVRO for each in described)


def _named(described: Any) -> str:
    if isinstance(described, dict) and described.keys() == {"name", "schema"}:
        return f"{described['name']} {described['schema']}"
    return "nothing" if described is None else str(described)
