"""Comparison of an encoded value with the value that is decoded from it. Pure."""

from __future__ import annotations

import datetime
import decimal
import math
import uuid
from collections.abc import Sequence
from itertools import chain
from typing import Any, Final

import msgspec
import pydantic

from kafka_eos.codecs.time_zones import same_time
from kafka_eos.codecs.type_inspection import field_names, from_plain, is_record

_KEPT: Final = (
    *(bytes, bytearray, decimal.Decimal, uuid.UUID),
    *(datetime.datetime, datetime.date, datetime.time, datetime.timedelta),
)
"""Types that are compared directly, not by their texts."""
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


def is_equal(back: Any, value: Any, tp: Any) -> bool:
    """Return whether both are equal as values of a declared type: as their class says, or in all their fields.

    A field may come back as another class that its type allows: an int as a float, or a tuple as a list if it is
    declared as a Sequence.
    """
    try:
        if back == value:
            return True
    except ArithmeticError:  # a signaling NaN
        pass
    found, given = _fields(back), _fields(value)
    if isinstance(value, pydantic.BaseModel):
        return unchanged(found, given)
    as_declared = _fields(msgspec.convert(given, tp, dec_hook=from_plain))
    # The conversion drops unknown fields.
    return bool(
        _comparable(found) == _comparable(as_declared)
        and _comparable(found, lists=True) == _comparable(given, lists=True)
    )


def is_returned(back: Any, value: Any, tp: Any) -> bool:
    """Return whether a decoded value is the encoded one; False too for one that is not of its declared type."""
    try:
        return is_equal(back, value, tp)
    except (ValueError, TypeError, RecursionError, NotImplementedError):
        return False


def _comparable(plain: Any, *, lists: bool = False) -> Any:
    """Return plain data in which NaN equals itself; ``lists``: with lists in place of tuples."""
    if isinstance(plain, float) and math.isnan(plain):
        return _NAN
    if isinstance(plain, decimal.Decimal):
        return plain.as_tuple() if plain.is_nan() else plain
    if isinstance(plain, list | tuple):
        items = [_comparable(each, lists=lists) for each in plain]
        return items if lists or isinstance(plain, list) else tuple(items)
    if isinstance(plain, dict):
        return {_comparable(key): _comparable(each, lists=lists) for key, each in plain.items()}
    return plain


def _fields(value: Any) -> Any:
    if isinstance(value, pydantic.BaseModel):
        return value.model_dump(warnings=False)
    return msgspec.to_builtins(value, builtin_types=_KEPT, enc_hook=_fields)
