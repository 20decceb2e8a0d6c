"""Fields of values by name: a function that reads one, and a check that the type of the values has it."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

from kafka_eos.codecs.type_inspection import get_return_type, is_message, is_model, is_record, type_name
from kafka_eos.core.errors import PlanError


def read_field(name: str, tp: Any) -> Callable[[Any], Any]:
    """Return a function that reads a field of values of type ``tp``, annotated with the field's type.

    A value has it as an attribute, or, if it is a mapping, as an item. Raise PlanError if ``tp`` has no such field;
    None is a type that is unknown.
    """
    if not name:
        raise PlanError("'' is not a field name; pass a name, or a function of the value")
    of_field = _field_type(name, tp)

    def field(value: Any) -> Any:
        return value[name] if isinstance(value, Mapping) else getattr(value, name)

    field.__annotations__ = {} if of_field is None else {"return": of_field}
    field.__name__ = name
    return field


def _field_type(name: str, tp: Any) -> Any:
    """Return the declared type of a field; None if it is unknown. Raise PlanError if there is no such field."""
    cls = typing.get_origin(tp) or tp
    if is_message(cls):
        fields: dict[str, Any] = dict.fromkeys(cls.DESCRIPTOR.fields_by_name)
    elif is_model(cls) or is_record(cls) or typing.is_typeddict(cls) or _is_named_tuple(cls):
        fields = typing.get_type_hints(cls)
    else:
        return None
    if name not in fields:
        described = getattr(cls, name, None)
        if isinstance(described, property | cached_property):
            return get_return_type(described.fget if isinstance(described, property) else described.func)
        raise PlanError(f"{type_name(cls)} has no field {name!r}; it has {', '.join(fields)}")
    return None if isinstance(fields[name], typing.TypeVar) else fields[name]


def _is_named_tuple(cls: Any) -> bool:
    return isinstance(cls, type) and issubclass(cls, tuple) and hasattr(cls, "_fields")
