"""Values whose classes prove that msgspec returns them unchanged: a check that replaces decoding and comparing them.

Theory of operation: an encoder of msgspec has accepted a value, and the value and all that it holds are exactly of
their declared classes. Then decoding as the declared type returns an equal value of the same classes, by induction:

    str            the encoder refuses what UTF-8 cannot hold (a lone surrogate), and UTF-8 is read back unchanged
    int            MessagePack's encoder refuses what 64 bits cannot hold; JSON has the digits of any number
    bool, None     have one encoding each
    float          MessagePack stores its bits; JSON writes its shortest text, but NaN and infinity as null
    bytes          are stored, or written as Base64
    list, Struct   consist of their elements and fields, each of which is returned unchanged
    X | None       is None or an X; the encodings differ

A declaration that does more than name classes has no such check: one with bounds, a Struct that leaves out defaults or
has a ``__post_init__``, a union, a recursive type. Nor has a class whose values msgspec writes as those of another one
(a date, an enum, a Decimal, a tuple), and a subclass is not exactly its base class. Such values are decoded and
compared as before; only time is lost.

A declared type alone proves nothing, because an assignment to a field is not validated. So the classes of all values
are looked at, one column at a time, by loops that run in C.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Sequence
from functools import partial
from inspect import getattr_static
from itertools import chain
from operator import attrgetter, countOf
from typing import Any, Final, TypeAlias

from msgspec import Struct, inspect

ColumnCheck: TypeAlias = Callable[[Sequence[Any]], bool]
"""Returns whether all values of a column are as declared."""

_CLASSES: Final = (
    (inspect.StrType(), str),
    (inspect.IntType(), int),
    (inspect.BoolType(), bool),
    (inspect.BytesType(), bytes),
    (inspect.NoneType(), types.NoneType),
)
"""Declarations without bounds, with their classes."""


def find_msgpack_check(tp: Any) -> ColumnCheck | None:
    """Return the check whether MessagePack returns values of a type unchanged if it can encode them.

    None if their classes do not prove it. Raises TypeError if msgspec does not know the type.
    """
    return _find(inspect.type_info(tp), partial(are, float))


def find_json_check(tp: Any) -> ColumnCheck | None:
    """Return the same check for JSON, whose decoder has the same type."""
    return _find(inspect.type_info(tp), _are_finite)


def are(cls: type, column: Sequence[Any]) -> bool:
    """Return whether all values are exactly of a class."""
    return {cls}.issuperset(map(type, column))


def are_or_none(check: ColumnCheck, column: Sequence[Any]) -> bool:
    return check([each for each in column if each is not None])


def are_lists(check: ColumnCheck, column: Sequence[Any]) -> bool:
    return are(list, column) and check([*chain.from_iterable(column)])


def _are_finite(column: Sequence[Any]) -> bool:
    return are(float, column) and all(map(math.isfinite, column))


class _Fields(Struct, frozen=True):
    """The fields of a Struct, by their getters: those of one class, and those with another check."""

    of_a_class: Sequence[tuple[Callable[[Any], Any], type]]
    others: Sequence[tuple[Callable[[Any], Any], ColumnCheck]]


def _are_structs(cls: type, fields: _Fields, column: Sequence[Any]) -> bool:
    count = len(column)
    try:
        return (
            countOf(map(type, column), cls) == count
            and all(countOf(map(type, map(get, column)), declared) == count for get, declared in fields.of_a_class)
            and all(check([*map(get, column)]) for get, check in fields.others)
        )
    except AttributeError:  # a field that was deleted
        return False


def _find(tp: inspect.Type, floats: ColumnCheck, outer: frozenset[Any] = frozenset()) -> ColumnCheck | None:
    """Return the check of a type; ``outer`` are the Structs that it is a part of."""
    match tp:
        case inspect.FloatType() if tp == inspect.FloatType():
            return floats
        case inspect.ListType(item_type=item) if tp == inspect.ListType(item):
            check = _find(item, floats, outer)
            return None if check is None else partial(are_lists, check)
        case inspect.UnionType(types=(one, inspect.NoneType())) | inspect.UnionType(types=(inspect.NoneType(), one)):
            check = _find(one, floats, outer)
            return None if check is None else partial(are_or_none, check)
        # the class of a generic one with a parameter is none
        case inspect.StructType(cls=type() as cls) if cls not in outer and _consists_of_fields(cls):
            columns = [(attrgetter(field.name), field.type) for field in tp.fields]
            plain = [(get, known) for get, declared in columns if (known := _find_class(declared)) is not None]
            rest = [(get, declared) for get, declared in columns if _find_class(declared) is None]
            checks = [(get, _find(declared, floats, outer | {cls})) for get, declared in rest]
            found = [(get, check) for get, check in checks if check is not None]
            return partial(_are_structs, cls, _Fields(plain, found)) if len(found) == len(checks) else None
    return None if (known := _find_class(tp)) is None else partial(are, known)


def _find_class(tp: inspect.Type) -> type | None:
    """Return the class of all values of a type, if its declaration names nothing else."""
    return next((cls for declared, cls in _CLASSES if tp == declared), None)


def _consists_of_fields(cls: Any) -> bool:
    """Return whether values of a Struct class are written and read as all of their fields, by no code of the class."""
    return (
        not cls.__struct_config__.omit_defaults
        and not hasattr(cls, "__post_init__")
        and cls.__getattribute__ is Struct.__getattribute__
        and all(isinstance(getattr_static(cls, name), types.MemberDescriptorType) for name in cls.__struct_fields__)
    )
