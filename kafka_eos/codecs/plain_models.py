"""pydantic models whose fields are all of plain classes: a check, without encoding, that every format can hold a value.

pydantic and Avro convert each value by itself, which takes ten times as long as looking at the classes of its fields.
Rule: a declared type proves nothing, because an assignment to a field is not validated. So all fields of all values are
looked at, one column at a time, by loops that run in C.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, Final, TypeAlias

from msgspec import Struct

from kafka_eos.codecs.exact_classes import are, are_lists, are_or_none
from kafka_eos.codecs.type_inspection import is_model

_OF_MODEL: Final = {"type", "cls", "schema", "custom_init", "root_model", "config", "ref", "metadata", "generic_origin"}
_OF_FIELDS: Final = {"type", "fields", "model_name", "computed_fields"}
_OF_DEFAULT: Final = {"type", "schema", "default", "default_factory"}
"""Keys of pydantic's schemas that change no value. Any other key may stand for a constraint, an alias or a function."""


_Check: TypeAlias = Callable[[Sequence[Any]], bool]
"""Returns whether all values of a column are plain. May raise KeyError or UnicodeEncodeError if not."""


class PlainModel(Struct, frozen=True):
    """A model of texts, numbers, bools, and lists and plain models of these, without constraints or functions."""

    model: type
    fields: Mapping[str, _Check]

    @classmethod
    def of(cls, tp: Any) -> PlainModel | None:
        """Return the model if the schema that pydantic has compiled contains nothing but plain fields."""
        schema: Any = tp.__pydantic_core_schema__ if is_model(tp) else None
        return cls._of_schema(schema) if isinstance(schema, dict) and schema["type"] == "model" else None

    @classmethod
    def _of_schema(cls, schema: Any) -> PlainModel | None:
        if not schema.keys() <= _OF_MODEL or schema["custom_init"] or schema["root_model"]:
            return None
        inner = schema["schema"]
        if not schema["config"].keys() <= {"title"} or inner.keys() != _OF_FIELDS or inner["computed_fields"]:
            return None
        checks = dict[str, _Check]()
        for name, field in inner["fields"].items():
            check = _find_check(field["schema"]) if field.keys() == {"type", "schema", "metadata"} else None
            if check is None:
                return None
            checks[name] = check
        return cls(schema["cls"], checks) if checks else None

    def dump(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        """Return the fields of the values; None if some format may not hold them all, or may write them differently."""
        try:
            return self._dump(values) if values else None
        except (KeyError, UnicodeEncodeError):
            return None

    def is_plain(self, values: Sequence[Any]) -> bool:
        """Return whether the values are plain. May raise KeyError or UnicodeEncodeError if they are not."""
        return not values or self._dump(values) is not None

    def _dump(self, values: Sequence[Any]) -> list[dict[str, Any]] | None:
        if set(map(type, values)) != {self.model}:
            return None
        plain: list[dict[str, Any]] = list(map(vars, values))
        if set(map(len, plain)) != {len(self.fields)}:
            return None
        return plain if all(check([*map(itemgetter(name), plain)]) for name, check in self.fields.items()) else None


def _find_check(schema: Any) -> _Check | None:
    """Return the check of a column by its schema; None if other values are possible, or a function changes them."""
    kind, keys = schema["type"], schema.keys()
    if kind == "default" and keys <= _OF_DEFAULT:
        return _find_check(schema["schema"])
    if kind == "nullable" and keys == {"type", "schema"}:
        check = _find_check(schema["schema"])
        return None if check is None else partial(are_or_none, check)
    if kind == "list" and keys == {"type", "items_schema"}:
        check = _find_check(schema["items_schema"])
        return None if check is None else partial(are_lists, check)
    if kind == "model":
        model = PlainModel._of_schema(schema)
        return None if model is None else model.is_plain
    return _CHECKS.get(kind) if keys == {"type"} else None


def _are_texts(column: Sequence[Any]) -> bool:
    if not are(str, column):
        return False
    "".join(column).encode()  # raises UnicodeEncodeError
    return True


def _are_longs(column: Sequence[Any]) -> bool:
    return not column or (are(int, column) and -(2**63) <= min(column) and max(column) < 2**63)


def _are_short_floats(column: Sequence[Any]) -> bool:
    """Return whether they are finite, and below 1e16: above, JSON libraries write different exponents (1e16, 1e+16)."""
    return are(float, column) and all(-1e16 < number < 1e16 for number in column)


_CHECKS: Final[Mapping[str, _Check]] = {
    "str": _are_texts,
    "int": _are_longs,
    "float": _are_short_floats,
    "bool": partial(are, bool),
}
"""The checks of columns by the names of their types in pydantic's schema."""
