"""Comparison of an encoded value with the value that is decoded from it. Pure."""

from __future__ import annotations

import datetime
import decimal
import math
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import pydantic

from kafka_eos.codecs.time_zones import same_time
from kafka_eos.codecs.type_inspection import field_names, is_record

_NAN: Final = object()


def consist_of(builtins: frozenset[type], values: Sequence[Any]) -> bool:
    """Return whether all values, and all that they contain, are exactly of these classes.

    Each level of nesting is looked at by loops that run in C; comparing decoded values takes ten times as long.
    """
    level: Sequence[Any] = values
    while classes := set(map(type, level)):
        if not classes <= builtins:
            return False
        dicts = [each for each in level if type(each) is dict] if dict in classes else []
        lists = [each for each in level if type(each) is list] if list in classes else []
        level = [*chain.from_iterable(chain(dicts, map(dict.values, dicts), lists))]
    return True


def unchanged(a: Any, b: Any) -> bool:
    """Return whether both are equal in value and type, recursively; NaN equals NaN, and times have the same offset."""
    if type(a) is not type(b):
        return False
    if isinstance(a, dict):
        return len(a) == len(b) and all(
            unchanged(ka, kb) and unchanged(va, vb) for (ka, va), (kb, vb) in zip(*_items(a, b), strict=True)
        )
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(unchanged, a, b))
    if isinstance(a, float):
        return a == b or (math.isnan(a) and math.isnan(b))
    if isinstance(a, datetime.datetime | datetime.time):
        return same_time(a, b)
    if isinstance(a, pydantic.BaseModel):
        return unchanged(vars(a), vars(b)) and unchanged(a.__pydantic_extra__, b.__pydantic_extra__)
    cls: Any = type(a)
    if is_record(cls):
        return all(unchanged(getattr(a, name), getattr(b, name)) for name in field_names(cls))
    return bool(_comparable(a) == _comparable(b))


def _items(a: dict[Any, Any], b: dict[Any, Any]) -> tuple[list[tuple[Any, Any]], list[tuple[Any, Any]]]:
    """Return the items of both in one order: deterministic encoding sorts keys, but the user's dict may be unsorted."""
    items = [*a.items()], [*b.items()]
    return items if [*a] == [*b] else (sorted(items[0], key=_rank), sorted(items[1], key=_rank))


def _rank(item: tuple[Any, Any]) -> tuple[str, str]:
    return type(item[0]).__name__, repr(item[0])


def is_equal(back: Any, value: Any) -> bool:
    """Return whether both are equal: as ``==`` says, or in all their fields, with NaN equal to NaN.

    An int may come back as an equal float, which its declared type is, and a value of a subclass as its base class. A
    tuple or a set that comes back as a list is another value.
    """
    try:
        if back == value:
            return True
    except ArithmeticError:  # a signaling NaN
        pass
    try:
        return bool(_comparable(back) == _comparable(value))
    except (AttributeError, ValueError, TypeError, RecursionError):
        return False


def _written_fields(model: pydantic.BaseModel) -> dict[str, Any]:
    """Return what is written of a model. A computed field may come back as an extra one."""
    cls = type(model)
    fields = {name: vars(model).get(name) for name, field in cls.model_fields.items() if not field.exclude}
    computed = {name: getattr(model, name) for name in cls.model_computed_fields}
    return fields | computed | (model.__pydantic_extra__ or {})


def _comparable(value: Any) -> Any:
    """Return data in which NaN equals itself, and records of one class are compared by their fields."""
    if isinstance(value, float):
        return _NAN if math.isnan(value) else value
    if isinstance(value, decimal.Decimal):
        return value.as_tuple() if value.is_nan() else value
    if isinstance(value, list):
        return [*map(_comparable, value)]
    if isinstance(value, tuple):
        return (*map(_comparable, value),)
    if isinstance(value, set | frozenset):
        return {*map(_comparable, value)}
    if isinstance(value, dict):
        return {_comparable(key): _comparable(each) for key, each in value.items()}
    cls: Any = type(value)
    if isinstance(value, pydantic.BaseModel):
        return cls, {name: _comparable(each) for name, each in _written_fields(value).items()}
    if is_record(cls):
        return cls, *(_comparable(getattr(value, name)) for name in field_names(cls))
    return value
