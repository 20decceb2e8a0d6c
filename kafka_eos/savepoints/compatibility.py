"""What is stored of a state beside what the code declares, before a job starts.

Pure. Rule: what ``evolution`` would refuse is wrong here; of Avro it is told, too, why some rows could not be read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka_eos.abc.codec import Comparison
from kafka_eos.abc.state import StateDescriptor
from kafka_eos.codecs.avro.differences import differences
from kafka_eos.codecs.avro.foreign_schemas import parsed
from kafka_eos.codecs.avro.reader_compatibility import obstacles
from kafka_eos.core.errors import UserError
from kafka_eos.core.json_values import Json
from kafka_eos.runtime.state.schema_evolution import describe, form_changed, reader, redefined

_AVRO = ("avro", "counted-avro")


def fitting(beside: str, descriptor: StateDescriptor[Any], stored: Mapping[str, Json]) -> Comparison:
    """``beside`` says where ``stored`` is, the description of the state without its marks."""
    declared = describe(descriptor)
    changed = [part for part in {**stored, **declared} if stored.get(part) != declared.get(part)]
    told = [line for part in changed for line in _lines(part, stored.get(part), declared.get(part))]
    form = form_changed(stored, declared)
    wrong = [f"{part} cannot change" for part in changed if part in form]
    if redefined(stored, declared):
        wrong.append("it was stored for another definition")
    if "value" in changed:
        wrong += _unreadable(descriptor, stored["value"], declared["value"])
    return Comparison(beside, told, wrong)


def _unreadable(descriptor: StateDescriptor[Any], stored: Any, declared: Any) -> Sequence[str]:
    try:
        reader(descriptor.value, stored)
    except UserError as error:
        return [str(error)]
    return obstacles(*parsed(stored["schema"]), *parsed(declared["schema"])) if _are_avro(stored, declared) else []


def _lines(part: str, stored: Any, declared: Any) -> Sequence[str]:
    if _are_avro(stored, declared):
        found = differences(*parsed(stored["schema"]), *parsed(declared["schema"]))
        return [f"{part}: {line}" for line in found]
    return [f"{part} is {_named(stored)} there, {_named(declared)} here"]


def _are_avro(*described: Any) -> bool:
    return all(isinstance(each, dict) and each.get("name") in _AVRO for each in described)


def _named(described: Any) -> str:
    if isinstance(described, dict) and described.keys() == {"name", "schema"}:
        return f"{described['name']} {described['schema']}"
    return "nothing" if described is None else str(described)
