"""pydantic models with fields of plain classes only: which values every format holds, without encoding them.

pydantic and Avro convert each value by itself, which takes ten times as long as to look at the classes of its fields.
Rule: a declared type proves nothing, because an assignment to a field is not validated. So all fields of all values are
looked at, a column at a time by loops that run in C.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import NoneType
from typing import Any, Final

from kafka_eos.codecs.type_inspection import is_model

_OF_MODEL: Final = {"type", "cls", "schema", "custom_init", "root_model", "config", "ref", "metadata", "generic_origin"}
_OF_DEFAULT: Final = {"type", "schema", "default", "default_factory"}
"""Keys of pydantic's schemas that change no value. Any other key may stand for a constraint, an alias or a function."""


@dataclass(frozen=True, slots=True)
class PlainModel:
    """A model whose fields are texts, numbers and bools, or None where declared, without constraints or functions."""

    model: type
    fields: Mapping[str, frozenset[type]]

    @classmethod
    def of(cls, tp: Any) -> PlainModel | None:
        """Return the model if the schema that pydantic has compiled contains nothing but plain fields."""
        schema: Any = tp.__pydantic_core_schema__ if is_model(tp) else None
        if not (isinstance(schema, dict) and schema["type"] == "model" and schema.keys() <= _OF_MODEL):
            return None
        if schema["custom_init"] or schema["root_model"] or not schema["config"].keys() <= {"title"}:
            return None
        inner = schema["schema"]
        if inner["computed_fields"] or inner.keys() != {"type", "fields", "model_name", "computed_fields"}:
            return None
        fields = {name: _find_classes(field) for name, field in inner["fields"].items()}
        return cls(tp, fields) if fields and all(fields.values()) else None

    def dump(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the fields of the values. None: every format may not hold all of them, or write them the same way."""
        if not values or set(map(type, values)) != {self.model}:
            return None
        plain: list[dict[str, Any]] = list(map(vars, values))
        if set(map(len, plain)) != {len(self.fields)}:
            return None
        try:
            if all(_is_plain(list(map(itemgetter(name), plain)), classes) for name, classes in self.fields.items()):
                return plain
        except (KeyError, UnicodeEncodeError):
            return None
        return None


def _is_plain(column: Collection[Any], classes: frozenset[type]) -> bool:
    if not classes.issuperset(map(type, column)):
        return False
    return all(_LIMITED[each](filter(None, column)) for each in classes if each in _LIMITED)


def _are_unicode(texts: Any) -> bool:
    "".join(texts).encode()  # raises UnicodeEncodeError
    return True


def _are_longs(numbers: Any) -> bool:
    found = [*numbers] or [0]
    return bool(-(2**63) <= min(found) and max(found) < 2**63)


def _are_short(numbers: Any) -> bool:
    """Return whether the numbers are finite, and too small for an exponent with a sign, which not all JSON has."""
    return all(-1e16 < number < 1e16 for number in numbers)


_CLASSES: Final[Mapping[str, type]] = {"str": str, "int": int, "float": float, "bool": bool}
"""The classes of fields by their names in pydantic's schema."""
_LIMITED: Final[Mapping[type, Callable[[Any], bool]]] = {str: _are_unicode, int: _are_longs, float: _are_short}


def _find_classes(field: Any) -> frozenset[type]:
    """Return the classes of a field's values; none if there may be others, or a function changes them."""
    if field.keys() != {"type", "schema", "metadata"}:
        return frozenset()
    inner, missing = field["schema"], frozenset[type]()
    if inner["type"] == "default" and inner.keys() <= _OF_DEFAULT:
        inner = inner["schema"]
    if inner["type"] == "nullable" and inner.keys() == {"type", "schema"}:
        inner, missing = inner["schema"], frozenset((NoneType,))
    found = _CLASSES.get(inner["type"]) if inner.keys() == {"type"} else None
    return frozenset() if found is None else missing | {found}
